"""What the records of `_schemas` add up to: subjects, their versions, ids, compatibility levels and modes."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from uuid import UUID

import msgspec

from .records import (
    LARGEST,
    ClearSubjectKey,
    ConfigKey,
    ConfigValue,
    DeleteSubjectKey,
    ModeKey,
    ModeValue,
    SchemaKey,
    SchemaValue,
    SubjectVersion,
)
from .schemas.schema_types import AVRO

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .records import Key, Mode, SchemaUse, Value


T = TypeVar("T")


class Identity(NamedTuple):
    """Schemas that are equal in this have the same id."""

    schema_type: str
    text: str
    references: tuple[SchemaUse, ...]


def type_of(value: SchemaValue) -> str:
    """Return the type of a schema: AVRO, JSON or PROTOBUF."""
    return value.schemaType or AVRO


def references_of(value: SchemaValue) -> tuple[SchemaUse, ...]:
    """Return the references of a schema."""
    return value.references or ()


def identity_of(value: SchemaValue) -> Identity:
    """Return the identity of a stored schema."""
    return Identity(type_of(value), value.schema, references_of(value))


def guid_of(identity: Identity) -> str:
    """Return the GUID of a schema, which equal schemas share in every registry of ours."""
    digest = hashlib.md5(msgspec.json.encode(identity), usedforsecurity=False).digest()
    return str(UUID(bytes=digest, version=3))


class RegistryState:
    """The state after all records that were given to `apply`, in the topic's order.

    Attributes:
        configs: by subject, None for the global one.
        modes: likewise.
        max_id: the highest id of any record so far.
    """

    def __init__(self) -> None:
        self.configs: dict[str | None, ConfigValue] = {}
        self.modes: dict[str | None, Mode] = {}
        self.max_id = 0
        self._subjects: dict[str, dict[int, SchemaValue]] = {}
        self._ids: dict[int, dict[tuple[str, int], SchemaValue]] = {}
        self._identities: dict[Identity, dict[tuple[str, int], int]] = {}
        self._guids: dict[str, Identity] = {}
        self._referring: dict[tuple[str, int], dict[tuple[str, int], int]] = {}

    # -- looking up --------------------------------------------------------------------------------

    @property
    def subjects(self) -> list[str]:
        """The names of all subjects, sorted, also of those whose versions are all deleted."""
        return sorted(self._subjects)

    @property
    def schema_count(self) -> int:
        """The number of ids, also of those whose versions are all deleted."""
        return len(self._ids)

    def versions(self, subject: str, *, deleted: bool = False) -> list[SchemaValue]:
        """Return the versions of a subject in order; `deleted`: soft deleted ones too."""
        found = self._subjects.get(subject, {})
        return [found[each] for each in sorted(found) if deleted or not found[each].deleted]

    def version(self, subject: str, version: int) -> SchemaValue | None:
        """Return one version, also if it is soft deleted."""
        return self._subjects.get(subject, {}).get(version)

    @property
    def free_id(self) -> int | None:
        """An id that no schema has: the one after the highest if there is one; None: all are taken."""
        if self.max_id < LARGEST:
            return self.max_id + 1
        return next((each for each in range(1, LARGEST) if each not in self._ids), None)

    def by_id(self, schema_id: int) -> list[SchemaValue]:
        """Return the versions with this id, soft deleted ones too, by subject and version."""
        found = self._ids.get(schema_id, {})
        return [found[each] for each in sorted(found)]

    def id_of(self, identity: Identity) -> int | None:
        """Return the lowest id of an equal schema, which any subject may have."""
        return min(self._identities.get(identity, {}).values(), default=None)

    def id_of_guid(self, guid: str) -> int | None:
        """Return the id of the schema with a GUID."""
        identity = self._guids.get(guid.lower())
        return None if identity is None else self.id_of(identity)

    def referring(self, subject: str, version: int) -> list[int]:
        """Return the ids of the schemas that refer to this version, without soft deleted ones, sorted."""
        return sorted(set(self._referring.get((subject, version), {}).values()))

    def __iter__(self) -> Iterator[SchemaValue]:
        """Yield all versions by subject and version, soft deleted ones too."""
        for subject in self.subjects:
            yield from self.versions(subject, deleted=True)

    # -- changing ----------------------------------------------------------------------------------

    def apply(self, key: Key, value: Value) -> None:
        """Apply one record; a record without a value is a deletion."""
        match key, value:
            case SchemaKey(), SchemaValue():
                self._put(value)
            case SchemaKey(), None:
                self._remove(key.subject, key.version)
            case DeleteSubjectKey(), SubjectVersion():
                for each in self.versions(value.subject):
                    if each.version <= value.version:
                        self._put(msgspec.structs.replace(each, deleted=True))
            case ClearSubjectKey(), SubjectVersion():
                for each in self.versions(value.subject, deleted=True):
                    if each.version <= value.version:
                        self._remove(each.subject, each.version)
            case ConfigKey(), ConfigValue() | None:
                _set(self.configs, key.subject or None, value)
            case ModeKey(), ModeValue() | None:
                _set(self.modes, key.subject or None, None if value is None else value.mode)
            case _:
                pass

    def _put(self, value: SchemaValue) -> None:
        self._remove(value.subject, value.version)
        place = (value.subject, value.version)
        self._subjects.setdefault(value.subject, {})[value.version] = value
        self._ids.setdefault(value.id, {})[place] = value
        identity = identity_of(value)
        if identity not in self._identities:
            self._guids[guid_of(identity)] = identity
        self._identities.setdefault(identity, {})[place] = value.id
        self.max_id = max(self.max_id, value.id)
        if not value.deleted:
            for each in references_of(value):
                if (each.subject, each.version) == place:
                    continue  # only another program writes that, and it could never be deleted
                self._referring.setdefault((each.subject, each.version), {})[place] = value.id

    def _remove(self, subject: str, version: int) -> None:
        place = (subject, version)
        value = self._subjects.get(subject, {}).pop(version, None)
        if value is None:
            return
        if not self._subjects[subject]:
            del self._subjects[subject]
        del self._ids[value.id][place]
        if not self._ids[value.id]:
            del self._ids[value.id]
        identity = identity_of(value)
        del self._identities[identity][place]
        if not self._identities[identity]:
            del self._identities[identity]
            del self._guids[guid_of(identity)]
        for each in references_of(value):
            self._referring.get((each.subject, each.version), {}).pop(place, None)


def _set(settings: dict[str | None, T], subject: str | None, value: T | None) -> None:
    if value is None:
        settings.pop(subject, None)
    else:
        settings[subject] = value
