"""Clocks that jump, and hours without a record."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from structlog.testing import capture_logs

from kmr.broker.client import BatchProducer
from kmr.mapping.functions import map_record
from kmr.record import Record, TopicPartition
from kmr.settings import Settings
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryConsumer, MemoryWriter, VirtualTimeLoop
from kmr.worker import Worker

if TYPE_CHECKING:
    from kmr.broker import Broker

HOUR = 3600.0


@map_record
def locate(record: Record) -> dict[str, int]:
    return {"o": record.offset}


def settings(**options: Any) -> Settings:
    return Settings(**({"topics": ("t",), "group": "g"} | options))


async def test_a_clock_that_jumps_flushes_expires_and_stalls_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    offset, clock = 0.0, time.time
    monkeypatch.setattr(time, "time", lambda: clock() + offset)
    journal = Journal()
    worker = Worker(
        Strategy(locate, [MemoryWriter(journal, max_rows=15, max_age=HOUR)]),
        settings(bootstrap_servers=broker.bootstrap_servers, heartbeat_interval=0.05),
    )
    with anyio.fail_after(120), capture_logs() as logs:
        async with (
            BatchProducer(broker.bootstrap_servers, "t") as producer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(worker.run)
            await worker.ready()
            generation = worker._consumer.generation
            for number, jump in enumerate((0.0, 6 * HOUR, -12 * HOUR), start=1):
                offset += jump
                assert journal.attempts == 0, "it was flushed because the clock had jumped"
                # The producer's own clock is in C, and does not jump.
                await producer.send([b"x"] * 5, timestamp_ms=int(time.time() * 1000))
                await producer.flush()
                while worker.status().consumed < 5 * number:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            await journal.until(lambda j: j.count == 15)
            status = worker.status()
            assert (status.live, status.ready, status.problem) == (True, True, None)
            assert worker._consumer.generation == generation, "it was thrown out of the group"
            worker.shutdown("done")
    flushes = worker.metrics.flushes
    assert flushes.labels("reduce-1", "count")._value.get() == 1
    assert worker.metrics.latency._sum.get() >= 0.0
    assert worker.metrics.latency._sum.get() < HOUR * 3 * 7
    assert [log for log in logs if log["log_level"] in ("warning", "error")] == []


class JumpingLoop(VirtualTimeLoop):
    """When nothing is left to do, it is the time of the next timer; counts the timers that fired."""

    def __init__(self) -> None:
        super().__init__()
        self.fired = 0

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            when = self._scheduled[0].when()  # type: ignore[attr-defined]
            self.fired += when > self.now
            self.now = max(self.now, when)
        super()._run_once()  # type: ignore[misc]


@pytest.mark.parametrize(
    "anyio_backend", [("asyncio", {"loop_factory": JumpingLoop})], ids=["jumping"]
)
async def test_an_hour_without_a_record_is_an_hour_without_work(
    anyio_backend: tuple[str, dict[str, Any]],
) -> None:
    """Two timers a second, for commits and for the lag; nothing polls."""
    loop = anyio.lowlevel.current_token().native_token
    assert isinstance(loop, JumpingLoop)
    journal, consumer = Journal(), MemoryConsumer()
    worker = Worker(Strategy(locate, [MemoryWriter(journal)]), settings(), consumer=consumer)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await consumer.started.wait()
        await consumer.rebalance([TopicPartition("t", number) for number in range(32)])
        commits, before = len(consumer.commits), loop.fired
        await anyio.sleep(HOUR)
        assert loop.fired - before <= 2 * HOUR + 10
        assert len(consumer.commits) == commits
        assert journal.attempts == 0
        assert worker.status().live
        worker.shutdown("done")
