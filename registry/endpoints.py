"""Confluent's REST API: paths, parameters and answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar
from urllib.parse import unquote

import anyio
import msgspec
from starlette.routing import Route

from .error_codes import (
    INVALID_LEVEL,
    INVALID_MODE,
    INVALID_SUBJECT,
    INVALID_VERSION,
    LEVEL_NOT_CONFIGURED,
    MODE_NOT_CONFIGURED,
    NOT_PERMITTED,
    TOO_BUSY,
    TOO_LARGE,
    RequestRefused,
    schema_not_found,
    subject_not_found,
)
from .records import LARGEST, ConfigValue, Mode
from .registry import LATEST, RegistryStore, SchemaRequest
from .schemas.compatibility import Level
from .schemas.schema_types import SCHEMA_TYPES
from .state import guid_of, identity_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from .records import SchemaValue


ANSWERS: Final = "application/vnd.schemaregistry.v1+json"
"""The content type of answers, unless the client asks for `application/json`."""
_REQUESTS: Final = frozenset(
    (
        ANSWERS,
        "application/vnd.schemaregistry+json",
        "application/json",
        "application/octet-stream",
        "",
    )
)
MOST_BODY_BYTES: Final = 4 * 1024 * 1024
MOST_BODIES_BYTES: Final = 32 * 1024 * 1024
"""Of all requests that are being received."""
_BODY_SECONDS: Final = 30
_CONTEXT: Final = "."
_LEVELS: Final = (
    "Invalid compatibility level. Valid values are none, backward, forward, full, backward_transitive,"
    " forward_transitive, and full_transitive"
)

Body = TypeVar("Body", bound=msgspec.Struct)
Answer: TypeAlias = object
"""The result of an endpoint: bytes are sent as they are, other values as JSON."""


class _LevelRequest(msgspec.Struct, frozen=True):
    compatibility: str | None = None
    normalize: bool | None = None
    alias: object = None
    compatibilityGroup: object = None  # noqa: N815  names of the API
    compatibilityPolicy: object = None  # noqa: N815
    defaultMetadata: object = None  # noqa: N815
    overrideMetadata: object = None  # noqa: N815
    defaultRuleSet: object = None  # noqa: N815
    overrideRuleSet: object = None  # noqa: N815


class _ModeRequest(msgspec.Struct, frozen=True):
    mode: str = ""


class Bodies:
    """Counts the bytes of the bodies that are being received or handled."""

    def __init__(self) -> None:
        self.used = 0

    def add(self, size: int) -> None:
        """Count more bytes. Raises RequestRefused if there are too many."""
        self.used += size
        if self.used > MOST_BODIES_BYTES:
            raise RequestRefused(
                TOO_BUSY, "the registry is handling too many large requests; try again"
            )


class EndpointCall:
    """One request."""

    def __init__(self, request: Request, registry: RegistryStore, bodies: Bodies) -> None:
        self.registry = registry
        self._request = request
        self._bodies = bodies
        self._body_bytes = 0

    def end(self) -> None:
        """Give the memory of the body back."""
        self._bodies.used -= self._body_bytes

    @property
    def subject(self) -> str:
        """The subject in the path. Raises RequestRefused if it is not a valid name."""
        subject = unquote(self._request.path_params["subject"])
        if not subject or any(ord(each) < 0x20 for each in subject):
            raise RequestRefused(
                INVALID_SUBJECT, f"The specified subject {subject!r} is not valid."
            )
        return subject

    @property
    def version(self) -> int:
        """The version in the path. Raises RequestRefused if it is neither a number nor `latest`."""
        text = self._request.path_params["version"]
        if text in ("latest", str(LATEST)):
            return LATEST
        version = _number(text)
        if version is None or version < 1:
            raise RequestRefused(
                INVALID_VERSION,
                f"The specified version '{text}' is not a valid version id. Allowed values are between"
                ' [1, 2^31-1] and the string "latest"',
            )
        return version

    @property
    def id(self) -> int:
        """The id in the path. Raises RequestRefused if it is no number."""
        found = _number(self._request.path_params["id"])
        if found is None:
            raise RequestRefused(404, "HTTP 404 Not Found")
        return found

    @property
    def guid(self) -> str:
        """The GUID in the path."""
        return str(self._request.path_params["guid"])

    def flag(self, name: str) -> bool:
        """Return a parameter of the query that is true or false; False without it."""
        return self.text(name).lower() == "true"

    def text(self, name: str) -> str:
        """Return a parameter of the query; "" without it."""
        return self._request.query_params.get(name, "")

    def page(self, found: Sequence[Any]) -> Sequence[Any]:
        """Return the part of a list that the parameters `offset` and `limit` ask for."""
        try:
            offset = int(self.text("offset") or 0)
            limit = int(self.text("limit") or -1)
        except ValueError:
            raise RequestRefused(404, "HTTP 404 Not Found") from None
        rest = found[max(0, offset) :]
        return rest if limit < 0 else rest[:limit]

    async def body(self, kind: type[Body]) -> Body:
        """Decode the request's body. Raises RequestRefused."""
        content_type = self._request.headers.get("content-type", "").partition(";")[0].strip()
        if content_type.lower() not in _REQUESTS:
            raise RequestRefused(415, f"HTTP 415 Unsupported Media Type: {content_type}")
        try:
            with anyio.fail_after(_BODY_SECONDS):
                data = await self._received()
        except TimeoutError:
            raise RequestRefused(
                408, f"the body did not arrive in {_BODY_SECONDS} seconds"
            ) from None
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RequestRefused(400, f"the body is not a valid request: {error}") from error
        except RecursionError:
            raise RequestRefused(400, "the body is nested too deeply") from None

    async def _received(self) -> bytearray:
        data = bytearray()
        async for chunk in self._request.stream():
            self._body_bytes += len(chunk)
            self._bodies.add(len(chunk))
            data += chunk
            if len(data) > MOST_BODY_BYTES:
                raise RequestRefused(TOO_LARGE, f"the body has more than {MOST_BODY_BYTES} bytes")
        return data

    async def schema(self) -> SchemaRequest:
        """Decode a body that holds a schema. Raises RequestRefused."""
        return await self.body(SchemaRequest)


