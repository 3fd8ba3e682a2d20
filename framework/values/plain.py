"""`Text` and `Bytes`: values that are one column."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from .reasons import MALFORMED
from .value_format import Decoded, DecodedObjects, ValueFormat


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
