"""A client of Confluent's schema registry, over its REST API.

It is picklable: each process makes its connections, and its cache of schemas, at their first use. Several
threads may use it at a time.
"""

from __future__ import annotations

import ssl
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar, cast
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import msgspec

from ...config.schema import Duration, parse_duration
from ...errors import RegistryError, StrategyError

if TYPE_CHECKING:
    from collections.abc import Callable

    import urllib3

REGISTRY_IS_AWAY: Final = "a schema registry does not answer: the records wait for it"
REGISTRY_IS_BACK: Final = "the schema registry answers again"

T = TypeVar("T")
SchemaKind: TypeAlias = Literal["AVRO", "JSON", "PROTOBUF"]

_CONTENT: Final = "application/vnd.schemaregistry.v1+json"
_RETRIED: Final = frozenset({408, 429, 500, 502, 503, 504})
_LAST_PAUSE: Final = 10.0  # seconds
_OF_REGISTRY: Final = 1000  # its codes of errors have five digits, those of others three or none
_SUBJECT_NOT_FOUND: Final = 40401
_IS_URL_RIGHT: Final = "is the path of the registry's URL right?"
_DEFAULT_CONTEXT: Final = "."
_MOST_UNKNOWN: Final = 1000  # then those that are to be asked for again are forgotten
_FORGET_UNKNOWN: Final = 30.0  # seconds: it may be registered later, or on a replica that lags


class RegistryUnavailable(RegistryError):
    """No answer, an error of the server, or the answer of another server, such as a proxy."""


class SchemaRefused(RegistryError):
    """The registry does not accept a schema: it does not fit earlier versions, or is invalid."""


class UnknownSchema(RegistryError):
    """The registry has no such schema."""


class SchemaReference(msgspec.Struct, frozen=True):
    """A schema that another one imports, by the name that it has there."""

    name: str
    subject: str
    version: int


class RegisteredSchema(msgspec.Struct, frozen=True, rename="camel"):
    """A schema in the registry; `schema` is its text."""

    schema: str
    schema_type: SchemaKind = "AVRO"
    references: tuple[SchemaReference, ...] = ()
    id: int = -1


class _Registered(msgspec.Struct, frozen=True):
    id: int


class _IdInContext(msgspec.Struct, frozen=True):
    id: int
    context: str = "."


class _Version(msgspec.Struct, frozen=True):
    version: int


class _ErrorAnswer(msgspec.Struct, frozen=True):
    error_code: int = 0
    message: str = ""


