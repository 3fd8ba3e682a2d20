"""The error codes in a response, wherever its schema has places for them."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from broker.wire.messages import entity_in

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["error_codes"]


def error_codes(message: Any) -> Iterator[int]:
    """All of them but NONE."""
    message_type: Any = type(message)
    codes, nested = _places(message_type)
    for name in codes:
        code = getattr(message, name)
        if code:
            yield code
    for name in nested:
        value = getattr(message, name)
        if isinstance(value, tuple):
            for each in value:
                yield from error_codes(each)
        elif value is not None:
            yield from error_codes(value)


@cache
def _places(entity_type: Any) -> tuple[list[str], list[str]]:
    """The fields that are error codes, and those in which there are some."""
    codes = [field.name for field in fields(entity_type) if field.type is ErrorCode]
    nested = [
        field.name
        for field in fields(entity_type)
        if (entity := entity_in(field.type)) is not None and any(_places(entity))
    ]
    return codes, nested
