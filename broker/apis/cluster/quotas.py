"""Quotas for Produce and Fetch (KIP-124, KIP-219), and DescribeClientQuotas 0 to 1 (KIP-546).

Each user, or each client id of clients that do not authenticate, has the same quotas: --produce-quota-bytes
and --fetch-quota-bytes. A client that exceeds one is told in `throttle_time_ms` how long to wait, and the
broker does not read from its connection meanwhile. Records that it produced are kept; a Fetch before the
end of the wait returns none.

Differs from Kafka: quotas cannot be altered by clients, and there are none by IP address or request time.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from inspect import iscoroutine
from typing import TYPE_CHECKING, Final, cast

from kio.schema.errors import ErrorCode
from kio.static.primitive import f64

from ...authorization.rules import Operation, Resource
from ...errors import RequestError
from ...protocol.fetch_response import set_fetch_throttle
from ...protocol.produce_frames import set_produce_throttle
from .. import entities
from ..access import Access
from ..api import NO_THROTTLE, Borrowing, Buffered, Deferred, api
from ..records import fetch, produce
from ..records.long_poll import LongPoll

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from prometheus_client import Counter as Metric

    from ...operations.metrics import Metrics
    from ...settings import BrokerSettings
    from ..api import AnyResponse, RawApi, RawResponse, RequestContext

__all__ = ["MAX_THROTTLE", "Quotas", "Rate", "throttled"]

MAX_THROTTLE = 10.0
"""Seconds; a client that ignores the throttle time gives up waiting for a response after 30."""

_MAX_CLIENTS = 10_000


class Rate:
    """The bytes per second that each client may use.

    A client that was idle may use the bytes of one second at once. A client that exceeded its rate waits
    until its average is back at the rate.
    """

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._clock = clock
        self._even_at: dict[str, float] = {}  # when a client's average is back at the rate

    def wait(self, client: str) -> float:
        """Return the seconds until the client may go on, from 0 to MAX_THROTTLE."""
        return max(0.0, min(self._even_at.get(client, 0.0) - self._clock(), MAX_THROTTLE))

    def use(self, client: str, size: int) -> float:
        """Record that the client used `size` bytes; return `wait`."""
        now = self._clock()
        earliest = now - 1.0  # only the unused bytes of the last second count
        even_at = max(self._even_at.get(client, earliest), earliest) + size / self._per_second
        if len(self._even_at) >= _MAX_CLIENTS and client not in self._even_at:
            self._forget(now)
        self._even_at[client] = even_at
        return self.wait(client)

    def _forget(self, now: float) -> None:
        """Bound the memory, since client ids are arbitrary: keep the clients that must wait longest."""
        owing = sorted(((at, name) for name, at in self._even_at.items() if at > now), reverse=True)
        self._even_at = {name: at for at, name in owing[: _MAX_CLIENTS // 2]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """The rates of all clients; None: no limit."""

    produce: Rate | None
    fetch: Rate | None

    @classmethod
    def of(cls, settings: BrokerSettings) -> Quotas | None:
        """Return the quotas of a broker, None if it has none."""
        produce, fetch = settings.produce_quota_bytes, settings.fetch_quota_bytes
        if produce is None and fetch is None:
            return None
        return cls(
            produce=None if produce is None else Rate(produce),
            fetch=None if fetch is None else Rate(fetch),
        )


def throttled(api: RawApi, quotas: Quotas, metrics: Metrics) -> RawApi:
    """Return the API with a handler that enforces its quota; an API without one is returned unchanged."""
    if api.key == produce.KEY and quotas.produce is not None:
        return _throttled_produce(api, quotas.produce, metrics.throttled.labels(api.name))
    if api.key == fetch.KEY and quotas.fetch is not None:
        return _throttled_fetch(api, quotas.fetch, metrics.throttled.labels(api.name))
    return api


def _throttled_produce(api: RawApi, rate: Rate, throttled_seconds: Metric) -> RawApi:
    def handle(context: RequestContext, body: memoryview) -> RawResponse:
        response = cast("RawResponse", api.handler(context, body))
        if isinstance(response, Borrowing):
            return Borrowing(later(context, body, response.response))
        return throttle(context, body, response)

    async def later(
        context: RequestContext, body: memoryview, response: Awaitable[RawResponse]
    ) -> RawResponse:
        return throttle(context, body, await response)

    def throttle(context: RequestContext, body: memoryview, response: RawResponse) -> RawResponse:
        seconds = rate.use(context.quota_owner, len(body))
        if not seconds:
            return response
        context.mute(seconds)
        throttled_seconds.inc(seconds)
        milliseconds = _milliseconds(seconds)

        def with_throttle(body: bytes | bytearray) -> bytearray:
            return set_produce_throttle(body, context.api_version, milliseconds)

        if isinstance(response, Deferred):
            after_failure = response.after_failure
            throttled = with_throttle(response.body)
            return Deferred(response.flush, throttled, lambda: with_throttle(after_failure()))
        if isinstance(response, (bytes, bytearray)):
            return with_throttle(response)
        return response  # acks=0: there is no response to put it in

    return replace(api, handler=handle)


def _throttled_fetch(api: RawApi, rate: Rate, throttled_seconds: Metric) -> RawApi:
    def handle(context: RequestContext, body: memoryview) -> AnyResponse:
        seconds = rate.wait(context.quota_owner)
        if seconds:
            context.mute(seconds)
            throttled_seconds.inc(seconds)
            empty = fetch.postponed_fetch(context, body)
            set_fetch_throttle(empty.view, _milliseconds(seconds))
            return empty
        response = api.handler(context, body)
        if isinstance(response, LongPoll):
            response.finish = partial(count, context)
            return response
        if iscoroutine(response):
            return later(context, response)
        return count(context, cast("RawResponse", response))

    async def later(context: RequestContext, response: Awaitable[RawResponse]) -> RawResponse:
        return count(context, await response)

    def count(context: RequestContext, response: RawResponse) -> RawResponse:
        if isinstance(response, Buffered):
            seconds = rate.use(context.quota_owner, len(response.view))
            if seconds:
                context.mute(seconds)
                throttled_seconds.inc(seconds)
                set_fetch_throttle(response.view, _milliseconds(seconds))
        return response

    return replace(api, handler=handle)


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


# -- DescribeClientQuotas --------------------------------------------------------------------------

_USER: Final = "user"
_CLIENT_ID: Final = "client-id"
_IP: Final = "ip"
_EXACT, _DEFAULT, _ANY = range(3)  # how a filter names an entity


@api(
    "DescribeClientQuotas",
    max_version=1,
    access=Access(whole=[(Operation.DESCRIBE_CONFIGS, Resource.CLUSTER)]),
)
def _describe(
    context: RequestContext, request: entities.DescribeClientQuotasRequest
) -> entities.DescribeClientQuotasResponse:
    """Filter as Kafka's controller does; the quotas are the defaults of users and of client ids."""
    code, message, entries = ErrorCode.none, None, None
    try:
        _check(request.components)
        values = _values(context)
        kinds = [kind for kind in (_USER, _CLIENT_ID) if values and _matches(kind, request)]
        entries = tuple(
            entities.EntryData(
                entity=(entities.EntityData(entity_type=kind, entity_name=None),), values=values
            )
            for kind in kinds
        )
    except RequestError as error:
        code, message = error.code, error.message
    return entities.DescribeClientQuotasResponse(
        throttle_time=NO_THROTTLE, error_code=code, error_message=message, entries=entries
    )