def _number(text: str) -> int | None:
    """Return the number in a path, if it may be an id or a version."""
    if not text.isascii() or not text.isdigit() or len(text.lstrip("0")) > len(str(LARGEST)):
        return None
    number = int(text)
    return number if number <= LARGEST else None


Endpoint: TypeAlias = "Callable[[EndpointCall], Awaitable[Answer]]"
Handler: TypeAlias = "Callable[[Request], Awaitable[Response]]"


# -- subjects --------------------------------------------------------------------------------------


async def _subjects(call: EndpointCall) -> Answer:
    state, prefix = call.registry.state, call.text("subjectPrefix")
    deleted, only = call.flag("deleted"), call.flag("deletedOnly")
    found = []
    for subject in state.subjects:
        active = bool(state.versions(subject))
        if _in_default_context(subject, prefix) and (not active if only else deleted or active):
            found.append(subject)
    return call.page(found)


async def _look_up(call: EndpointCall) -> Answer:
    found = await call.registry.look_up(
        call.subject,
        await call.schema(),
        normalize=call.flag("normalize"),
        deleted=call.flag("deleted"),
    )
    return await _entity(call, found)


async def _delete_subject(call: EndpointCall) -> Answer:
    return await call.registry.delete_subject(call.subject, permanent=call.flag("permanent"))


async def _versions(call: EndpointCall) -> Answer:
    deleted, only = call.flag("deleted"), call.flag("deletedOnly")
    versions = call.registry.state.versions(call.subject, deleted=deleted or only)
    if not versions:
        raise subject_not_found(call.subject)
    return call.page([each.version for each in versions if each.deleted or not only])


async def _register(call: EndpointCall) -> Answer:
    request = await call.schema()
    normalize = call.flag("normalize")
    number = await call.registry.register(call.subject, request, normalize=normalize)
    of_id = call.registry.state.by_id(number)
    return {"id": number} | ({"guid": guid_of(identity_of(of_id[0]))} if of_id else {})


async def _version(call: EndpointCall) -> Answer:
    found = call.registry.get(call.subject, call.version, deleted=call.flag("deleted"))
    return await _entity(call, found)


async def _version_text(call: EndpointCall) -> Answer:
    found = call.registry.get(call.subject, call.version, deleted=call.flag("deleted"))
    return found.schema.encode()


async def _referenced_by(call: EndpointCall) -> Answer:
    value = call.registry.get(call.subject, call.version, deleted=True)
    return call.registry.state.referring(value.subject, value.version)


async def _delete_version(call: EndpointCall) -> Answer:
    return await call.registry.delete_version(
        call.subject, call.version, permanent=call.flag("permanent")
    )


# -- schemas ---------------------------------------------------------------------------------------


async def _schemas(call: EndpointCall) -> Answer:
    state, prefix = call.registry.state, call.text("subjectPrefix")
    deleted, latest = call.flag("deleted"), call.flag("latestOnly")
    found: list[SchemaValue] = []
    for subject in state.subjects:
        if _in_default_context(subject, prefix):
            versions = state.versions(subject, deleted=deleted)
            found += versions[-1:] if latest else versions
    return [await _entity(call, each) for each in call.page(found)]


async def _types(call: EndpointCall) -> Answer:
    del call
    return SCHEMA_TYPES


