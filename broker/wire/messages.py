"""Messages of any version for handlers that are written against one.

kio has a class for every version of every message, with equal names for equal fields. A request is
read in the version that it came in and recast to the version of the handler; a response is recast to
the version that was asked for. Recasting goes by field names: a field that the target lacks is
dropped, one that the source lacks gets the default of the protocol's schema.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import timedelta
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, get_args
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError

from broker.wire.cursor import MalformedRequest
from broker.wire.structure import check_structure

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["default_message", "entity_in", "has_field", "read_message", "recast", "write_message"]

_EMPTY: dict[type, object] = {
    bool: False,  # before int, of which it is a kind, as is the next one
    ErrorCode: ErrorCode.none,
    int: 0,
    float: 0.0,
    str: "",
    bytes: b"",
    timedelta: timedelta(0),
    UUID: UUID(int=0),
}


@cache
def request_type(key: int, version: int) -> Any:
    """kio's class, which it looks up by names; only for versions that exist."""
    return load_request_schema(key, version)


@cache
def response_type(key: int, version: int) -> Any:
    """The same for responses."""
    return load_response_schema(key, version)


def read_message(message_type: type[Any], body: memoryview) -> Any:
    """Read one message from the beginning of `body`; raises MalformedRequest."""
    try:
        checked = check_structure(message_type, body.toreadonly())
        message, _ = entity_reader(message_type)(checked, 0)
    except (SerialError, ValueError, OverflowError, MalformedRequest) as error:
        raise MalformedRequest(f"not a {message_type.__name__}: {error}") from error
    return message


def write_message(message: Any) -> bytes:
    """The bytes of a message, in the version of its class."""
    buffer = BytesIO()
    entity_writer(type(message))(buffer, message)
    return buffer.getvalue()


def recast(message: Any, target: Any) -> Any:
    """The same message in another version."""
    source: Any = type(message)
    return message if source is target else _recaster(source, target)(message)


def default_message(message_type: type[Any], **values: object) -> Any:
    """A message of which only `values` are given; unknown names are left out."""
    return message_type(
        **{
            field.name: values[field.name] if field.name in values else _default(field)
            for field in fields(message_type)
        }
    )


def has_field(message_type: type[Any], name: str) -> bool:
    """Whether messages of this type have a field of this name at their top level."""
    return any(field.name == name for field in fields(message_type))


@cache
def _recaster(source: Any, target: Any) -> Callable[[Any], Any]:
    theirs = {field.name: field for field in fields(source)}
    missing = {f.name: _default(f) for f in fields(target) if f.name not in theirs}
    converters = {f.name: _converter(theirs[f.name], f) for f in fields(target) if f.name in theirs}

    def convert(message: Any) -> Any:
        values = {name: each(getattr(message, name)) for name, each in converters.items()}
        return target(**values, **missing)

    return convert


def _converter(source: Field[Any], target: Field[Any]) -> Callable[[Any], Any]:
    nested = entity_in(target.type)
    empty = None if _is_optional(target.type) else _implicit(target.type)

    def convert(value: Any) -> Any:
        if value is None:
            return empty
        if nested is None:
            return value
        if isinstance(value, tuple):
            return tuple([recast(each, nested) for each in value])
        return recast(value, nested)

    return convert


def _default(field: Field[Any]) -> object:
    if field.default is not MISSING:
        return field.default
    return None if _is_optional(field.type) else _implicit(field.type)


def _is_optional(field_type: object) -> bool:
    return type(None) in get_args(field_type)


def _implicit(field_type: Any) -> object:
    """What a field without a default is when it is not sent."""
    arguments = [each for each in get_args(field_type) if each is not type(None)]
    if Ellipsis in arguments or any(Ellipsis in get_args(each) for each in arguments):
        return ()
    bare: Any = arguments[0] if arguments else field_type
    if entity_in(bare) is not None:
        return default_message(bare)
    return next(value for base, value in _EMPTY.items() if issubclass(bare, base))


def entity_in(field_type: Any) -> Any:
    """The entity in `Entity`, `Entity | None`, `tuple[Entity, ...]` and `tuple[Entity, ...] | None`."""
    if isinstance(field_type, type) and is_dataclass(field_type):
        return field_type
    return next((found for each in get_args(field_type) if (found := entity_in(each))), None)
