"""Produce and Fetch within quotas (KIP-124, KIP-219).

The answer tells a client that exceeded its quota how long to wait, and meanwhile nothing is read from
its connection. What was produced is kept. Fetching while there is something to wait for gives nothing.
"""

from __future__ import annotations

from dataclasses import replace
from inspect import iscoroutine
from typing import TYPE_CHECKING, cast

from broker.api import Buffered, Deferred
from broker.apis import fetch, produce
from broker.wire.fetch import empty_fetch_response, set_fetch_throttle
from broker.wire.produce import set_produce_throttle

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from prometheus_client import Counter

    from broker.api import RawApi, RawResponse, RequestContext
    from broker.security.quotas import Quotas, Rate
    from broker.telemetry.metrics import Metrics

__all__ = ["throttled"]


def throttled(api: RawApi, quotas: Quotas, metrics: Metrics) -> RawApi:
    """The same API within the quotas."""
    if api.key == produce.KEY and quotas.produce is not None:
        return _produce_within(api, quotas.produce, metrics.throttled.labels(api.name))
    if api.key == fetch.KEY and quotas.fetch is not None:
        return _fetch_within(api, quotas.fetch, metrics.throttled.labels(api.name))
    return api


def _produce_within(api: RawApi, rate: Rate, throttled_seconds: Counter) -> RawApi:
    def handle(context: RequestContext, body: memoryview) -> RawResponse:
        response = cast("RawResponse", api.handler(context, body))
        seconds = rate.use(context.quota_owner, len(body))
        if not seconds:
            return response
        context.mute(seconds)
        throttled_seconds.inc(seconds)
        milliseconds = _milliseconds(seconds)
        if isinstance(response, Deferred):
            encode = response.encode

            def respond() -> bytes | bytearray:
                return set_produce_throttle(encode(), context.api_version, milliseconds)

            return replace(response, encode=respond)
        if isinstance(response, (bytes, bytearray)):
            return set_produce_throttle(response, context.api_version, milliseconds)
        return response  # nobody waits for it

    return replace(api, handler=handle)


def _fetch_within(api: RawApi, rate: Rate, throttled_seconds: Counter) -> RawApi:
    def handle(context: RequestContext, body: memoryview) -> RawResponse | Awaitable[RawResponse]:
        seconds = rate.wait(context.quota_owner)
        if seconds:
            context.mute(seconds)
            throttled_seconds.inc(seconds)
            return empty_fetch_response(context.api_version, _milliseconds(seconds))
        response = api.handler(context, body)
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
