"""kio's messages: read, write, fill with defaults, convert between versions, find error codes."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import timedelta
from functools import cache
from io import BytesIO
from operator import attrgetter
from typing import TYPE_CHECKING, Any, get_args
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError

from .cursor import MAX_ELEMENTS, MalformedRequest
from .structure import check_structure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


_EMPTY: dict[type, object] = {
    bool: False,  # before int, of which this and the next one are subclasses
    ErrorCode: ErrorCode.none,
    int: 0,
    float: 0.0,
    str: "",
    bytes: b"",
    timedelta: timedelta(0),
    UUID: UUID(int=0),
}


@cache
def api_keys() -> dict[str, int]:
    """Return the key of each API by its name in Kafka's documentation."""
    return {name.title().replace("_", ""): key for key, name in api_key_map.items()}


@cache
def request_type(key: int, version: int) -> Any:
    """Return kio's class of a request, cached because kio looks it up by names; the version must exist."""
    return load_request_schema(key, version)


@cache
def response_type(key: int, version: int) -> Any:
    """Return kio's class of a response."""
    return load_response_schema(key, version)


def read_message(
    message_type: type[Any], body: memoryview, max_elements: int = MAX_ELEMENTS
) -> Any:
    """Read one message from the beginning of `body`. Raise MalformedRequest."""
    try:
        checked = check_structure(message_type, body.toreadonly(), max_elements)
        message, _ = entity_reader(message_type)(checked, 0)
    except (SerialError, ValueError, OverflowError, MalformedRequest) as error:
        raise MalformedRequest(f"not a {message_type.__name__}: {error}") from error
    return message


def write_message(message: Any) -> bytes:
    """Return the bytes of a message, in the version of its class."""
    buffer = BytesIO()
    entity_writer(type(message))(buffer, message)
    return buffer.getvalue()


def recast(message: Any, target: Any) -> Any:
    """Convert a message or entity to another type: equal names are copied, other fields get defaults."""
    source: Any = type(message)
    return message if source is target else _recaster(source, target)(message)


def default_message(message_type: type[Any], **values: object) -> Any:
    """Return a message with `values`, and defaults for its other fields; unknown names are ignored."""
    return message_type(
        **{
            field.name: values[field.name] if field.name in values else _default(field)
            for field in fields(message_type)
        }
    )


def has_field(message_type: type[Any], name: str) -> bool:
    """Whether messages of this type have a top-level field of this name."""
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
    """Return the value of a field that has no default and is not sent."""
    arguments = [each for each in get_args(field_type) if each is not type(None)]
    if Ellipsis in arguments or any(Ellipsis in get_args(each) for each in arguments):
        return ()
    bare: Any = arguments[0] if arguments else field_type
    if entity_in(bare) is not None:
        return default_message(bare)
    return next(value for base, value in _EMPTY.items() if issubclass(bare, base))


def entity_in(field_type: Any) -> Any:
    """Return the entity in `Entity`, `Entity | None`, `tuple[Entity, ...]` or `tuple[Entity, ...] | None`."""
    if isinstance(field_type, type) and is_dataclass(field_type):
        return field_type
    return next((found for each in get_args(field_type) if (found := entity_in(each))), None)


def error_codes(message: Any) -> Iterable[int]:
    """Return the error codes in a message, nested ones too, without NONE."""
    message_type: Any = type(message)
    return _reader(message_type)(message)


@cache
def has_error_codes(entity_type: Any) -> bool:
    """Whether entities of this type have fields for error codes, nested ones included."""
    return any(
        field.type is ErrorCode
        or ((entity := entity_in(field.type)) is not None and has_error_codes(entity))
        for field in fields(entity_type)
    )


@cache
def _reader(entity_type: Any) -> Callable[[Any], Iterable[int]]:
    """Return a function that reads the codes of this type, fast for a single one, as in most responses."""
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
