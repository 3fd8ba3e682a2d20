"""The base of formats with a type: values one by one, and reasons that name the field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from kmr import Json, MessagePack
from kmr.values.typed import TypedFormat

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Line:
    text: str
    count: int

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError("below 0")


def test_a_type_with_its_own_checks_is_decoded_by_them() -> None:
    decoded = Json(Line).decode(pa.array([b'{"text":"a","count":-1}', b'{"text":"a","count":1}']))
    assert decoded.failures == {0: "value: below 0"}
    assert decoded.columns.to_pylist()[1] == {"text": "a", "count": 1}


def test_bytes_that_are_not_utf8_are_reported_with_their_field() -> None:
    for form, text in (
        (Json(Line), b'{"count":1,"other":1,"text":"\xff"}'),
        (
            MessagePack(Line),
            msgspec.msgpack.encode({"count": 1, "text": "??"}).replace(b"??", b"\xff\xff"),
        ),
    ):
        failures = form.decode(pa.array([text], pa.binary())).failures
        assert failures == {0: "field text: invalid UTF-8 (invalid start byte)"}


class Words(TypedFormat):
    """A format of a user: one line of words."""

    @property
    def decoder(self) -> Callable[[Any], Any]:
        return lambda value: Line(value.decode(), len(value.split()))

    def decode_as(self, cls: type, value: bytes) -> object:
        raise NotImplementedError


def test_a_format_needs_only_to_decode_one_value() -> None:
    decoded = Words(Line).decode(pa.array([b"a b", None], pa.binary()))
    assert decoded.columns.to_pylist() == [
        {"text": "a b", "count": 2},
        {"text": None, "count": None},
    ]
