"""`Json`: values that are JSON objects."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from .json_columns import places_of, plan_of, splice, walk
from .schemas import row_type
from .typed import TypedFormat
from .value_format import Decoded

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Json"]


class Json(TypedFormat):
    """Values that are JSON objects of one type."""

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode values to columns: most without the interpreter lock, what is unusual by msgspec."""
        plan = plan_of(self.type)
        if plan is None or not len(values):
            return super().decode(values)
        columns, is_left = walk(plan, places_of(values))
        failures: dict[int, str] = {}
        if is_left.any():
            left = np.flatnonzero(is_left)
            by_msgspec, failed = super().decode(values.take(pa.array(left, pa.int64())))
            failures = {int(left[row]): reason for row, reason in failed.items()}
            columns = [
                splice(fast, left, slow)
                for fast, slow in zip(columns, by_msgspec.columns, strict=True)
            ]
        return Decoded(pa.RecordBatch.from_arrays(columns, schema=self.schema), failures)

    @property
    def decoder(self) -> Callable[[Any], Any]:
        """See `TypedFormat.decoder`."""
        return _decoder(self.type)

    def decode_as(self, cls: type, value: bytes) -> object:
        """See `TypedFormat.decode_as`."""
        decoded: object = msgspec.json.decode(value, type=cls)
        return decoded


@lru_cache(maxsize=256)
def _decoder(source: type | pa.Schema) -> Callable[[Any], Any]:
    rows = row_type(source)
    if rows.is_pydantic:
        decode: Callable[[Any], Any] = rows.cls.model_validate_json  # type: ignore[attr-defined]
        return decode
    return msgspec.json.Decoder(rows.cls).decode
