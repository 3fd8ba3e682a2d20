"""`MessagePack`: values that are MessagePack maps."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from .schemas import row_type
from .typed import TypedFormat

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa


class MessagePack(TypedFormat):
    """Values that are MessagePack maps of one type."""

    def encode_one(self, value: Any) -> bytes:
        return msgspec.msgpack.encode(value)

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
