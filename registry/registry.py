"""The registry's operations: register, look up, check, delete and configure, by the rules of Confluent's."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, TypeVar

import anyio
import msgspec
import structlog
from anyio import to_thread
from msgspec import UNSET, Meta

from .error_codes import (
    INCOMPATIBLE,
    NOT_PERMITTED,
    REFERENCE_EXISTS,
    SUBJECT_NOT_SOFT_DELETED,
    SUBJECT_SOFT_DELETED,
    VERSION_NOT_SOFT_DELETED,
    VERSION_SOFT_DELETED,
    RequestRefused,
    invalid_schema,
    schema_not_found,
    subject_not_found,
    version_not_found,
)
from .records import (
    LARGEST,
    ConfigKey,
    ConfigValue,
    DeleteSubjectKey,
    Mode,
    ModeKey,
    ModeValue,
    SchemaKey,
    SchemaUse,
    SchemaValue,
    SubjectVersion,
)
from .schemas.compatibility import Earlier, Level, incompatibilities
from .schemas.schema_types import AVRO, Dependency, ParsedSchema, parse_schema
from .state import RegistryState, identity_of, references_of, type_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from .records import Key, Value
    from .schemas_topic import SchemasTopic


logger = structlog.get_logger(__name__)

LATEST: Final = -1
"""The version that stands for the latest one."""
_MOST_REASON: Final = 300  # characters
_MOST_NESTED: Final = 100  # references to schemas that have references
_REFERRED_CHARACTERS: Final = 8 * 1024 * 1024
_PARSED_CHARACTERS: Final = 4 * 1024 * 1024
T = TypeVar("T")


class SchemaRequest(msgspec.Struct, frozen=True):
    """A schema as a client sends it; the fields that may only be null belong to features of Confluent's."""

    schema: str = ""
    schemaType: str | None = None  # noqa: N815  names of the API
    references: tuple[SchemaUse, ...] | None = None
    metadata: object = None
    ruleSet: object = None  # noqa: N815
    id: Annotated[int, Meta(ge=-1)] | None = None
    version: Annotated[int, Meta(ge=-1)] | None = None


class _Checked(NamedTuple):
    """A request's schema after parsing: `value` has no subject, version and id yet."""

    value: SchemaValue
    parsed: ParsedSchema


