"""What an API of the broker consists of, and what its handler is given.

A module in a room of this package holds one API, or a few that belong together. The decorator `api` above a
handler names the API, the versions and the access rule, and turns the handler into an `Api`, which
`catalogue` collects. A new API is a new handler, in one of the modules or in a new one.

A handler is written once, against the newest version that it serves: it receives that version's request
and returns that version's response (both kio dataclasses). `server.dispatch` converts requests of older
versions to the newest one and the response back to the client's version, which
`RequestContext.api_version` names. Where the messages changed too much (FindCoordinator 4, for example) the
older versions are an `Api` of their own, with their own handler.

Produce and Fetch move the bytes of records, and their messages are read and written by hand: the handler
of a `RawApi` takes the bytes of the request and returns a `Reply` with those of the response.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec
import structlog
from anyio import to_thread
from kio.schema.errors import ErrorCode
from kio.schema.types import BrokerId
from kio.static.primitive import i32, i32Timedelta

from ..authorization.rules import CLUSTER, Question
from ..errors import RequestError, shortened
from ..log.results import LogError, OffsetNotInLog
from ..protocol.cursor import MAX_ELEMENTS
from ..protocol.messages import api_keys, request_type, response_type
from .meters import UNCOUNTED

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Awaitable, Callable, Sequence

    from anyio import CapacityLimiter

    from ..authorization.rules import Authorizer, Operation, Resource
    from ..authorization.sasl import SaslExchange
    from ..coordinators.group_coordinator import GroupCoordinator
    from ..coordinators.transaction_coordinator import TransactionCoordinator
    from ..listeners import Listener
    from ..response_buffers import ResponseBuffers
    from ..settings import BrokerSettings
    from ..storage.group_commit import Flush, GroupCommit
    from ..topics.topic import Partition
    from ..topics.topics import Topics
    from .access import AccessRule
    from .meters import RequestMeter, RequestMeters
    from .records.fetch_sessions import FetchSessions

logger = structlog.get_logger(__name__)

NO_THROTTLE: Final = i32Timedelta.parse(timedelta(0))
"""The throttle time of every response: there are no quotas."""

LEADER_EPOCH: Final = i32(0)
"""The epoch of every partition: there is one node, so leadership never changes."""

SMALL_BYTES: Final = 8 * 1024
"""A request of this size is read in the time of a slice, however many elements it has."""

_STORAGE_FAILED: Final = "the broker's disk failed; its log has the reason"

Result = TypeVar("Result")


class AdvertisedVersions(NamedTuple):
    """Versions of one API, inclusive."""

    key: int
    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True)
class Node:
    """What a broker says of itself; `listeners` have the ports that they are bound to."""

    settings: BrokerSettings
    listeners: Sequence[Listener]
    cluster_id: str
    versions: Sequence[AdvertisedVersions]


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of a broker that handlers work with; built once by `kmr.broker.broker.Broker`.

    `computing`: the threads that compute at the same time; they take turns with the event loop.
    """

    node: Node
    topics: Topics
    group_commit: GroupCommit
    response_buffers: ResponseBuffers
    computing: CapacityLimiter
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    fetch_sessions: FetchSessions
    requests: RequestMeters
    authorizer: Authorizer | None = None  # None: every operation is allowed

    async def compute(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Return what `work` returns for these arguments, in another thread."""
        return await to_thread.run_sync(work, *arguments, limiter=self.computing)

    @property
    def max_elements(self) -> int:
        """Limit of the elements of one request: it may name all partitions, with their topics."""
        return max(MAX_ELEMENTS, 3 * self.node.settings.max_partitions)


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The client of a request, and the version that it uses.

    Attributes:
        listener: the one that the client has connected to.
        node_host, node_port: the address by which this client reaches the broker.
        close: closes the client's connection, and logs the reason.
        meter: counts the requests of this API, and the errors in their responses.
        header: the bytes of the requests' headers after the correlation id.
        sasl: the client's authentication, while it is not complete or can be renewed.
        remembered: what a handler keeps of this client's earlier requests of this version.
    """

    client_id: str
    client_host: str
    listener: Listener
    node_host: str
    node_port: int
    api_key: int
    api_version: int
    principal: str
    services: Services
    meter: RequestMeter
    header: bytes
    close: Callable[[str], None]
    sasl: SaslExchange | None = None
    remembered: dict[bytes, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def node_id(self) -> BrokerId:
        """The one node of this cluster: leader of every partition, coordinator of every group."""
        return BrokerId(self.services.node.settings.node_id)

    def allows(self, operation: Operation, resource: Resource, name: str = CLUSTER) -> bool:
        """Whether this client may perform the operation on the resource."""
        authorizer = self.services.authorizer
        if authorizer is None:
            return True
        question = Question(self.principal, operation, resource, name, self.client_host)
        return authorizer.allows(question)


class CloseConnection(Exception):
    """A request that cannot be answered: the connection is closed; the message gives the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(shortened(reason))


class Reply(msgspec.Struct):
    """The response to one request: ready, ready after a flush, or waiting.

    Ready: `body`. After a flush: `after_flush` returns the body when `flush` is done; the connection's next
    requests are handled meanwhile. Waiting: `later` returns a ready reply; the next requests wait for it.

    Attributes:
        body: the response's bytes; None: the client wants no response.
        release: returns the pooled buffer of the body once it is sent. The first
            `fetch_response.FETCH_HEADROOM` bytes of such a body are reserved for the frame's header.
        flush, after_flush: see above; some partitions may be in `flush.failed`.
        later: see above.
        keeps_request: `later` uses the bytes of the request: they stay as they are until then.
        requests: number of requests that it answers.
        correlation_id, flexible: of the frame's header, set by the dispatcher, as are the following. Without
            a correlation id the body is whole frames.
        meter: counts the requests of this API.
        began: when the request was received, in monotonic seconds.
    """

    body: bytes | bytearray | memoryview | None = None
    release: Callable[[], None] | None = None
    flush: Flush | None = None
    after_flush: Callable[[], bytes | bytearray] | None = None
    later: Awaitable[Reply] | None = None
    keeps_request: bool = False
    requests: int = 1
    correlation_id: int | None = None
    flexible: bool = False
    meter: RequestMeter = UNCOUNTED
    began: float = 0.0

    def finish(self, ready: Reply) -> None:
        """Take the body of what `later` returned."""
        self.body, self.release = ready.body, ready.release

    def discard(self) -> None:
        """Return the pooled buffer of a body that is not sent."""
        if self.release is not None:
            self.release()


@dataclass(frozen=True, slots=True)
class _Versions:
    """Some versions of one API.

    kio's classes of its messages are imported by the first request: they take a millisecond each.

    Attributes:
        name: the API's name in Kafka's documentation.
        min_version, max_version: the oldest and the newest version; the handler serves the newest.
    """

    name: str
    _: KW_ONLY
    min_version: int = 0
    max_version: int
    key: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", api_keys()[self.name])

    @property
    def request(self) -> Any:
        """The class of the newest version's request."""
        return request_type(self.key, self.max_version)

    @property
    def response(self) -> Any:
        """The class of the newest version's response."""
        return response_type(self.key, self.max_version)


@dataclass(frozen=True, slots=True)
class RawApi(_Versions):
    """An API whose handler reads and writes its messages itself.

    The handler may modify the bytes that it is given until the end of the event-loop turn, or with
    `keeps_request` until the reply is ready. It checks access itself (`RequestContext.allows`). It, or what
    its reply waits for, raises MalformedRequest or CloseConnection if there can be no response.
    """

    handler: Callable[[RequestContext, memoryview], Reply]


@dataclass(frozen=True, slots=True)
class Api(_Versions):
    """An API whose handler receives and returns messages of the newest version.

    Attributes:
        handler: a plain function if it never waits, else a coroutine function. While it waits, later
            requests of the same connection wait too (as in Kafka: one request of a connection at a time);
            it is cancelled when the connection closes. It reports errors in the response's error codes. An
            exception that leaves it is a bug: it is logged, and the client gets UNKNOWN_SERVER_ERROR or a
            closed connection.
        access: the permissions that a request needs on a broker with access rules.
    """

    handler: Callable[[RequestContext, Any], Any]
    access: AccessRule


def api(
    name: str, *, min_version: int = 0, max_version: int, access: AccessRule
) -> Callable[[Callable[[RequestContext, Any], Any]], Api]:
    """Make an `Api` of the decorated handler."""
    return lambda handler: Api(
        name, min_version=min_version, max_version=max_version, handler=handler, access=access
    )


AnyApi: TypeAlias = Api | RawApi


class ElementResult(NamedTuple):
    """The result of one element of a request: its error code, and the reason."""

    code: ErrorCode = ErrorCode.none
    message: str | None = None


async def attempt(work: Awaitable[object], failure: str, **names: object) -> ElementResult:
    """Await `work` and return its outcome.

    A RequestError becomes its own code. A failure of the disk becomes KAFKA_STORAGE_ERROR, and one line in
    the broker's log: `failure`, with `names`.
    """
    try:
        await work
    except RequestError as error:
        return ElementResult(error.code, error.message)
    except (LogError, OSError) as error:
        logger.error(failure, **names, error=str(error))
        return ElementResult(ErrorCode.kafka_storage_error, _STORAGE_FAILED)
    return ElementResult()


def read_error(partition: Partition, error: LogError | OSError) -> ErrorCode:
    """Return the code for records that cannot be read; log a reason once, because consumers retry."""
    if isinstance(error, OffsetNotInLog):
        return ErrorCode.offset_out_of_range
    if partition.reported_unreadable != str(error):
        partition.reported_unreadable = str(error)
        logger.error(
            "records cannot be read",
            topic=partition.topic,
            partition=partition.index,
            error=str(error),
        )
    return ErrorCode.kafka_storage_error


def result_or_refusal(work: Callable[..., Result], *arguments: Any) -> Result | ElementResult:
    """Return the result of a call; the outcome, if it raises RequestError."""
    try:
        return work(*arguments)
    except RequestError as error:
        return ElementResult(error.code, error.message)


def check_listed_once(name: str, times: Counter[str]) -> None:
    """Raise RequestError (INVALID_REQUEST) if a request lists the same name several times."""
    if times[name] > 1:
        raise RequestError(
            ErrorCode.invalid_request, f"{name!r} is listed {times[name]} times; list it once"
        )
