"""`Json`: values that are JSON objects."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from .schemas import row_type
from .typed import TypedFormat

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

__all__ = ["Json"]


class Json(TypedFormat):
    """Values that are JSON objects of one type."""

    def decode_one(self, value: bytes) -> Any:
        """Decode one JSON text to an object of the type."""
        return _decoder(self.type)(value)

    def decode_as(self, cls: type, value: bytes) -> object:
        """See `TypedFormat.decode_as`."""
        decoded: object = msgspec.json.decode(value, type=cls)
        return decoded


@lru_cache(maxsize=256)
def _decoder(source: type | pa.Schema) -> Callable[[bytes], Any]:
    rows = row_type(source)
    if rows.is_pydantic:
        decode: Callable[[bytes], Any] = rows.cls.model_validate_json  # type: ignore[attr-defined]
        return decode
    return msgspec.json.Decoder(rows.cls).decode
