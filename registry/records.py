"""The records of the topic `_schemas`, in Confluent's JSON: another registry can read and continue the topic.

A key's fields are in Confluent's order, because compaction compares keys byte by byte. Kinds of keys that are
not listed here, values out of range and unknown fields are ignored.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from .schemas.compatibility import Level  # noqa: TC001  msgspec reads the annotations at run time

LARGEST: Final = 2**31 - 1
"""The largest id, and the largest version."""

Id: TypeAlias = Annotated[int, Meta(ge=0, le=LARGEST)]
Version: TypeAlias = Annotated[int, Meta(ge=1, le=LARGEST)]


class Mode(StrEnum):
    """What a subject accepts."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"
    READONLY_OVERRIDE = "READONLY_OVERRIDE"


class UnknownRecord(Exception):
    """The key or the value is not of a known kind."""


class SchemaKey(msgspec.Struct, frozen=True, tag_field="keytype", tag="SCHEMA"):
    """The key of a version of a subject."""

    subject: str
    version: Version
    magic: int = 1


class ConfigKey(msgspec.Struct, frozen=True, tag_field="keytype", tag="CONFIG"):
    """The key of a compatibility level; without a subject, the global one."""

    subject: str | UnsetType | None = UNSET
    magic: int = 0


class ModeKey(msgspec.Struct, frozen=True, tag_field="keytype", tag="MODE"):
    """The key of a mode; without a subject, the global one."""

    subject: str | UnsetType | None = UNSET
    magic: int = 0


class DeleteSubjectKey(msgspec.Struct, frozen=True, tag_field="keytype", tag="DELETE_SUBJECT"):
    """The key of a soft deletion of all versions of a subject up to one."""

    subject: str
    magic: int = 0


class ClearSubjectKey(msgspec.Struct, frozen=True, tag_field="keytype", tag="CLEAR_SUBJECT"):
    """The key of a permanent deletion of all versions of a subject up to one; we only read it."""

    subject: str
    magic: int = 0


class NoopKey(msgspec.Struct, frozen=True, tag_field="keytype", tag="NOOP"):
    """The key of a record that another registry writes to find the end of the topic."""

    magic: int = 0


class SchemaUse(msgspec.Struct, frozen=True):
    """A schema that another one uses under `name`; in a request, version -1 is the latest."""

    name: str
    subject: str
    version: Annotated[int, Meta(ge=-1, le=LARGEST)]


class SchemaValue(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a subject. The type is unset for Avro."""

    subject: str
    version: Version
    id: Id
    schemaType: str | UnsetType | None = UNSET  # noqa: N815  names of the format
    references: tuple[SchemaUse, ...] | UnsetType | None = UNSET
    schema: str
    deleted: bool = False


class ConfigValue(msgspec.Struct, frozen=True, kw_only=True):
    """A compatibility level, and whether schemas are normalized before they are compared."""

    subject: str | UnsetType | None = UNSET
    normalize: bool | UnsetType | None = UNSET
    compatibilityLevel: Level | UnsetType | None = UNSET  # noqa: N815


class ModeValue(msgspec.Struct, frozen=True, kw_only=True):
    """A mode."""

    subject: str | UnsetType | None = UNSET
    mode: Mode


class SubjectVersion(msgspec.Struct, frozen=True):
    """A version of a subject: all up to it are deleted."""

    subject: str
    version: Version


Key: TypeAlias = SchemaKey | ConfigKey | ModeKey | DeleteSubjectKey | ClearSubjectKey | NoopKey
Value: TypeAlias = SchemaValue | ConfigValue | ModeValue | SubjectVersion | None

_VALUES: dict[type[Any], type[SchemaValue | ConfigValue | ModeValue | SubjectVersion]] = {
    SchemaKey: SchemaValue,
    ConfigKey: ConfigValue,
    ModeKey: ModeValue,
    DeleteSubjectKey: SubjectVersion,
    ClearSubjectKey: SubjectVersion,
}
_KEYS: msgspec.json.Decoder[Key] = msgspec.json.Decoder(Key)


def encode_record(key: Key, value: Value) -> tuple[bytes, bytes | None]:
    """Return the key and the value of a record; the value is None for a deletion."""
    return msgspec.json.encode(key), None if value is None else msgspec.json.encode(value)


def decode_record(key: bytes | None, value: bytes | None) -> tuple[Key, Value]:
    """Read a record of the topic. Raises UnknownRecord."""
    try:
        found = _KEYS.decode(key or b"")
        kind = _VALUES.get(type(found))
        if value is None or kind is None:
            return found, None
        return found, msgspec.json.decode(value, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnknownRecord(str(error)) from error