@dataclass(frozen=True)
class Registry:
    """A schema registry, and how to reach it.

    A request without an answer of a registry (by the network, an error of the server, a proxy) is repeated
    once. When a strategy is made, it is repeated `retries` times with growing pauses (0.2 s, doubled, at most
    10 s). Engines that run wait for as long as it takes.

    Args:
        url: `https://host:8081`; the user and the password may be in it.
        username: for basic authentication, with `password`.
        token: for bearer authentication.
        ca_file: PEM file of the authorities that may sign the server's certificate; by default those of
            the system.
        certificate_file: PEM file with our certificate, for mutual TLS.
        key_file: PEM file of its key, if it is not in the same.
        timeout: seconds for a connection, and for an answer; text has a unit: `"5s"`.
        retries: how often a request is repeated.
    """

    url: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    timeout: Duration = 10.0
    retries: int = 7
    _local: _Local = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise RegistryError(f"registry {self.url!r}: not an URL; write http://host:8081")
        user, _, host = parts.netloc.rpartition("@")
        if user:
            name, _, password = user.partition(":")
            object.__setattr__(self, "username", unquote(name))
            object.__setattr__(self, "password", unquote(password))
        object.__setattr__(self, "timeout", parse_duration(self.timeout, "registry: timeout"))
        object.__setattr__(self, "url", urlunsplit((*parts[:1], host, *parts[2:])).rstrip("/"))
        object.__setattr__(self, "_local", _Local())

    def by_id(self, number: int) -> RegisteredSchema:
        """Return a schema. It is asked for once in a process, because the schema of an id never changes.

        Raises:
            UnknownSchema: there is none; remembered for 30 seconds.
            RegistryUnavailable: the registry does not answer.
            RegistryError: it refuses us.
        """
        found = self._remembered(number, f"/schemas/ids/{number}", RegisteredSchema)
        return msgspec.structs.replace(found, id=number)

    def by_version(self, subject: str, version: int | None = None) -> RegisteredSchema:
        """Return a version of a subject, the latest without a number.

        Raises:
            UnknownSchema: there is none; of a version it is remembered for 30 seconds.
            RegistryUnavailable: the registry does not answer.
            RegistryError: it refuses us.
        """
        path = f"/subjects/{quote(subject, safe='')}/versions/{version or 'latest'}"
        if version is None:
            latest: RegisteredSchema = self._ask(
                "GET", path, RegisteredSchema, retries=self.retries
            )
            return latest
        return self._remembered((subject, version), path, RegisteredSchema)

    def _remembered(self, key: int | str | tuple[str, int], path: str, answer: type[T]) -> T:
        """Ask for what never changes, once."""
        local = self._local
        known = local.schemas.get(key)
        if known is not None:
            return cast("T", known)
        if not local.lock.acquire(blocking=local.away is None):
            raise RegistryUnavailable(str(local.away))  # another thread asks whether it is back
        try:
            known = local.schemas.get(key)
            if known is not None:
                return cast("T", known)
            unknown = local.unknown.get(key)
            if unknown is not None and time.monotonic() < unknown[0]:
                raise UnknownSchema(unknown[1])
            try:
                found: T = self._ask("GET", path, answer)
            except RegistryUnavailable as error:
                local.away = error
                raise
            except UnknownSchema as error:
                local.away = None
                now = time.monotonic()
                if len(local.unknown) >= _MOST_UNKNOWN:  # values with random bytes for an id
                    local.unknown = {n: each for n, each in local.unknown.items() if each[0] > now}
                local.unknown[key] = now + _FORGET_UNKNOWN, str(error)
                raise
            local.schemas[key], local.away = found, None
            return found
        finally:
            local.lock.release()

    def id_of_guid(self, guid: str) -> int:
        """Return the id of a schema with a GUID; remembered as `by_id` does. Raises as `by_id`."""
        path = f"/schemas/guids/{guid}/ids"
        found = self._remembered(guid, path, tuple[_IdInContext, ...])
        if not found:
            raise UnknownSchema(f"registry {self.url}: {path} has no id")
        return min(found, key=lambda each: each.context != _DEFAULT_CONTEXT).id

    def serialized(self, number: int) -> str:
        """Return the text of a Protobuf schema as its serialized file, in base64. Raises as `by_id`."""
        found: RegisteredSchema = self._ask(
            "GET", f"/schemas/ids/{number}?format=serialized", RegisteredSchema
        )
        return found.schema

    def references(self, schema: RegisteredSchema) -> dict[str, RegisteredSchema]:
        """Return the schemas that one imports, directly or not, by name; imported ones come first.

        Raises as `by_version`, and StrategyError: two schemas are imported by one name.
        """
        found: dict[str, RegisteredSchema] = {}
        places: dict[str, SchemaReference] = {}

        def add(imported: tuple[SchemaReference, ...]) -> None:
            for reference in imported:
                name = reference.name
                if (first := places.setdefault(name, reference)) != reference:
                    raise StrategyError(
                        f"it refers to two schemas as {name}: version {first.version} of "
                        f"{first.subject}, and version {reference.version} of {reference.subject}"
                    )
                if name not in found:
                    each = self.by_version(reference.subject, reference.version)
                    add(each.references)
                    found[name] = each

        add(schema.references)
        return found

    def register(self, subject: str, schema: RegisteredSchema) -> int:
        """Register a schema, if it is not yet there; return its id. Asked for once in a process.

        Raises:
            SchemaRefused: the schema is not compatible.
            RegistryError: the registry does not answer, or refuses us.
        """
        local = self._local
        with local.lock:
            number = local.registered.get((subject, schema))
            if number is None:
                path = f"/subjects/{quote(subject, safe='')}/versions"
                number = self._ask("POST", path, _Registered, _body(schema)).id
                local.registered[subject, schema] = number
            return number

    def version_of(self, subject: str, schema: RegisteredSchema) -> int:
        """Return the version of a registered schema.

        Raises:
            UnknownSchema: the subject does not have it.
            RegistryError: the registry does not answer, or refuses us.
        """
        path = f"/subjects/{quote(subject, safe='')}"
        found: _Version = self._ask("POST", path, _Version, _body(schema))
        return found.version

    def _ask(
        self, method: str, path: str, answer: type[Any], body: object = None, *, retries: int = 1
    ) -> Any:
        for attempt in range(min(self.retries, retries)):
            with suppress(RegistryUnavailable):
                return self._ask_once(method, path, answer, body)
            time.sleep(min(_LAST_PAUSE, 0.1 * 2.0**attempt) if attempt else 0.0)
        return self._ask_once(method, path, answer, body)

    def _ask_once(self, method: str, path: str, answer: type[Any], body: object) -> Any:
        import urllib3  # takes time to import, and most workers have no registry

        try:
            response = self._local.pool(self).request(
                method,
                self.url + path,
                body=None if body is None else msgspec.json.encode(body),
                headers=self._headers(),
                retries=urllib3.Retry(0, redirect=3),
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            reason: BaseException = getattr(error, "reason", None) or error
            raise RegistryUnavailable(
                f"registry {self.url}: no answer ({reason.__cause__ or reason}); does it run, and is the "
                "address right?"
            ) from error
        if response.status == 200:
            try:
                return msgspec.json.decode(response.data, type=answer)
            except msgspec.DecodeError as error:
                raise RegistryUnavailable(
                    f"registry {self.url}: {path} is not the answer of a schema registry ({error}); "
                    f"{_IS_URL_RIGHT}"
                ) from error
        raise self._refused(path, response.status, response.data)

    def _refused(self, path: str, status: int, body: bytes) -> RegistryError:
        try:
            refusal = msgspec.json.decode(body, type=_ErrorAnswer)
        except (msgspec.DecodeError, UnicodeDecodeError):
            refusal = _ErrorAnswer()
        message = refusal.message or body[:200].decode("utf-8", "replace")
        text = f"registry {self.url}: {path} is refused ({status}: {message})"
        if status in {401, 403}:
            return RegistryError(f"{text}; check the user and the password, or the token")
        if status in _RETRIED:
            return RegistryUnavailable(text)
        if status == 404 and refusal.error_code and "/guids/" in path:  # older registries have none
            return UnknownSchema(text)
        if status == 409:
            return SchemaRefused(
                f"{text}; make the fields fit the earlier versions, or change the subject's compatibility"
            )
        if status == 422:
            return SchemaRefused(text)
        if refusal.error_code < _OF_REGISTRY:  # a proxy's, or of a path that no registry has
            return RegistryUnavailable(f"{text}; {_IS_URL_RIGHT}")
        if refusal.error_code == _SUBJECT_NOT_FOUND:
            text = f"{text}; check the subject's name, or let a producer register its schema first"
        return UnknownSchema(text) if status == 404 else RegistryError(text)

    def _headers(self) -> dict[str, str]:
        import urllib3

        headers = {"Accept": _CONTENT, "Content-Type": _CONTENT}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        elif self.username is not None:
            headers |= urllib3.make_headers(basic_auth=f"{self.username}:{self.password or ''}")
        return headers

    def _tls(self) -> ssl.SSLContext | None:
        if not self.url.startswith("https:"):
            return None
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.certificate_file is not None:
            context.load_cert_chain(self.certificate_file, self.key_file)
        return context


def _body(schema: RegisteredSchema) -> dict[str, object]:
    return {
        "schema": schema.schema,
        "schemaType": schema.schema_type,
        "references": schema.references,
    }


class _Local:
    """The connections and the cache of one process; a copy by pickle is empty."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.away: RegistryUnavailable | None = None  # while it does not answer
        self.schemas: dict[int | str | tuple[str, int], object] = {}
        self.unknown: dict[int | str | tuple[str, int], tuple[float, str]] = {}
        self.registered: dict[tuple[str, RegisteredSchema], int] = {}
        self._pool: urllib3.PoolManager | None = None

    def pool(self, registry: Registry) -> urllib3.PoolManager:
        import urllib3

        with self.lock:
            if self._pool is None:
                try:
                    tls = registry._tls()  # noqa: SLF001  its other half
                except (OSError, ssl.SSLError) as error:
                    raise RegistryError(
                        f"registry {registry.url}: TLS files cannot be read ({error})"
                    ) from error
                timeout = parse_duration(registry.timeout, "registry: timeout")
                self._pool = urllib3.PoolManager(timeout=timeout, ssl_context=tls)
            return self._pool

    def __reduce__(self) -> tuple[type[_Local], tuple[()]]:
        return _Local, ()


class PerProcess(Generic[T]):
    """A value that is made when it is first needed, once for all threads; a copy by pickle has none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: list[T] = []

    @property
    def is_made(self) -> bool:
        return bool(self._made)

    def get(self, make: Callable[[], T]) -> T:
        """Return the value. Raises what `make` raises, which the next caller tries again."""
        with self._lock:
            if not self._made:
                self._made.append(make())
            return self._made[0]

    def __reduce__(self) -> tuple[type[PerProcess[T]], tuple[()]]:
        return type(self), ()