async def _schema(call: EndpointCall) -> Answer:
    value = _of_id(call)[0]
    entity = await _entity(call, value)
    for field in ("subject", "version", "id", "guid"):
        del entity[field]
    if call.flag("fetchMaxId"):
        entity["maxId"] = call.registry.state.max_id
    return entity


async def _schema_of_guid(call: EndpointCall) -> Answer:
    (value, *_) = call.registry.state.by_id(_id_of_guid(call))
    entity = await _entity(call, value)
    del entity["subject"], entity["version"]
    return entity


async def _ids_of_guid(call: EndpointCall) -> Answer:
    return [{"context": ".", "id": _id_of_guid(call)}]


def _id_of_guid(call: EndpointCall) -> int:
    found = call.registry.state.id_of_guid(call.guid)
    if found is None:
        raise schema_not_found(call.guid)
    return found


async def _schema_text(call: EndpointCall) -> Answer:
    entity = await _entity(call, _of_id(call)[0])
    return str(entity["schema"]).encode()


async def _schema_subjects(call: EndpointCall) -> Answer:
    return call.page(sorted({each.subject for each in _visible(call)}))


async def _schema_versions(call: EndpointCall) -> Answer:
    return call.page(
        [{"subject": each.subject, "version": each.version} for each in _visible(call)]
    )


def _of_id(call: EndpointCall) -> list[SchemaValue]:
    found = call.registry.state.by_id(call.id)
    if not found:
        raise schema_not_found(call.id)
    return found


def _visible(call: EndpointCall) -> list[SchemaValue]:
    """Return the versions with the id in the path, without soft deleted ones unless asked for."""
    deleted, subject = call.flag("deleted"), call.text("subject")
    return [
        each
        for each in _of_id(call)
        if (deleted or not each.deleted) and subject in ("", each.subject)
    ]


async def _entity(call: EndpointCall, value: SchemaValue) -> dict[str, Any]:
    """Return a version as the API shows it, without empty fields."""
    text = value.schema
    if call.text("format") == "serialized":
        text = await call.registry.serialized(value) or text
    fields = {
        "subject": value.subject,
        "version": value.version,
        "id": value.id,
        "guid": guid_of(identity_of(value)),
        "schemaType": value.schemaType,
        "references": value.references,
        "schema": text,
        "deleted": value.deleted or None,
    }
    return {name: field for name, field in fields.items() if field}


# -- compatibility ---------------------------------------------------------------------------------


async def _check(call: EndpointCall) -> Answer:
    return await _compatible(call, call.version)


async def _check_all(call: EndpointCall) -> Answer:
    return await _compatible(call, None)


async def _compatible(call: EndpointCall, version: int | None) -> Answer:
    request, normalize = await call.schema(), call.flag("normalize")
    found = await call.registry.check(call.subject, version, request, normalize=normalize)
    answer: dict[str, object] = {"is_compatible": not found}
    if call.flag("verbose"):
        answer["messages"] = found
    return answer


# -- compatibility levels and modes ----------------------------------------------------------------


async def _global_config(call: EndpointCall) -> Answer:
    return _config(call.registry.state.configs.get(None))


async def _subject_config(call: EndpointCall) -> Answer:
    configs, subject = call.registry.state.configs, call.subject
    if subject in configs:
        return _config(configs[subject])
    if call.flag("defaultToGlobal"):
        return _config(configs.get(None))
    raise RequestRefused(
        LEVEL_NOT_CONFIGURED,
        f"Subject '{subject}' does not have subject-level compatibility configured",
    )


async def _set_global_config(call: EndpointCall) -> Answer:
    return await _set_config(call, None)


async def _set_subject_config(call: EndpointCall) -> Answer:
    return await _set_config(call, call.subject)


async def _set_config(call: EndpointCall, subject: str | None) -> Answer:
    request = await call.body(_LevelRequest)
    level = (request.compatibility or "").upper()
    unknown = [
        name
        for name, value in msgspec.structs.asdict(request).items()
        if value is not None and name not in ("compatibility", "normalize")
    ]
    if unknown:
        raise RequestRefused(
            NOT_PERMITTED, f"{', '.join(unknown)}: this registry has no such setting"
        )
    if level not in ("" if request.normalize is not None else None, *Level):
        raise RequestRefused(INVALID_LEVEL, _LEVELS)
    chosen = Level(level) if level else None
    config = ConfigValue(normalize=request.normalize, compatibilityLevel=chosen)
    await call.registry.set_config(subject, config)
    answer = {"compatibility": level or None, "normalize": request.normalize}
    return {name: value for name, value in answer.items() if value is not None}


async def _delete_global_config(call: EndpointCall) -> Answer:
    return _config(await call.registry.delete_config(None))


