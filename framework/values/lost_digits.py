"""Numbers and times of a value with more digits than Python's types have: a decoder would round them.

    9007199254740993 in a float     the nearest is 9007199254740992
    1e-400 in a float               the nearest is 0
    ...T00:00:00.1234567Z           Python's times have microseconds

A number with a fraction, or with an exponent, stands for the nearest float.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache
from math import isinf
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import inspect

from ..columns.kinds import either, rows_where
from ..columns.numbers import DIGITS
from ..columns.texts import excerpt
from .schemas import item_of, nested_columns, row_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from ..columns.kinds import Mask
    from .schemas import SchemaField

_MANY_DIGITS: Final = r"\.[0-9]{7}"
_FINE: Final = r"[0-9]\.[0-9]{6}0*[1-9]"
FINE: Final = re.compile(_FINE.encode())
"""What bytes of a value have that hold such a time in text; other texts and numbers may have it too."""
_FINE_IN_VALUES: Final = rf":[0-9]{_FINE}|{_FINE}[0-9]*S"

LARGE_OR_TINY: Final = re.compile(rb"[0-9]{4}|[eE]-[0-9]{3}")
"""What JSON has that holds a number which is no float; other texts and numbers may have it too."""

# The extension type -1: 30 bits of nanoseconds and 34 of seconds, or 32 and 64.
_TIMESTAMP: Final = re.compile(rb"\xd7\xff(.{8})|\xc7\x0c\xff(.{12})", re.DOTALL)
_UINT64, _INT64 = 0xCF, 0xD3


def has_times(kind: Any) -> bool:
    """Return whether values of a type hold times or spans, at any depth."""
    return _has(kind, lambda leaf: pa.types.is_temporal(leaf) and not pa.types.is_date(leaf))


def has_floats(kind: Any) -> bool:
    """Return whether values of a type hold floats, at any depth."""
    return _has(kind, pa.types.is_floating)


def _has(kind: Any, is_one: Callable[[Any], bool]) -> bool:
    if kind.num_fields:
        return any(_has(kind.field(at).type, is_one) for at in range(kind.num_fields))
    return is_one(kind)


class DigitSearch:
    """Finds the values of a type whose times or floats a decoder would round. `of` returns that of a type.

    Attributes:
        times: the type has times.
        bits: the binary digits of its narrowest float; 0 without floats.
    """

    def __init__(self, columns: Sequence[SchemaField]) -> None:
        self._columns = columns
        self.times = any(has_times(column.type) for column in columns)
        self.bits = min((_bits(column.type) for column in columns), default=0) % _NO_FLOAT
        names = list(_names_of_floats(columns)) if self.bits else []
        after = "[[:,]" if None in names else rf'"(?:{"|".join(map(re.escape, names))})"\s*:'  # type: ignore[arg-type]
        # a key may be written with escapes
        first = str(2**self.bits)[0]
        large = rf"[{first}-9][0-9]{{{self._whole - 1}}}|[0-9]{{{self._whole + 1}}}"
        tiny = rf"0\.0{{20}}|[0-9.]+[eE]-(?:[{self._hundreds}-9][0-9]{{2}}|[0-9]{{4}})"
        self._lossy = rf'(?:{after}|\\.[^"\\]*"\s*:)\s*-?(?:{large}|{tiny})'

    @classmethod
    def of(cls, source: type | pa.Schema) -> DigitSearch:
        return _search(source)

    @property
    def _whole(self) -> int:
        """How many digits a whole number has at least that is no float."""
        return len(str(2**self.bits))

    @property
    def _hundreds(self) -> int:
        """The first digit of an exponent of 3 digits that may make a number 0: with 20 zeros before it."""
        return 3 if self.bits == DIGITS[64] else 0

    def in_json(self, values: pa.BinaryArray) -> list[int]:
        """Return the rows whose text may have such a time or number: mostly one look at all bytes."""
        from .digit_kernel import MOST, find_digits  # LLVM: only where values are decoded

        joined = _joined(values)
        if joined is None or not (self.times or self.bits):
            return []
        digits = find_digits(_bytes(joined), self._whole if self.bits else MOST, self._hundreds)
        found: Mask = None
        if self.times and digits.fine:
            found = rows_where(pc.match_substring_regex(values, _FINE_IN_VALUES))
        if self.bits and (digits.many or digits.tiny):
            found = either(found, rows_where(pc.match_substring_regex(values, self._lossy)))
        return [] if found is None else np.flatnonzero(found).tolist()

    def in_messagepack(self, values: pa.BinaryArray) -> list[int]:
        """Return the rows whose bytes may have such a time, as text or as a timestamp, or such a number."""
        joined = _joined(values)
        if joined is None:
            return []
        texts: Mask = None
        if self.times and pc.match_substring_regex(joined, _MANY_DIGITS)[0].as_py():
            texts = rows_where(pc.match_substring_regex(values, _FINE_IN_VALUES))
        rows = np.zeros(0, np.int64) if texts is None else np.flatnonzero(texts)
        ends = np.cumsum(pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False))
        markers = []
        if self.times:
            markers += [_places(joined, 0xD7, 0xFF), _places(joined, 0xC7, 0x0C)]
        if self.bits:
            markers += [_places(joined, _UINT64), _places(joined, _INT64)]
            if self.bits < 32:
                markers += [_places(joined, 0xCE), _places(joined, 0xD2)]
        places = np.concatenate([np.zeros(0, np.int64), *markers])
        found = np.searchsorted(ends, places, side="right")
        both: list[int] = np.unique(np.concatenate([found, rows])).tolist()
        return both

    def reason(self, value: Any, known: Mapping[str, str] = {}) -> str | None:
        """Return the reason why a decoded value of plain objects cannot be a row; None if it can.

        Args:
            value: with whole numbers as `int`, and other numbers of JSON as `Decimal`.
            known: the times for which texts in the value stand.
        """
        if not isinstance(value, dict):
            return None
        for field, found, type_ in _leaves(self._columns, value, ""):
            if isinstance(found, str):
                shown = known.get(found, found)
                if FINE.search(shown.encode(errors="replace")):
                    return (
                        f"field {field}: {excerpt(shown)} has more than 6 digits of a second; make the field "
                        "text, or send fewer"
                    )
            elif _is_lost(found, type_):
                return (
                    f"field {field}: a {type_} cannot hold {_shown(found)}; declare the "
                    "field int or Decimal"
                )
        return None


@lru_cache(maxsize=256)
def _search(source: type | pa.Schema) -> DigitSearch:
    return DigitSearch(row_type(source).columns)


_NO_FLOAT: Final = 64


def _bits(kind: Any) -> int:
    if kind.num_fields:
        return min(_bits(kind.field(at).type) for at in range(kind.num_fields))
    return DIGITS[kind.bit_width] if pa.types.is_floating(kind) else _NO_FLOAT


def _names_of_floats(columns: Sequence[SchemaField]) -> Iterator[str | None]:
    """Yield the keys of floats; None for floats that have no key of their own."""
    for column in columns:
        if pa.types.is_floating(column.type):
            yield column.key
        elif pa.types.is_struct(column.type):
            yield from _names_of_floats(nested_columns(column.kind, column.type))
        elif has_floats(column.type):
            yield None


def _joined(values: pa.BinaryArray) -> pa.Array[Any] | None:
    """Return all bytes of a column as one value; None if it has none."""
    ends: Any
    _, ends, data = values.buffers()
    if ends is None or data is None:
        return None
    bounds = np.frombuffer(ends, np.int32)[values.offset : values.offset + len(values) + 1]
    first, last = int(bounds[0]), int(bounds[-1])
    together = pa.array([0, last - first], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), 1, [None, together, data.slice(first, last - first)])


def _bytes(joined: pa.Array[Any]) -> NDArray[np.uint8]:
    data: Any = joined.buffers()[2] or b""
    return np.frombuffer(data, np.uint8)


def _places(joined: pa.Array[Any], marker: int, second: int | None = None) -> NDArray[np.int64]:
    data = _bytes(joined)
    places = np.flatnonzero(data[:-1] == marker)
    return places if second is None else places[data[places + 1] == second]


def _shown(number: int | Decimal) -> str:
    return excerpt(str(number)).strip("'")


def _is_lost(number: int | Decimal, type_: Any) -> bool:
    """Return whether the nearest float is another whole number, 0 or infinite."""
    try:
        with np.errstate(over="ignore"):
            nearest = float(np.dtype(type_.to_pandas_dtype()).type(float(number)))
    except OverflowError:
        return True
    if isinf(nearest) or nearest == 0:
        return nearest != number
    if isinstance(number, int):
        return number != int(nearest)
    is_written_out = int(number.as_tuple().exponent) < 0
    return is_written_out and number == number.to_integral_value() and number != Decimal(nearest)


def timestamps_as_text(raw: bytes) -> tuple[bytes, dict[str, str]]:
    """Put texts for the timestamps of a MessagePack value that have nanoseconds; return them with the times.

    Bytes that only look like a timestamp may be replaced, too.
    """
    known: dict[str, str] = {}

    def text(found: re.Match[bytes]) -> bytes:
        short, long = found.groups()
        if short is not None:
            bits = int.from_bytes(short)
            seconds, nanoseconds = bits & (2**34 - 1), bits >> 34
        else:
            nanoseconds = int.from_bytes(long[:4])
            seconds = int.from_bytes(long[4:], signed=True)
        if nanoseconds % 1000 == 0 or nanoseconds >= 10**9 or abs(seconds) >= 2**53:
            return found[0]
        stands = f"{len(known):0{len(found[0]) - 1}d}"
        known[stands] = f"{np.datetime64(seconds, 's')}.{nanoseconds:09d}Z"
        return bytes([0xA0 + len(stands)]) + stands.encode()

    return _TIMESTAMP.sub(text, raw), known


def _leaves(
    columns: Sequence[SchemaField], value: dict[Any, Any], path: str
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the texts of times and the numbers of floats, with their fields and types."""
    for column in columns:
        inner = f"{path}.{column.key}" if path else column.key
        yield from _in(column.kind, column.type, value.get(column.key), inner)


def _in(kind: Any, type_: Any, value: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    match value:
        case str() if has_times(type_):
            yield path, value, type_
        case Decimal() if pa.types.is_floating(type_):
            yield path, value, type_
        case int() if isinstance(kind, inspect.FloatType):  # one of `int | float` stays an int
            yield path, value, type_
        case list() if hasattr(kind, "item_type"):
            item, _, _ = item_of(kind.item_type)
            for each in value:
                yield from _in(item, type_.value_type, each, f"{path}[]")
        case dict() if isinstance(kind, inspect.DictType):
            key, _, _ = item_of(kind.key_type)
            item, _, _ = item_of(kind.value_type)
            for name, each in value.items():
                yield from _in(key, type_.key_type, name, f"{path}[]")
                yield from _in(item, type_.item_type, each, f"{path}[]")
        case dict() if pa.types.is_struct(type_):
            yield from _leaves(nested_columns(kind, type_), value, path)
