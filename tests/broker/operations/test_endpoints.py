"""The HTTP endpoints of a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from kmr.broker import Broker, BrokerError, BrokerSettings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    Until = Callable[[Callable[[], bool]], Awaitable[None]]


@pytest.fixture
async def served(start: Any) -> Broker:
    """A broker with HTTP endpoints."""
    broker: Broker = await start(http_port=0)
    return broker


async def get(broker: Broker, path: str, **headers: str) -> tuple[int, str, str]:
    """Status, text and content type."""
    async with (
        aiohttp.ClientSession(broker.http_url) as session,
        session.get(path, headers=headers) as answer,
    ):
        return answer.status, await answer.text(), answer.headers["Content-Type"]


async def test_metrics_have_the_requested_format(served: Broker) -> None:
    status, text, kind = await get(served, "/metrics")
    assert (status, kind.split(";")[0]) == (200, "text/plain")
    assert '\nkmr_broker_log_end_offset{partition="0",topic="__consumer_offsets"} 0.0\n' in text
    _, text, kind = await get(served, "/metrics", Accept="application/openmetrics-text")
    assert kind.split(";")[0] == "application/openmetrics-text"
    families = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    assert "kmr_broker_log_end_offset" in {family.name for family in families}


async def test_without_a_port_nothing_is_served(broker: Broker) -> None:
    assert broker.http_url is None


async def test_a_port_that_is_taken_is_named(served: Broker, tmp_path: Path) -> None:
    port = int((served.http_url or "").rpartition(":")[2])
    other = Broker(BrokerSettings(data_dir=tmp_path / "other", port=0, http_port=port))
    with pytest.raises(BrokerError, match=f"port {port} on 127.0.0.1 is in use"):
        await other.__aenter__()