class RegistryStore:
    """The registry; used in the event loop.

    Methods that change something change it one at a time, and return when the change is as durable as an
    acknowledged record. All raise RequestRefused.
    """

    def __init__(self, state: RegistryState, topic: SchemasTopic) -> None:
        """`topic` is open and feeds `state`."""
        self._state = state
        self._topic = topic
        self._changing = anyio.Lock()
        self._computing = anyio.CapacityLimiter(1)
        self._cache = _ParsedSchemas()

    @property
    def state(self) -> RegistryState:
        """The state now."""
        self._topic.check()
        return self._state

    # -- schemas -----------------------------------------------------------------------------------

    async def register(self, subject: str, request: SchemaRequest, *, normalize: bool) -> int:
        """Register a schema, unless the subject has it; return its id."""
        for name, number in (("id", request.id), ("version", request.version)):
            if number is not None and number > 0:
                raise RequestRefused(
                    NOT_PERMITTED, f"{name} {number}: this registry chooses the {name}"
                )
        checked = await self._check(subject, request, normalize=normalize)
        async with self._change(subject):
            state = self.state
            identity = identity_of(checked.value)
            for each in reversed(state.versions(subject)):
                if identity_of(each) == identity:
                    return each.id
            found = await self._incompatibilities(subject, checked, state.versions(subject))
            if found:
                raise RequestRefused(
                    INCOMPATIBLE,
                    "Schema being registered is incompatible with an earlier schema for subject"
                    f' "{subject}", details: [{", ".join(found)}]',
                )
            value = self._numbered(subject, checked.value)
            await self._topic.append([(SchemaKey(subject, value.version), value)])
            return value.id

    async def look_up(
        self, subject: str, request: SchemaRequest, *, normalize: bool, deleted: bool
    ) -> SchemaValue:
        """Return the version of the subject that has this schema; `deleted`: also a soft deleted one."""
        checked = await self._check(subject, request, normalize=normalize)
        versions = self.state.versions(subject, deleted=deleted)
        if not versions:
            raise subject_not_found(subject)
        identity = identity_of(checked.value)
        for each in reversed(versions):
            if identity_of(each) == identity:
                return each
        raise schema_not_found()

    async def check(
        self, subject: str, version: int | None, request: SchemaRequest, *, normalize: bool
    ) -> list[str]:
        """Return why the schema may not be registered after this version, or None: after the versions that
        the subject's level names. Empty if it may."""
        checked = await self._check(subject, request, normalize=normalize)
        versions = self.state.versions(subject)
        if version is not None:
            chosen = versions[-1:]
            if version != LATEST:
                chosen = [each for each in versions if each.version == version]
                if not chosen:
                    raise version_not_found(version) if versions else subject_not_found(subject)
            versions = chosen
        return await self._incompatibilities(subject, checked, versions)

    def get(self, subject: str, version: int, *, deleted: bool = False) -> SchemaValue:
        """Return a version, or the latest; `deleted`: also a soft deleted one."""
        versions = self.state.versions(subject, deleted=deleted)
        if not versions:
            raise subject_not_found(subject)
        if version == LATEST:
            return versions[-1]
        for each in versions:
            if each.version == version:
                return each
        raise version_not_found(version)

    async def serialized(self, value: SchemaValue) -> str | None:
        """Return the binary form of a schema in base64; None if its type has none."""
        parsed = await self._parsed(type_of(value), value.schema, references_of(value))
        return await self._in_thread(parsed.serialized)

    # -- deleting ----------------------------------------------------------------------------------

    async def delete_version(self, subject: str, version: int, *, permanent: bool) -> int:
        """Delete one version, or the latest; permanently only if it is soft deleted; return it."""
        async with self._change(subject):
            value = self.get(subject, version, deleted=permanent or version != LATEST)
            self._check_unreferenced([value])
            name = f"Subject '{subject}' Version {value.version} was"
            key = SchemaKey(subject, value.version)
            if permanent and not value.deleted:
                raise RequestRefused(
                    VERSION_NOT_SOFT_DELETED,
                    f"{name} not deleted first before being permanently deleted",
                )
            if value.deleted and not permanent:
                raise RequestRefused(
                    VERSION_SOFT_DELETED,
                    f"{name} soft deleted.Set permanent=true to delete permanently",
                )
            records: list[tuple[Key, Value]] = [(key, None if permanent else _deleted(value))]
            if len(self.state.versions(subject, deleted=permanent)) == 1:
                records += self._without_settings(subject)
            await self._topic.append(records)
            return value.version

    async def delete_subject(self, subject: str, *, permanent: bool) -> list[int]:
        """Delete all versions of a subject; permanently only if all are soft deleted; return them."""
        async with self._change(subject):
            everything = self.state.versions(subject, deleted=True)
            active = self.state.versions(subject)
            if not everything:
                raise subject_not_found(subject)
            if permanent and active:
                raise RequestRefused(
                    SUBJECT_NOT_SOFT_DELETED,
                    f"Subject '{subject}' was not deleted first before being permanently deleted",
                )
            if not permanent and not active:
                raise RequestRefused(
                    SUBJECT_SOFT_DELETED,
                    f"Subject '{subject}' was soft deleted.Set permanent=true to delete permanently",
                )
            gone = everything if permanent else active
            self._check_unreferenced(gone)
            records: list[tuple[Key, Value]]
            if permanent:
                records = [(SchemaKey(subject, each.version), None) for each in gone]
                records.append((DeleteSubjectKey(subject), None))
            else:
                last = SubjectVersion(subject, gone[-1].version)
                records = [(DeleteSubjectKey(subject), last)]
            await self._topic.append([*records, *self._without_settings(subject)])
            return [each.version for each in gone]

    # -- settings ----------------------------------------------------------------------------------

    def level(self, subject: str) -> Level:
        """Return the compatibility level that applies to a subject: its own or the global one."""
        for name in (subject, None):
            config = self.state.configs.get(name)
            if config is not None and config.compatibilityLevel:
                return config.compatibilityLevel
        return Level.BACKWARD

    def mode(self, subject: str | None) -> Mode:
        """Return the mode that applies to a subject: its own or the global one."""
        modes = self.state.modes
        return modes.get(subject) or modes.get(None) or Mode.READWRITE

    async def set_config(self, subject: str | None, config: ConfigValue) -> None:
        """Set the compatibility level of a subject, or the global one; unset fields keep their values."""
        async with self._change(subject):
            before = self.state.configs.get(subject) or ConfigValue()
            merged = ConfigValue(
                subject=subject or UNSET,
                normalize=before.normalize if config.normalize is None else config.normalize,
                compatibilityLevel=config.compatibilityLevel or before.compatibilityLevel,
            )
            await self._topic.append([(ConfigKey(subject or UNSET), merged)])

    async def delete_config(self, subject: str | None) -> ConfigValue:
        """Delete a subject's own level, or reset the global one; return it as it was."""
        async with self._change(subject):
            before = self.state.configs.get(subject)
            if before is None:
                if subject is not None:
                    raise subject_not_found(subject)
                return ConfigValue(compatibilityLevel=Level.BACKWARD)
            await self._topic.append([(ConfigKey(subject or UNSET), None)])
            return before

    async def set_mode(self, subject: str | None, mode: Mode) -> None:
        """Set the mode of a subject, or the global one."""
        async with self._change(subject, mode=True):
            value = ModeValue(subject=subject or UNSET, mode=mode)
            await self._topic.append([(ModeKey(subject or UNSET), value)])

    async def delete_mode(self, subject: str) -> Mode:
        """Delete a subject's own mode; return it."""
        async with self._change(subject, mode=True):
            before = self.state.modes.get(subject)
            if before is None:
                raise subject_not_found(subject)
            await self._topic.append([(ModeKey(subject), None)])
            return before

    # -- parts -------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _change(self, subject: str | None, *, mode: bool = False) -> AsyncIterator[None]:
        """Change something, one at a time and knowing all that was changed; a `mode` even if read-only."""
        async with self._changing:
            await self._topic.catch_up()
            if not mode:
                self._check_writable(subject)
            yield

    async def _check(self, subject: str, request: SchemaRequest, *, normalize: bool) -> _Checked:
        """Parse a request's schema and bring it into the form in which it is stored and compared."""
        for name in ("metadata", "ruleSet"):
            if getattr(request, name):
                raise RequestRefused(NOT_PERMITTED, f"{name}: this registry has no such thing")
        schema_type = request.schemaType or AVRO
        references = tuple(self._resolved(each) for each in request.references or ())
        parsed = await self._parsed(schema_type, request.schema, references)
        normalize = normalize or self._normalizes(subject)
        text = await self._in_thread(lambda: parsed.normalized() if normalize else parsed.text)
        if any("\ud800" <= each <= "\udfff" for each in text):
            raise invalid_schema("it has a lone surrogate, which is no text")
        if normalize:
            references = tuple(sorted(references, key=lambda each: each.name))
        value = SchemaValue(
            subject="",
            version=1,
            id=0,
            schemaType=UNSET if schema_type == AVRO else schema_type,
            references=references or UNSET,
            schema=text,
        )
        return _Checked(value, parsed)

    def _normalizes(self, subject: str) -> bool:
        configs = (self.state.configs.get(name) for name in (subject, None))
        return next((bool(each.normalize) for each in configs if each and each.normalize), False)

    def _resolved(self, reference: SchemaUse) -> SchemaUse:
        """Return the reference with the number of its version."""
        if reference.version != LATEST:
            return reference
        versions = self.state.versions(reference.subject)
        if not versions:
            raise _missing(reference)
        return SchemaUse(reference.name, reference.subject, versions[-1].version)

    async def _parsed(
        self, schema_type: str, text: str, references: Sequence[SchemaUse]
    ) -> ParsedSchema:
        found: dict[str, str] = {}
        self._collect(references, found, set())
        dependencies = tuple(Dependency(*each) for each in found.items())
        if (size := _size("", dependencies)) > _REFERRED_CHARACTERS:
            raise invalid_schema(f"it refers to {size} characters of other schemas")
        return await self._in_thread(lambda: self._cache.parse(schema_type, text, dependencies))

    def _collect(
        self, references: Iterable[SchemaUse], found: dict[str, str], inside: set[tuple[str, int]]
    ) -> None:
        """Add the texts of the references to `found`, each after those that it refers to.

        `inside`: the subjects and versions whose references these are.
        """
        for each in references:
            place = (each.subject, each.version)
            if each.name in found:
                continue
            if place in inside or len(inside) >= _MOST_NESTED:
                raise invalid_schema(
                    f'subject "{each.subject}" version {each.version} refers to itself, or through too'
                    " many others"
                )
            value = self.state.version(*place)
            if value is None:
                raise _missing(each)
            self._collect(references_of(value), found, inside | {place})
            found[each.name] = value.schema

    async def _incompatibilities(
        self, subject: str, checked: _Checked, versions: Sequence[SchemaValue]
    ) -> list[str]:
        level = self.level(subject)
        if level is Level.NONE:
            return []
        earlier = [
            Earlier(
                each.version,
                type_of(each),
                await self._parsed(type_of(each), each.schema, references_of(each)),
            )
            for each in (versions if level.transitive else versions[-1:])
        ]
        return await self._in_thread(
            lambda: incompatibilities(level, type_of(checked.value), checked.parsed, earlier)
        )

    def _numbered(self, subject: str, value: SchemaValue) -> SchemaValue:
        """Return the value with its subject, version and id."""
        state = self._state
        version = (
            max((each.version for each in state.versions(subject, deleted=True)), default=0) + 1
        )
        schema_id = state.id_of(identity_of(value)) or state.free_id
        if version > LARGEST or schema_id is None:
            raise RequestRefused(
                NOT_PERMITTED, f"no version or no id is left for subject {subject}"
            )
        return msgspec.structs.replace(value, subject=subject, version=version, id=schema_id)

    def _check_writable(self, subject: str | None) -> None:
        mode = self.mode(subject)
        if Mode.READONLY_OVERRIDE in (mode, self.mode(None)) or mode is Mode.READONLY:
            name = "The registry" if subject is None else f"Subject {subject}"
            raise RequestRefused(NOT_PERMITTED, f"{name} is in read-only mode")

    def _check_unreferenced(self, values: Sequence[SchemaValue]) -> None:
        for each in values:
            if self._state.referring(each.subject, each.version):
                raise RequestRefused(
                    REFERENCE_EXISTS,
                    f"One or more references exist to the schema {{subject={each.subject},"
                    f"version={each.version}}}.",
                )

    def _without_settings(self, subject: str) -> list[tuple[Key, Value]]:
        """Return the records that delete the subject's own level and mode."""
        records: list[tuple[Key, Value]] = []
        if subject in self._state.configs:
            records.append((ConfigKey(subject), None))
        if subject in self._state.modes:
            records.append((ModeKey(subject), None))
        return records

    async def _in_thread(self, compute: Callable[[], T]) -> T:
        """Compute with a schema in a thread. Exceptions of the schema's library become RequestRefused."""

        def attempt() -> T:
            try:
                return compute()
            except RequestRefused:
                raise
            except RecursionError:
                raise invalid_schema("it is nested too deeply") from None
            except Exception as error:  # noqa: BLE001  libraries raise anything for a wrong schema
                reason = repr(error)[:_MOST_REASON]
                logger.warning("a schema is refused that its library does not take", reason=reason)
                raise invalid_schema(f"it cannot be used: {reason}") from None

        return await to_thread.run_sync(attempt, limiter=self._computing)