def _values(context: RequestContext) -> tuple[entities.ValueData, ...]:
    settings = context.services.settings
    limits = {
        "producer_byte_rate": settings.produce_quota_bytes,
        "consumer_byte_rate": settings.fetch_quota_bytes,
    }
    return tuple(
        entities.ValueData(key=key, value=f64(float(limit)))
        for key, limit in limits.items()
        if limit is not None
    )


def _matches(kind: str, request: entities.DescribeClientQuotasRequest) -> bool:
    """Whether the filter matches the default entity of this kind, which has no name and no other kind."""
    if not request.components:
        return not request.strict
    return all(
        each.entity_type == kind and each.match_type != _EXACT for each in request.components
    )


def _check(components: Sequence[entities.ComponentData]) -> None:
    """Raise RequestError for an invalid filter."""
    times = Counter(each.entity_type for each in components)
    for each in components:
        kind = each.entity_type
        if not kind:
            raise _invalid("the entity type is empty")
        if times[kind] > 1:
            raise _invalid(f"entity type {kind!r} is in the filter more than once")
        if kind not in (_USER, _CLIENT_ID, _IP):
            raise RequestError(ErrorCode.unsupported_version, f"unknown entity type {kind!r}")
        if each.match_type not in (_EXACT, _DEFAULT, _ANY):
            raise _invalid(f"unknown match type {each.match_type}")
        if (each.match is None) is (each.match_type == _EXACT):
            raise _invalid("an exact match needs a name, other match types must have none")
    if times[_IP] and len(times) > 1:
        raise _invalid("entity type ip cannot be combined with others")


def _invalid(message: str) -> RequestError:
    return RequestError(ErrorCode.invalid_request, message)
