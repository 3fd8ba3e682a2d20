"""Hypothesis strategies for requests: valid ones with any content, and what damage makes of them."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, get_args

from hypothesis import strategies as st

if TYPE_CHECKING:
    from dataclasses import Field

_NAMES = ("t", "g", "", "consumer", "range", "retention.ms", "1000")


def _integers(bits: int) -> st.SearchStrategy[int]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return st.sampled_from([0, 0, 1, -1, -2, low, high]) | st.integers(low, high)


_TIMES = st.sampled_from([timedelta(milliseconds=ms) for ms in (-1, 0, 1, 50)])
"""Short waits: the awaited event comes soon or the request times out."""
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "bytes": st.binary(max_size=30),
    "int8": _integers(8),
    "int16": _integers(16),
    "int32": _integers(32),
    "int64": _integers(64),
    "records": st.binary(max_size=100),
    "string": st.sampled_from(_NAMES) | st.text(max_size=10),
    "timedelta_i32": _TIMES,
    "timedelta_i64": _TIMES,
    "uuid": st.uuids(),
}


@cache
def requests(schema: Any) -> st.SearchStrategy[Any]:
    """Any request of kio's class of one version of an API."""
    return st.builds(schema, **{each.name: _field(each) for each in fields(schema)})


def _field(field: Field[Any]) -> st.SearchStrategy[Any]:
    arguments = get_args(field.type)
    entity: Any = next((each for each in _leaves(field.type) if is_dataclass(each)), None)
    values = requests(entity) if entity else _VALUES[field.metadata["kafka_type"]]
    if any(each is Ellipsis for each in _all_arguments(field.type)):
        values = st.lists(values, max_size=3).map(tuple)
    return st.none() | values if type(None) in arguments else values


def _leaves(field_type: Any) -> list[Any]:
    return [leaf for each in get_args(field_type) for leaf in _leaves(each)] or [field_type]


def _all_arguments(field_type: Any) -> list[Any]:
    found = list(get_args(field_type))
    return found + [each for argument in found for each in _all_arguments(argument)]


@st.composite
def damaged(draw: st.DrawFn, sound: bytes) -> bytes:
    """The bytes after something has happened to them: cut, flipped, filled in, lengthened."""
    data = bytearray(sound)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["cut", "flip", "extreme", "insert"])):
            case "cut":
                del data[at:]
            case "flip":
                data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case "extreme":
                data[at : at + 4] = draw(st.sampled_from(_EXTREMES))
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=8))
    return bytes(data)


_EXTREMES = (
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\x00\x00\x7f\xff",
    b"\xff\xff\xff\xff\x0f",  # the largest unsigned varint
    b"\xff\xff\xff\xff\xff",
)