class _ParsedSchemas:
    """The schemas that were used last, parsed: they take many times their text. For one thread at a time."""

    def __init__(self) -> None:
        self._parsed: OrderedDict[tuple[str, str, tuple[Dependency, ...]], ParsedSchema] = (
            OrderedDict()
        )
        self._characters = 0

    def parse(
        self, schema_type: str, text: str, dependencies: tuple[Dependency, ...]
    ) -> ParsedSchema:
        """Do the same as `parse_schema`."""
        key = (schema_type, text, dependencies)
        found = self._parsed.get(key)
        if found is not None:
            self._parsed.move_to_end(key)
            return found
        parsed = self._parsed[key] = parse_schema(schema_type, text, dependencies)
        self._characters += _size(text, dependencies)
        while self._characters > _PARSED_CHARACTERS and len(self._parsed) > 1:
            (_, old, its_dependencies), _ = self._parsed.popitem(last=False)
            self._characters -= _size(old, its_dependencies)
        return parsed


def _size(text: str, dependencies: Iterable[Dependency]) -> int:
    return len(text) + sum(len(each.text) for each in dependencies)


def _deleted(value: SchemaValue) -> SchemaValue:
    return msgspec.structs.replace(value, deleted=True)


def _missing(reference: SchemaUse) -> RequestRefused:
    return invalid_schema(
        f'no schema reference found for subject "{reference.subject}" and version {reference.version}'
    )
