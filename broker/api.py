"""What a handler is: the request it takes, the response it gives, the versions it serves.

A handler is written once, against the newest version that is advertised: it receives that version's
request and returns that version's response (both kio dataclasses). `broker.dispatch` reads requests of
older versions into the newest one and writes the response in the version that the client asked for;
`RequestContext.api_version` tells a handler which one that was. Where an API changed its shape
(FindCoordinator 4, say) the older range is an `Api` of its own, with its own handler.

Produce and Fetch move the bytes of records and are read and written by hand: a `RawApi` gets the bytes
of the request and answers with bytes.

Each module of `broker.apis` lists what it serves in a constant `APIS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

from kio.schema.types import BrokerId

from broker.security.acls import Question

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from broker.appends import Appends, Flush
    from broker.buffers import BufferPool
    from broker.groups.coordinator import GroupCoordinator
    from broker.producer_ids import ProducerIds
    from broker.security.acls import Authorizer, Operation, Resource
    from broker.security.quotas import Quotas
    from broker.security.sasl import SaslExchange
    from broker.security.users import Users
    from broker.settings import BrokerSettings
    from broker.telemetry.metrics import Metrics
    from broker.telemetry.requests import RequestMeters
    from broker.topics.topics import Topics
    from broker.transactions.coordinator import TransactionCoordinator

__all__ = [
    "ANONYMOUS",
    "AdvertisedVersions",
    "Api",
    "Buffered",
    "CloseConnection",
    "Deferred",
    "RawApi",
    "RawResponse",
    "RequestContext",
    "Services",
]

ANONYMOUS = "User:ANONYMOUS"
"""The principal of all clients that do not authenticate."""

Request = TypeVar("Request")
Response = TypeVar("Response")


class AdvertisedVersions(NamedTuple):
    """Versions of one API, inclusive."""

    key: int
    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True)
class Services:
    """What handlers work with; built once by `broker.broker.Broker`."""

    settings: BrokerSettings
    cluster_id: str
    versions: Sequence[AdvertisedVersions]
    topics: Topics
    appends: Appends
    response_buffers: BufferPool
    producer_ids: ProducerIds
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    metrics: Metrics
    requests: RequestMeters
    users: Users | None = None  # None: nobody has to authenticate by SASL
    authorizer: Authorizer | None = None  # None: everybody may do everything
    quotas: Quotas | None = None  # None: as much as they like


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Who asks, and in which version; `node_host` and `node_port` are how this client reaches us.

    `sasl` is the client's authentication while it is not over; `mute` stops listening to the client for
    so many seconds.
    """

    client_id: str
    client_host: str
    node_host: str
    node_port: int
    api_key: int
    api_version: int
    principal: str
    services: Services
    mute: Callable[[float], None]
    sasl: SaslExchange | None = None

    @property
    def node_id(self) -> BrokerId:
        """The one node of this cluster: every partition's leader and every group's coordinator."""
        return BrokerId(self.services.settings.node_id)

    @property
    def quota_owner(self) -> str:
        """Whose quota it is: the user's; of clients that do not authenticate, the client id's."""
        if self.principal == ANONYMOUS:
            return f"client {self.client_id}"
        return self.principal

    def allows(self, operation: Operation, resource: Resource, name: str) -> bool:
        """Whether this client may do so."""
        authorizer = self.services.authorizer
        if authorizer is None:
            return True
        question = Question(self.principal, operation, resource, name, self.client_host)
        return authorizer.allows(question)


class CloseConnection(Exception):
    """There is no answer to this request but to close the connection; the message says why."""


@dataclass(frozen=True, slots=True)
class Deferred:
    """A response that is sent when `flush` is done; later requests are handled meanwhile."""

    flush: Flush
    encode: Callable[[], bytes | bytearray]


@dataclass(frozen=True, slots=True)
class Buffered:
    """A response body in a buffer of the pool: `release` it once it has been sent.

    The body begins after `broker.wire.fetch.FETCH_HEADROOM` bytes, which take the frame's header.
    """

    view: memoryview
    release: Callable[[], None]


RawResponse: TypeAlias = bytes | bytearray | Deferred | Buffered | None
"""The bytes of a response's body, now or later; None when the client wants no answer."""


@dataclass(frozen=True, slots=True)
class RawApi:
    """Versions of one API, inclusive, whose messages the handler reads and writes itself.

    `request` and `response` are kio's classes of the newest version. The bytes that the handler gets
    may be changed until the end of the turn of the event loop.
    """

    handler: Callable[[RequestContext, memoryview], RawResponse | Awaitable[RawResponse]]
    request: type[Any]
    response: type[Any]
    min_version: int

    @property
    def key(self) -> int:
        return int(self.request.__api_key__)

    @property
    def name(self) -> str:
        return _name(self.request)

    @property
    def max_version(self) -> int:
        return int(self.request.__version__)


@dataclass(frozen=True, slots=True)
class Api(Generic[Request, Response]):
    """Versions `min_version` to `max_version` of one API, inclusive, and who answers them.

    `handler` is a plain function when it never waits, else a coroutine function. While it waits, later
    requests of the same connection wait too (as Kafka does it: one request of a connection at a time);
    it is cancelled when the connection closes. It reports what goes wrong in the response's error
    codes; an exception that leaves it is a bug: it is logged, and the client sees
    UNKNOWN_SERVER_ERROR or a closed connection.
    """

    handler: Callable[[RequestContext, Request], Response | Awaitable[Response]]
    request: type[Request]
    response: type[Response]
    min_version: int

    @property
    def key(self) -> int:
        return int(_schema(self.request).__api_key__)

    @property
    def name(self) -> str:
        return _name(self.request)

    @property
    def max_version(self) -> int:
        return int(_schema(self.request).__version__)


def _schema(payload: Any) -> Any:
    return payload


def _name(request: type[Any]) -> str:
    """The API's name in Kafka's documentation."""
    return request.__name__.removesuffix("Request")
