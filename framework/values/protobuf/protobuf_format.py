"""The value format `Protobuf`: decoding by a message type, and encoding for writers."""

from __future__ import annotations

import base64
import binascii
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec
import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from ...columns.texts import excerpt
from ...errors import RegistryError, StrategyError
from ..decoding.slot_decoding import CompiledDecoder, SchemaColumns, decode_slots
from ..encoding import DoesNotFit, dict_of, encode_each, fit_rows, plain_rows
from ..registry.framing import (
    NO_SCHEMA_ID,
    NULL,
    OTHER_MESSAGE,
    UNFRAMED,
    message_prefix,
    prefix,
    prefix_sizes,
    raw_values,
)
from ..registry.registry import PerProcess, RegisteredSchema, Registry, SchemaReference
from ..value_format import Decoded, ValueFormat
from . import kernel
from .json_messages import JSON_TYPES, message_of
from .messages import TIMESTAMP, WRAPPERS, MessageColumns, Unit

if TYPE_CHECKING:
    from collections.abc import Container, Iterator
    from types import ModuleType

    from google.protobuf.descriptor import FieldDescriptor, FileDescriptor
    from google.protobuf.message import Message
    from numpy.typing import NDArray


class Protobuf(ValueFormat):
    """Values that are messages of one type, with Confluent's wire format if there is a registry.

    The columns are the fields of the type; fields of a value that the type does not have are skipped.
    `kmr.values.protobuf.messages` has the rules of defaults and presence.

    Args:
        message: a generated class, its descriptor, or a generated module with one message. With a registry
            and a subject also the name of a message of the subject's latest schema, which is asked for
            when the columns are needed first; its first message by default.
        registry: the registry, or its URL. Values then begin with a schema id and with the position of the
            message in its file. Writers register that file.
        subject: where writers register it; `TOPIC-value` by default.
        timestamps: the unit of the columns of `google.protobuf.Timestamp`: microseconds hold all years and
            refuse a time with more digits; nanoseconds hold the years 1678 to 2261.

    Raises:
        StrategyError: there is no such message, or it has no columns.
    """

    def __init__(
        self,
        message: type[Message] | Descriptor | ModuleType | str | None = None,
        *,
        registry: Registry | str | None = None,
        subject: str | None = None,
        timestamps: Unit = "us",
    ) -> None:
        self._unit: Unit = timestamps
        self._registry = Registry(registry) if isinstance(registry, str) else registry
        self._subject = subject
        self._made: PerProcess[_Type] = PerProcess()
        self._source: GivenType | RegisteredType
        if message is not None and not isinstance(message, str):
            self._source = GivenType(message)
            MessageColumns(self._source.load())
        elif self._registry is not None and subject is not None:
            self._source = RegisteredType(self._registry, subject, message)
        else:
            raise StrategyError(
                "Protobuf: its columns are not known; give a generated class, or registry= and subject= for "
                "the latest schema of a subject"
            )

    def __str__(self) -> str:
        return f"Protobuf({self._source.name})"

    def _type(self) -> _Type:
        return self._made.get(lambda: _load(self._source, self._unit))

    @property
    def schema(self) -> pa.Schema:
        """The fields of the message type."""
        return self._type().messages.schema

    @property
    def has_schema_ids(self) -> bool:
        return self._registry is not None

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode values; one that is damaged, or another message of its schema, fails alone."""
        type_ = self._type()
        raw = raw_values(values)
        failures: dict[int, str] = {}
        if self._registry is not None:
            entries = prefix_sizes(raw, type_.path)
            for status, reason in _UNREADABLE.items():
                rows = np.flatnonzero(entries == status)
                failures.update(
                    dict.fromkeys(rows.tolist(), reason.format(type_.descriptor.full_name))
                )
                entries[rows] = NULL
        else:
            entries = np.zeros(len(raw.offsets) - 1, np.int64)
            if raw.nulls is not None:
                entries[raw.nulls] = NULL
        messages = type_.messages
        target = SchemaColumns(messages.layout, messages.columns, messages.schema)
        code = CompiledDecoder(
            kernel.kernel(), type_.program, kernel.scratch(), type_.pool, messages.reason
        )
        return decode_slots(code, target, raw, entries, failures)

    def warm_up(self) -> None:
        """Load the compiled code; see `ValueFormat.warm_up`."""
        self.decode(pa.array([], pa.binary()))

    def encode(self, rows: pa.Table, topic: str) -> pa.BinaryArray:
        """Encode rows; registers the file of the message at the first call for a topic.

        A null leaves the field out. Takes some microseconds a row.

        Raises:
            StrategyError: the message type has no such fields.
            RowsDoNotFit: the message type cannot hold a value.
            RegistryError: the registry refuses it, or does not answer.
        """
        type_ = self._type()
        first = b""
        if self._registry is not None:
            subject = self._subject or f"{topic}-value"
            number = _register(self._registry, subject, type_.descriptor.file)
            first = prefix(number) + message_prefix(type_.path)
        make = GetMessageClass(type_.descriptor)
        per_second = _PER_SECOND[self._unit]

        def encode(row: dict[str, Any]) -> bytes:
            message: Any = make(**arguments(type_.descriptor, row, per_second=per_second))
            if not message.IsInitialized():  # of proto2
                raise DoesNotFit(f"field {', '.join(_lacking(message))} is required, and null")
            return first + bytes(message.SerializePartialToString())

        schema = pa.schema([each.with_nullable(True) for each in type_.messages.schema])  # noqa: FBT003
        fitted = fit_rows(rows, schema, f"Protobuf: {type_.descriptor.full_name}")
        return encode_each(plain_rows(fitted), encode)


def _lacking(message: Any, path: str = "") -> Iterator[str]:
    """Yield the required fields that are not set, at any depth.

    The library's own search, also that of `SerializeToString`, can end the process: where a message that is
    inside of another lacks one.
    """
    for field in message.DESCRIPTOR.fields:
        if field.is_required and not message.HasField(field.name):
            yield f"{path}{field.name}"
    for field, value in message.ListFields():
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            inner, value = inner.fields_by_name["value"].message_type, value.values()
        elif not field.is_repeated:
            value = (value,)
        for each in value if inner is not None else ():
            yield from _lacking(each, f"{path}{field.name}.")


_UNREADABLE: Final = {
    UNFRAMED: NO_SCHEMA_ID,
    OTHER_MESSAGE: "the value is another message of its schema than {}",
}


class _Type(NamedTuple):
    descriptor: Descriptor
    messages: MessageColumns
    program: kernel.ProtobufProgram
    pool: NDArray[np.uint8]
    path: list[int]


def _load(source: GivenType | RegisteredType, unit: Unit) -> _Type:
    descriptor = source.load()
    messages = MessageColumns(descriptor, unit)
    return _Type(descriptor, messages, *messages.tables(), _path(descriptor))


def _path(descriptor: Descriptor) -> list[int]:
    """Return the position of a type in its file, and in each type that it is inside of."""
    outer = descriptor.containing_type
    if outer is None:
        return [list(descriptor.file.message_types_by_name).index(descriptor.name)]
    return [*_path(outer), [each.name for each in outer.nested_types].index(descriptor.name)]


def _register(registry: Registry, subject: str, file: FileDescriptor) -> int:
    """Register a file, after those that it imports, which have their names as subjects."""
    return registry.register(subject, _schema(registry, file))


def _schema(registry: Registry, file: FileDescriptor) -> RegisteredSchema:
    references = []
    for each in file.dependencies:
        if not each.name.startswith(WELL_KNOWN):
            _register(registry, each.name, each)
            version = registry.version_of(each.name, _schema(registry, each))
            references.append(SchemaReference(each.name, each.name, version))
    text = base64.b64encode(file.serialized_pb).decode()
    return RegisteredSchema(text, "PROTOBUF", tuple(references))


_PER_SECOND: Final = {"us": 10**6, "ns": 10**9}
_YEARS: Final = range(-62_135_596_800, 253_402_300_800)
"""Seconds since 1970 of the years 1 to 9999."""


def arguments(
    type_: Descriptor, row: dict[str, Any], path: str = "", *, per_second: int = 10**6
) -> dict[str, Any]:
    """Return a row as arguments: without nulls, maps as dicts, messages as dicts.

    Args:
        per_second: the unit of timestamps, which are integers.

    Raises:
        DoesNotFit: a map has a key twice, an enum no such value, a list a null.
    """
    found: dict[str, Any] = {}
    chosen: dict[str, str] = {}
    scalars = _scalars(type_)
    for name, value in row.items():
        if value is None:
            continue
        if name in scalars:
            found[name] = value
            continue
        field = type_.fields_by_name[name]
        place = f"{path}{name}"
        oneof = field.containing_oneof
        if oneof is not None and chosen.setdefault(oneof.name, name) != name:
            raise DoesNotFit(
                f"field {place}: the oneof {oneof.name} has values of {chosen[oneof.name]} and {name}"
            )
        message = field.message_type
        if message is not None and message.GetOptions().map_entry:
            of_value = message.fields_by_name["value"]
            pairs = dict_of(value, place).items()
            found[name] = {key: _argument(of_value, each, place, per_second) for key, each in pairs}
        elif field.is_repeated:
            found[name] = [_argument(field, each, place, per_second) for each in value]
        else:
            found[name] = _argument(field, value, place, per_second)
    return found


@lru_cache(maxsize=256)
def _scalars(type_: Descriptor) -> frozenset[str]:
    """Return the fields of a message whose values are arguments as they are."""
    return frozenset(
        field.name
        for field in type_.fields
        if not (
            field.is_repeated or field.message_type or field.enum_type or field.containing_oneof
        )
    )


def _argument(field: FieldDescriptor, value: Any, path: str, per_second: int) -> Any:
    if value is None:
        raise DoesNotFit(f"field {path}: lists and maps cannot hold null")
    enum, message = field.enum_type, field.message_type
    if enum is not None and value not in enum.values_by_name:
        raise DoesNotFit(f"field {path} (enum {enum.full_name}) cannot hold {excerpt(value)}")
    if message is None:
        return value
    if message.full_name in WRAPPERS:
        return {"value": value}
    if message.full_name in JSON_TYPES:
        of_json = message_of(JSON_TYPES[message.full_name], value, path)
        return GetMessageClass(message).FromString(of_json.SerializeToString())
    if message.full_name == TIMESTAMP:
        seconds, ticks = divmod(value, per_second)
        if seconds not in _YEARS:
            raise DoesNotFit(
                f"field {path}: a Timestamp is of the years 1 to 9999, not {seconds} s"
            )
        return {"seconds": seconds, "nanos": ticks * (10**9 // per_second)}
    return arguments(message, value, f"{path}.", per_second=per_second)


WELL_KNOWN: Final = "google/protobuf/"
"""Files that every registry has, and every program with Protobuf."""

GOOGLE: Final = "google/"
"""Files that libraries have; a schema in a registry imports them without a reference."""


class GivenType:
    """A type of the program.

    Args:
        message: a generated class, its descriptor, or a generated module with one message.

    Raises:
        StrategyError: there is no such message.
    """

    def __init__(self, message: type[Message] | Descriptor | ModuleType) -> None:
        descriptor = _descriptor(message)
        self.name = descriptor.full_name
        files: dict[str, bytes] = {}
        _collect(descriptor.file, files)
        self._files = list(files.values())

    def load(self) -> Descriptor:
        """Return the type, made anew."""
        pool = DescriptorPool()
        for file in self._files:
            pool.AddSerializedFile(file)
        return pool.FindMessageTypeByName(self.name)


class RegisteredType(msgspec.Struct, frozen=True):
    """A type of the latest schema of a subject.

    Attributes:
        message: its name, with or without the package; None for the first message of the file.
    """

    registry: Registry
    subject: str
    message: str | None

    @property
    def name(self) -> str:
        """The type, for messages."""
        return f"{self.subject}: {self.message}" if self.message else self.subject

    def load(self) -> Descriptor:
        """Ask the registry for the schema, and return the type.

        Raises:
            StrategyError: the schema is no Protobuf, or has no such message.
            RegistryError: the registry does not answer, refuses us, or has no such subject.
        """
        latest = self.registry.by_version(self.subject)
        if latest.schema_type != "PROTOBUF":
            raise StrategyError(
                f"Protobuf: the latest schema of {self.subject} in {self.registry.url} is "
                f"{latest.schema_type}"
            )
        pool = DescriptorPool()
        imported = self.registry.references(latest)
        for name, each in imported.items():
            self._add(pool, name, each, imported)
        own = f"{self.subject}.proto"
        file = self._add(pool, f"latest/{own}" if own in imported else own, latest, imported)
        types = file.message_types_by_name
        if self.message is None and types:
            return next(iter(types.values()))
        for name in (self.message or "", f"{file.package}.{self.message}"):
            try:
                return pool.FindMessageTypeByName(name)
            except KeyError:
                pass
        raise StrategyError(
            f"Protobuf: the latest schema of {self.subject} in {self.registry.url} has no message "
            f"{self.message or ''}; it has: {', '.join(types) or 'none'}"
        )

    def _add(
        self, pool: DescriptorPool, name: str, schema: RegisteredSchema, given: Container[str]
    ) -> FileDescriptor:
        """Add a file to the pool, after those of libraries that it imports and that are not `given`."""
        serialized = self.registry.serialized(schema.id)
        try:
            file = descriptor_pb2.FileDescriptorProto.FromString(
                base64.b64decode(serialized, validate=True)
            )
        except (binascii.Error, DecodeError) as error:
            raise RegistryError(
                f"registry {self.registry.url}: schema {schema.id} is not a serialized Protobuf file, "
                f"although it was asked for with format=serialized ({error})"
            ) from error
        file.name = name
        known: dict[str, bytes] = {}
        for each in file.dependency:
            if each.startswith(GOOGLE) and each not in given:
                _collect(_generated(each), known)
        try:
            for each, library in known.items():
                if each not in given:
                    pool.AddSerializedFile(library)
            pool.Add(file)
        except TypeError as error:
            raise StrategyError(
                f"Protobuf: schema {schema.id} of {self.registry.url} cannot be used: {error}; "
                "give a generated class"
            ) from error
        return pool.FindFileByName(name)


def _generated(file: str) -> FileDescriptor:
    """Return a file of a library. Raises StrategyError: it is not installed."""
    module = f"{file.removesuffix('.proto').replace('/', '.')}_pb2"
    try:
        descriptor: FileDescriptor = import_module(module).DESCRIPTOR
    except ImportError:
        raise StrategyError(
            f"Protobuf: the schema imports {file}; install the library that has {module} "
            "(googleapis-common-protos has google/type, google/rpc and google/api)"
        ) from None
    return descriptor


def _descriptor(message: type[Message] | Descriptor | ModuleType) -> Descriptor:
    if isinstance(message, Descriptor):
        return message
    found = getattr(message, "DESCRIPTOR", None)
    if isinstance(found, Descriptor):
        return found
    types = getattr(found, "message_types_by_name", None)
    if types is None:
        raise StrategyError(f"Protobuf: {message!r} is not a message type; give a generated class")
    if len(types) != 1:
        raise StrategyError(
            f"Protobuf: {getattr(message, '__name__', message)} has the messages {', '.join(types)}; "
            "give one of the classes"
        )
    return cast("Descriptor", next(iter(types.values())))


def _collect(file: FileDescriptor, found: dict[str, bytes]) -> None:
    """Add the serialized descriptors of a file, and before it those that it imports."""
    for each in file.dependencies:
        if each.name not in found:
            _collect(each, found)
    found[file.name] = file.serialized_pb
