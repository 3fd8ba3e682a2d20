"""What a handler is: the request it takes, the response it gives, the versions it serves.

A handler is written once, against the newest version that is advertised: it receives that version's
request and returns that version's response (both kio dataclasses). `broker.dispatch` reads requests of
older versions into the newest one and writes the response in the version that the client asked for;
`RequestContext.api_version` tells a handler which one that was. Where an API changed its shape
(FindCoordinator 4, say) the older range is an `Api` of its own, with its own handler.

Each module of `broker.apis` lists what it serves in a constant `APIS`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from broker.groups import GroupCoordinator
    from broker.producers import ProducerIds
    from broker.settings import BrokerSettings
    from broker.topics import Topics

__all__ = ["NODE_ID", "Api", "RequestContext", "Services"]

NODE_ID = 0
"""The one node of this cluster: every partition's leader and every group's coordinator."""

Request = TypeVar("Request")
Response = TypeVar("Response")


@dataclass(frozen=True, slots=True)
class Services:
    """What handlers work with; built once by `broker.broker.Broker`."""

    settings: BrokerSettings
    cluster_id: str
    advertised_host: str
    advertised_port: int
    topics: Topics
    producers: ProducerIds
    groups: GroupCoordinator


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Who asks, and in which version."""

    client_id: str
    client_host: str
    api_key: int
    api_version: int
    principal: str
    services: Services


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
        return _schema(self.request).__api_key__

    @property
    def max_version(self) -> int:
        return _schema(self.request).__version__


def _schema(payload: Any) -> Any:
    return payload
