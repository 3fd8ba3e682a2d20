"""Where `Protobuf` finds its message type: in the program, or in a registry.

A source is picklable: where values are decoded, the module of a generated class may be missing.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Final, cast

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from ...errors import RegistryError, StrategyError

if TYPE_CHECKING:
    from types import ModuleType

    from google.protobuf.descriptor import FileDescriptor
    from google.protobuf.message import Message

    from ..registry.registry import RegisteredSchema, Registry

WELL_KNOWN: Final = "google/protobuf/"
"""Files that every registry has, and every program with Protobuf."""


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
        for name, each in self.registry.references(latest).items():
            self._add(pool, name, each)
        file = self._add(pool, f"{self.subject}.proto", latest)
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

    def _add(self, pool: DescriptorPool, name: str, schema: RegisteredSchema) -> FileDescriptor:
        """Add a file to the pool, after the well-known ones that it imports."""
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
            if each.startswith(WELL_KNOWN):
                _collect(descriptor_pool.Default().FindFileByName(each), known)
        for well_known in known.values():
            pool.AddSerializedFile(well_known)
        pool.Add(file)
        return pool.FindFileByName(name)


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
