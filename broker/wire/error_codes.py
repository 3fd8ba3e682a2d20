"""The error codes in a response, wherever its schema has places for them."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from broker.wire.messages import entity_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["error_codes", "has_error_codes"]


def error_codes(message: Any) -> Iterable[int]:
    """All of them but NONE."""
    message_type: Any = type(message)
    return _reader(message_type)(message)


@cache
def has_error_codes(entity_type: Any) -> bool:
    """Whether there are places for error codes in entities of this type."""
    return any(
        field.type is ErrorCode
        or ((entity := entity_in(field.type)) is not None and has_error_codes(entity))
        for field in fields(entity_type)
    )


@cache
def _reader(entity_type: Any) -> Callable[[Any], Iterable[int]]:
    """Reads entities of this type; those with one code, as in most responses, cost least."""
    codes = [field.name for field in fields(entity_type) if field.type is ErrorCode]
    nested = [
        (field.name, _reader(entity))
        for field in fields(entity_type)
        if (entity := entity_in(field.type)) is not None and has_error_codes(entity)
    ]

    def read(message: Any) -> Iterator[int]:
        for name in codes:
            if code := getattr(message, name):
                yield code
        for name, read_element in nested:
            value = getattr(message, name)
            for each in value if isinstance(value, tuple) else () if value is None else (value,):
                yield from read_element(each)

    if nested or len(codes) != 1:
        return read
    the_code = attrgetter(codes[0])

    def read_one(message: Any) -> Iterable[int]:
        code = the_code(message)
        return (code,) if code else ()

    return read_one
