"""Traces are off unless they are asked for."""

from __future__ import annotations

from kmr.observe.metrics import Metrics
from kmr.observe.tracing import OFF, telemetry
from kmr.settings import Settings
from kmr.testing import batch_of


async def test_off_there_is_no_span_and_nothing_is_started() -> None:
    metrics = Metrics()
    async with telemetry(Settings(topics=("t",), group="g"), metrics):
        assert metrics.tracing is OFF
        async with metrics.tracing.mapping(batch_of("t", 0, 0, [b"x"])) as span:
            assert span is None