async def _delete_subject_config(call: EndpointCall) -> Answer:
    return _config(await call.registry.delete_config(call.subject))


def _config(config: ConfigValue | None) -> Answer:
    config = config or ConfigValue()
    answer: dict[str, object] = {
        "compatibilityLevel": config.compatibilityLevel or Level.BACKWARD.value
    }
    return answer | ({"normalize": True} if config.normalize else {})


async def _global_mode(call: EndpointCall) -> Answer:
    return {"mode": call.registry.mode(None)}


async def _subject_mode(call: EndpointCall) -> Answer:
    subject = call.subject
    if subject in call.registry.state.modes or call.flag("defaultToGlobal"):
        return {"mode": call.registry.mode(subject)}
    raise RequestRefused(
        MODE_NOT_CONFIGURED, f"Subject '{subject}' does not have subject-level mode configured"
    )


async def _set_global_mode(call: EndpointCall) -> Answer:
    return await _set_mode(call, None)


async def _set_subject_mode(call: EndpointCall) -> Answer:
    return await _set_mode(call, call.subject)


async def _set_mode(call: EndpointCall, subject: str | None) -> Answer:
    name = (await call.body(_ModeRequest)).mode.upper()
    if name not in list(Mode):
        raise RequestRefused(
            INVALID_MODE,
            f"Invalid mode. Valid values are {', '.join(each.lower() for each in Mode)}",
        )
    await call.registry.set_mode(subject, Mode(name))
    return {"mode": name}


async def _delete_mode(call: EndpointCall) -> Answer:
    return {"mode": await call.registry.delete_mode(call.subject)}


# -- the registry itself ---------------------------------------------------------------------------


async def _root(call: EndpointCall) -> Answer:
    del call
    return {}


async def _contexts(call: EndpointCall) -> Answer:
    return call.page([_CONTEXT])


def _in_default_context(subject: str, prefix: str) -> bool:
    """Whether a listing with this prefix shows the subject; `:*:` stands for every context."""
    return subject.startswith(prefix.removeprefix(":*:").removeprefix(":.:"))


_SUBJECT: Final = "/subjects/{subject}"
_VERSION: Final = f"{_SUBJECT}/versions/{{version}}"
_BY_ID: Final = "/schemas/ids/{id}"
_BY_GUID: Final = "/schemas/guids/{guid}"
_COMPATIBILITY: Final = "/compatibility/subjects/{subject}/versions"

_READING: Final[tuple[tuple[str, str, Endpoint], ...]] = (
    ("GET", "/", _root),
    ("GET", "/subjects", _subjects),
    ("POST", _SUBJECT, _look_up),
    ("GET", f"{_SUBJECT}/versions", _versions),
    ("GET", _VERSION, _version),
    ("GET", f"{_VERSION}/schema", _version_text),
    ("GET", f"{_VERSION}/referencedby", _referenced_by),
    ("GET", "/schemas", _schemas),
    ("GET", "/schemas/types", _types),
    ("GET", _BY_ID, _schema),
    ("GET", f"{_BY_ID}/schema", _schema_text),
    ("GET", f"{_BY_ID}/subjects", _schema_subjects),
    ("GET", _BY_GUID, _schema_of_guid),
    ("GET", f"{_BY_GUID}/ids", _ids_of_guid),
    ("GET", f"{_BY_ID}/versions", _schema_versions),
    ("POST", f"{_COMPATIBILITY}/{{version}}", _check),
    ("POST", _COMPATIBILITY, _check_all),
    ("GET", "/config", _global_config),
    ("GET", "/config/{subject}", _subject_config),
    ("GET", "/mode", _global_mode),
    ("GET", "/mode/{subject}", _subject_mode),
    ("GET", "/contexts", _contexts),
)
_WRITING: Final[tuple[tuple[str, str, Endpoint], ...]] = (
    ("DELETE", _SUBJECT, _delete_subject),
    ("POST", f"{_SUBJECT}/versions", _register),
    ("DELETE", _VERSION, _delete_version),
    ("PUT", "/config", _set_global_config),
    ("DELETE", "/config", _delete_global_config),
    ("PUT", "/config/{subject}", _set_subject_config),
    ("DELETE", "/config/{subject}", _delete_subject_config),
    ("PUT", "/mode", _set_global_mode),
    ("PUT", "/mode/{subject}", _set_subject_mode),
    ("DELETE", "/mode/{subject}", _delete_mode),
)


def routes(handler: Callable[[str, Endpoint], Handler]) -> list[Route]:
    """Return all routes; `handler` makes the handler of an endpoint that may `read` or `write`."""
    return [
        Route(path, handler(operation, endpoint), methods=[method])
        for operation, table in (("read", _READING), ("write", _WRITING))
        for method, path, endpoint in table
    ]
