"""Value formats that ask no registry: `Text` and `Bytes`, which are one column, and `MessagePack`."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from .lost_digits import timestamps_as_text
from .schemas import row_type
from .typed import TypedFormat
from .value_format import (
    MALFORMED,
    Decoded,
    DecodedObjects,
    ValueFormat,
    is_bad_utf8,
    reason_of_value,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .lost_digits import DigitSearch


class _OneColumn(ValueFormat):
    """One column `value`; that of a key is named `key`."""

    _type: pa.DataType

    @property
    def schema(self) -> pa.Schema:
        """The column `value`."""
        return pa.schema([pa.field("value", self._type, nullable=False)])

    def decode_objects(self, values: pa.BinaryArray) -> DecodedObjects:
        """Decode values to one `str` or `bytes` each."""
        columns, failures = self.decode(values)
        objects: list[Any] = columns.column(0).to_pylist()
        return DecodedObjects(objects, failures)

    def _columns(self, values: Any) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([values], schema=self.schema)

    def __str__(self) -> str:
        return type(self).__name__


class Bytes(_OneColumn):
    """The bytes as they are."""

    _type = pa.binary()

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Return the bytes as the column `value`."""
        return Decoded(self._columns(values), {})


class Text(_OneColumn):
    """UTF-8 text. A value with other bytes fails."""

    _type = pa.string()

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode UTF-8 to the column `value`."""
        try:
            return Decoded(self._columns(values.cast(pa.string())), {})
        except pa.ArrowInvalid:
            pass
        texts: list[str | None] = []
        failures: dict[int, str] = {}
        for row, value in enumerate(values.to_pylist()):
            try:
                texts.append(None if value is None else value.decode())
            except UnicodeDecodeError as error:
                texts.append(None)
                failures[row] = f"{MALFORMED}invalid UTF-8 at byte {error.start}: {error.reason}"
        return Decoded(self._columns(pa.array(texts, pa.string())), failures)


class MessagePack(TypedFormat):
    """Values that are MessagePack maps of one type."""

    def encode_one(self, value: Any) -> bytes:
        return msgspec.msgpack.encode(value)

    def rounded(self, values: pa.BinaryArray, search: DigitSearch) -> Iterator[tuple[int, str]]:
        for row in search.in_messagepack(values):
            raw = values[row].as_py()
            replaced, known = timestamps_as_text(raw) if search.times else (raw, {})
            for each in (replaced, raw) if known else (raw,):
                # bytes that only looked like a timestamp
                with suppress(msgspec.MsgspecError, RecursionError):
                    try:
                        plain = msgspec.msgpack.decode(each)
                    except (msgspec.DecodeError, UnicodeDecodeError) as error:
                        if not is_bad_utf8(error):
                            raise
                        yield row, reason_of_value(error)  # in a field that the type lacks
                        break
                    if (reason := search.reason(plain, known)) is not None:
                        yield row, reason
                        break

    @property
    def decoder(self) -> Callable[[Any], Any]:
        return _decoder(self.type)

    def decode_as(self, cls: type, value: bytes) -> object:
        decoded: object = msgspec.msgpack.decode(value, type=cls)
        return decoded


@lru_cache(maxsize=256)
def _decoder(source: type | pa.Schema) -> Callable[[Any], Any]:
    rows = row_type(source)
    if rows.is_pydantic:
        validate: Callable[[Any], Any] = rows.cls.model_validate  # type: ignore[attr-defined]
        return lambda value: validate(msgspec.msgpack.decode(value))
    return msgspec.msgpack.Decoder(rows.cls).decode
