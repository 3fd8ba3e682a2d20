"""A worker with a consumer in memory: from the topic to the sink, shutdowns, stalls; time is virtual."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.lowlevel
import pyarrow as pa
import pytest

from kmr.errors import (
    BrokerUnavailable,
    ConsumerError,
    DeadlineExceeded,
    KmrError,
    RecordFailed,
    SinkError,
    StrategyError,
)
from kmr.mapping.functions import map_record
from kmr.record import Record
from kmr.reducers.collect import Batcher
from kmr.reducers.reducer import Retry
from kmr.service.threads import run_in_thread
from kmr.settings import Settings
from kmr.sinks import DeadLetterWriter
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryConsumer, MemoryWriter, VirtualTimeLoop
from kmr.values.value_format import Decoded, ValueFormat
from kmr.worker import Worker

from .workers import P0, P1, committed, locate, put, running, written

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kmr.record import Batch, Record, TopicPartition
    from kmr.testing import VirtualClock


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


@map_record
async def locate_or_hang(record: Record) -> dict[str, int]:
    if record.value == b"hang":
        await anyio.sleep_forever()
    return {"p": record.partition, "o": record.offset}


async def test_records_travel_from_the_topic_to_the_sink_and_are_committed(
    clock: VirtualClock,
) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, 0, b"a", b"skip", b"c")
    put(consumer, 1, 7, b"d")
    async with running(Strategy(locate, [MemoryWriter(journal)]), consumer) as worker:
        await consumer.rebalance([P0, P1])
        await clock.advance(4.0)
        await clock.advance(1.0)
        assert written(journal, 0) == [0, 2]
        assert written(journal, 1) == [7]
        assert committed(consumer) == {P0: 3, P1: 8}
        status = worker.status()
        assert (status.state, status.consumed, status.settled) == ("running", 4, 4)
        assert status.inflight_bytes == 0
    assert worker.status().state == "stopped"


async def test_a_shutdown_flushes_commits_and_leaves(clock: VirtualClock) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, 0, b"a", b"b")
    async with running(Strategy(locate, [MemoryWriter(journal)]), consumer):
        await consumer.rebalance([P0])
        await clock.settle()
        assert journal.written == []
    assert written(journal, 0) == [0, 1]
    assert committed(consumer) == {P0: 2}


async def test_a_shutdown_right_after_the_start_is_clean(clock: VirtualClock) -> None:
    async with running(Strategy(locate, [MemoryWriter(Journal())]), MemoryConsumer()) as worker:
        pass
    assert worker.status().state == "stopped"


async def test_a_drain_that_takes_too_long_names_what_is_left(clock: VirtualClock) -> None:
    journal, consumer = Journal(hold=anyio.Event()), MemoryConsumer()
    put(consumer, 0, 0, b"a", b"b")

    expected = pytest.RaisesExc(DeadlineExceeded, match=r"t-0\[0\.\.1\].*reduce-1")
    async with anyio.create_task_group() as tasks:
        with pytest.RaisesGroup(expected):
            async with running(Strategy(locate, [MemoryWriter(journal, max_rows=2)]), consumer):
                await consumer.rebalance([P0])
                await journal.until(lambda j: j.attempts == 1)
                tasks.start_soon(clock.advance, 20.0)  # the rest is for leaving the group


async def test_a_flush_of_a_worker_that_has_caught_up_may_take_longer_than_its_deadline(
    clock: VirtualClock,
) -> None:
    journal, consumer = Journal(hold=anyio.Event()), MemoryConsumer()
    put(consumer, 0, 0, b"a", b"b")
    strategy = Strategy(locate, [MemoryWriter(journal)])
    async with running(strategy, consumer, until_caught_up=True) as worker:
        await consumer.rebalance([P0])
        await clock.advance(100.0)
        assert (worker.status().state, journal.attempts) == ("draining", 1)
        assert journal.hold is not None
        journal.hold.set()
        await clock.settle()
        assert worker.status().state == "stopped"
    assert written(journal, 0) == [0, 1]
    assert committed(consumer) == {P0: 2}


async def test_a_worker_that_has_caught_up_ends_by_its_deadline_when_its_flush_is_repeated(
    clock: VirtualClock,
) -> None:
    journal, consumer = Journal(outcomes=deque([Retry("away")] * 1000)), MemoryConsumer()
    put(consumer, 0, 0, b"a", b"b")
    strategy = Strategy(locate, [MemoryWriter(journal)])
    expected = pytest.RaisesExc(DeadlineExceeded, match=r"t-0\[0\.\.1\].*reduce-1")
    with pytest.RaisesGroup(expected):
        async with running(strategy, consumer, until_caught_up=True):
            await consumer.rebalance([P0])
            for _ in range(40):
                await clock.advance(1.0)


async def test_a_flush_that_does_not_end_makes_the_worker_not_live(clock: VirtualClock) -> None:
    journal, consumer = Journal(hold=anyio.Event()), MemoryConsumer()
    put(consumer, 0, 0, b"a")
    async with running(
        Strategy(locate, [MemoryWriter(journal, max_rows=1)]), consumer, stall_timeout=300.0
    ) as worker:
        await consumer.rebalance([P0])
        await clock.advance(299.0)
        assert worker.status().live
        await clock.advance(2.0)
        status = worker.status()
        assert not status.live
        assert status.problem == "reduce-1: flush has not ended for 301 s"
        assert journal.hold is not None
        journal.hold.set()
        await clock.settle()
        assert worker.status().live


async def test_rows_that_wait_for_their_age_on_a_quiet_topic_are_live(clock: VirtualClock) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, 0, b"a")
    strategy = Strategy(locate, [MemoryWriter(journal, max_age=1000.0)])
    async with running(strategy, consumer, stall_timeout=300.0) as worker:
        await consumer.rebalance([P0])
        for _ in range(9):
            await clock.advance(100.0)
            assert worker.status().live
        assert journal.attempts == 0


async def test_a_map_that_hangs_beside_a_busy_partition_makes_the_worker_not_live(
    clock: VirtualClock,
) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, 0, b"hang")
    async with running(
        Strategy(locate_or_hang, [MemoryWriter(journal)]), consumer, stall_timeout=300.0
    ) as worker:
        await consumer.rebalance([P0, P1])
        for offset in range(31):
            assert worker.status().live
            put(consumer, 1, offset, b"a")
            await clock.advance(10.0)
        status = worker.status()
        assert not status.live
        assert status.problem == "map t-0: the map function has not ended for 310 s"
        assert len(written(journal, 1)) > 20
        await consumer.rebalance([P1])


async def test_a_sink_that_is_down_and_tried_again_is_live_and_the_reason_is_shown(
    clock: VirtualClock,
) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    journal.outcomes.extend([Retry("db:8123 refuses the connection", after=10.0)] * 100)
    put(consumer, 0, 0, b"a")
    async with running(
        Strategy(locate, [MemoryWriter(journal, max_rows=1)]), consumer, stall_timeout=300.0
    ) as worker:
        await consumer.rebalance([P0])
        for _ in range(60):
            await clock.advance(10.0)
            assert worker.status().live
        assert worker.status().problem == "reduce-1: db:8123 refuses the connection"
        labels = {"stage": "reduce-1", "reason": "db:8123 refuses the connection"}
        name, registry = "kmr_reduce_flush_retrying_seconds", worker.metrics.registry
        assert registry.get_sample_value(name, labels) == pytest.approx(600.0, abs=10.0)
        journal.outcomes.clear()
        await clock.advance(10.0)
        await clock.advance(1.0)
        assert registry.get_sample_value(name, labels) is None
        assert worker.status().problem is None


async def test_a_partition_that_is_not_fetched_while_its_lag_grows_makes_the_worker_not_live(
    clock: VirtualClock,
) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, 0, b"a")
    async with running(
        Strategy(locate, [MemoryWriter(journal)]), consumer, stall_timeout=300.0
    ) as worker:
        await consumer.rebalance([P0, P1])
        await clock.advance(5.0)
        consumer.pause([P0])  # and nothing resumes it
        for offset in range(1, 31):
            assert worker.status().live
            put(consumer, 0, offset, b"a")
            put(consumer, 1, offset, b"a")
            await clock.advance(10.0)
        await clock.advance(10.0)
        assert not worker.status().live
        assert "t-0: no records were fetched" in (worker.status().problem or "")
        consumer.resume([P0])
        await clock.advance(1.0)
        assert worker.status().live


class PausedConsumer(MemoryConsumer):
    """Learns the end of a partition only when it asks for it."""

    known: int | None = None

    async def look_up_ends(self) -> None:
        self.known = super().end_offset(P0)

    def end_offset(self, partition: TopicPartition) -> int | None:
        return self.known


async def test_the_lag_grows_while_nothing_is_fetched(clock: VirtualClock) -> None:
    consumer = PausedConsumer()
    async with running(Strategy(locate, [MemoryWriter(Journal())]), consumer) as worker:
        await consumer.rebalance([P0])
        consumer.pause([P0])
        for offset in range(7):
            put(consumer, 0, offset, b"a")
        await clock.advance(5.0)
        labels = {"topic": "t", "partition": "0"}
        value = worker.metrics.registry.get_sample_value
        assert value("kmr_consumer_lag_records", labels) == 7


async def test_a_worker_is_ready_when_it_has_its_first_assignment_and_not_before(
    clock: VirtualClock,
) -> None:
    consumer = MemoryConsumer()
    async with running(Strategy(locate, [MemoryWriter(Journal())]), consumer) as worker:
        assert not worker.status().ready
        await consumer.revoke()  # as the client does before it joins
        await clock.settle()
        assert not worker.status().ready
        assert worker.status().state == "starting"
        await consumer.assign([])
        assert worker.status().ready


class PollsAgain(MemoryConsumer):
    """Polls a second time when `again` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.again = anyio.Event()
        self.polls = 0

    async def poll(self, max_bytes: int | None = None) -> list[Batch]:
        self.polls += 1
        if self.polls > 1:
            await self.again.wait()
        return await super().poll(max_bytes)


async def test_the_error_of_a_map_wins_over_the_one_of_the_intake_that_finds_it_gone(
    clock: VirtualClock,
) -> None:
    consumer = PollsAgain()

    @map_record
    def fail(_: Record) -> None:
        consumer.again.set()  # the intake wakes before anything learns that this map has failed
        raise ValueError("poisoned")

    put(consumer, 0, 0, b"a")
    put(consumer, 0, 1, b"b")
    with pytest.RaisesGroup(pytest.RaisesExc(RecordFailed, match="poisoned")):
        async with running(Strategy(fail, [MemoryWriter(Journal())]), consumer):
            await consumer.rebalance([P0])
            await anyio.sleep_forever()


class SlowToClose(MemoryWriter):
    """Its `close` takes a moment, in which others find that it is gone."""

    async def close(self) -> None:
        for _ in range(10):
            await anyio.lowlevel.checkpoint()


async def test_the_error_of_a_reducer_wins_over_the_one_of_a_map_that_finds_it_gone(
    clock: VirtualClock,
) -> None:
    journal, consumer = Journal(hold=anyio.Event()), MemoryConsumer()
    journal.outcomes.append(SinkError("the sink is full"))
    for first in range(12):
        put(consumer, 0, first, b"a")
    sink = SlowToClose(journal, max_rows=1, on_error="stop")
    with pytest.RaisesGroup(pytest.RaisesExc(SinkError, match="the sink is full")):
        async with running(Strategy(locate, [sink], delivery="at-most-once"), consumer):
            await consumer.rebalance([P0])
            await clock.settle()  # now the map waits for room in the reducer's inbox
            assert journal.hold is not None
            journal.hold.set()
            await anyio.sleep_forever()


class FailsToClose(MemoryWriter):
    async def close(self) -> None:
        raise RuntimeError("cannot close")


async def test_the_first_error_wins_over_those_of_closing(clock: VirtualClock) -> None:
    consumer = MemoryConsumer()
    put(consumer, 0, 0, b"poison")
    with pytest.RaisesGroup(pytest.RaisesExc(RecordFailed, match="poisoned")):
        async with running(Strategy(locate, [FailsToClose(Journal())]), consumer):
            await consumer.rebalance([P0])
            await anyio.sleep_forever()


async def test_the_status_has_the_failures_of_all_stages_with_their_reasons(
    clock: VirtualClock,
) -> None:
    @map_record
    def number(record: Record) -> dict[str, int]:
        return {"n": int(record.value or b"")}

    journal, consumer = Journal(outcomes=deque([Retry("busy", after=1.0)])), MemoryConsumer()
    put(consumer, 0, 0, b"1", b"two", b"3")
    strategy = Strategy(number, [MemoryWriter(journal)], reduce_err=MemoryWriter(Journal()))
    async with running(strategy, consumer) as worker:
        await consumer.rebalance([P0])
        for _ in range(10):  # to the flush, to its repetition, to the flush of the error stage
            await clock.advance(2.0)
        status = worker.status()
    assert (status.settled, status.failed, status.repeated) == (3, 1, 1)
    repeated, failed = status.failures
    assert (repeated.kind, repeated.stage, repeated.reason) == (
        "flush repeated",
        "reduce-1",
        "busy",
    )
    assert (failed.kind, failed.stage, failed.count) == ("record failed", "map", 1)
    assert "invalid literal for int()" in failed.reason


async def test_a_worker_that_would_read_its_own_messages_is_refused(clock: VirtualClock) -> None:
    strategy = Strategy(locate, [MemoryWriter(Journal())], reduce_err=DeadLetterWriter("t"))
    with pytest.raises(StrategyError, match="reduce-err: DeadLetterWriter writes to topic t"):
        Worker(strategy, Settings(topics=("t",), group="g"), consumer=MemoryConsumer())


class Away(MemoryConsumer):
    """Its broker does not answer before `back` is set."""

    back = False
    refuses = False
    silent: str | None = None

    async def reach(self) -> None:
        if self.refuses:
            raise ConsumerError("127.0.0.1:1 refuses PLAIN credentials: wrong user or password")
        if not self.back:
            raise BrokerUnavailable("no Kafka broker answers at 127.0.0.1:1")


@asynccontextmanager
async def starting(consumer: MemoryConsumer) -> AsyncIterator[Worker]:
    """Run a worker in the background, without waiting for its start."""
    settings = Settings(topics=("t",), group="g", executor="inline", broker_timeout=60.0)
    worker = Worker(Strategy(locate, [MemoryWriter(Journal())]), settings, consumer=consumer)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        yield worker


async def test_a_worker_waits_for_its_broker(clock: VirtualClock) -> None:
    consumer = Away()
    async with starting(consumer) as worker:
        await clock.advance(30.0)
        status = worker.status()
        assert (status.live, status.ready) == (True, False)
        assert status.problem == "no Kafka broker answers at 127.0.0.1:1"
        consumer.back = True
        await clock.advance(1.0)
        await consumer.started.wait()  # a thread loads compiled code first
        await consumer.rebalance([P0])
        assert worker.status().ready
        assert worker.status().problem is None
        worker.shutdown("the test is over")


async def test_a_worker_gives_its_broker_up_after_a_time(clock: VirtualClock) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(BrokerUnavailable, match=r"127\.0\.0\.1:1")):
        async with starting(Away()):
            await clock.advance(60.0)


async def test_a_worker_that_waits_for_its_broker_ends_at_once_on_a_shutdown(
    clock: VirtualClock,
) -> None:
    async with starting(Away()) as worker:
        await clock.advance(1.0)
        worker.shutdown("SIGTERM")
    assert worker.status().state == "stopped"


async def test_a_worker_is_not_ready_while_its_brokers_are_silent_and_ends_when_they_refuse_it(
    clock: VirtualClock,
) -> None:
    consumer = Away()
    consumer.back = True
    with pytest.RaisesGroup(pytest.RaisesExc(ConsumerError, match="wrong user or password")):
        async with starting(consumer) as worker:
            await clock.advance(1.0)
            await consumer.started.wait()
            await consumer.rebalance([P0])
            consumer.back, consumer.silent = False, "group g: its coordinator does not answer"
            await clock.advance(1.0)
            status = worker.status()
            assert (status.state, status.live, status.ready) == ("running", True, False)
            assert status.problem == "no Kafka broker answers at 127.0.0.1:1"
            assert worker.metrics.registry.get_sample_value("kmr_broker_silent") == 1
            consumer.refuses = True
            for _ in range(12):
                await clock.advance(1.0)


async def test_a_map_that_cancels_the_task_in_which_it_runs_ends_the_worker_with_an_error(
    clock: VirtualClock,
) -> None:
    async def cancels(record: Record) -> Any:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return locate(record)

    consumer = MemoryConsumer()
    put(consumer, 0, 0, b"a")
    settings = Settings(topics=("t",), group="g", executor="inline")
    worker = Worker(Strategy(cancels, [MemoryWriter(Journal())]), settings, consumer=consumer)
    with pytest.RaisesGroup(pytest.RaisesExc(KmrError, match="a task of the worker was cancelled")):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.run)
            await consumer.started.wait()
            await consumer.rebalance([P0])
            for _ in range(20):
                await clock.advance(1.0)
    assert consumer.commits == [{P0: 0}]


class Hanging(Batcher):
    """Its plain `flush` hangs in a thread until `go_on` is set."""

    def __init__(self) -> None:
        super().__init__(max_rows=1)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __deepcopy__(self, memo: object) -> Self:
        return copy.copy(self)

    def flush(self) -> Any:
        self.begun.set()
        self.go_on.wait()


@pytest.mark.parametrize("fails", [True, False])
async def test_a_flush_that_hangs_in_a_thread_is_abandoned_at_the_deadline(
    clock: VirtualClock, fails: bool
) -> None:
    """The deadline begins with the shutdown, or with the failure of another partition's map."""
    consumer, sink = MemoryConsumer(), Hanging()
    put(consumer, 0, 0, b"a")
    settings = Settings(topics=("t",), group="g", executor="inline")
    worker = Worker(Strategy(locate, [sink]), settings, consumer=consumer)
    expected = RecordFailed if fails else DeadlineExceeded
    with pytest.RaisesGroup(pytest.RaisesExc(expected)):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.run)
            await consumer.started.wait()
            await consumer.rebalance([P0, P1])
            await anyio.to_thread.run_sync(sink.begun.wait)
            if fails:
                put(consumer, 1, 0, b"poison")
            else:
                worker.shutdown("SIGTERM")
            with anyio.CancelScope(shield=True):
                await clock.advance(19.0)
                assert worker.status().state == ("running" if fails else "draining")
                await clock.advance(1.0)
    sink.go_on.set()


class _Compiled(ValueFormat):
    """A format whose code is being compiled as long as a test wants."""

    schema = pa.schema([("value", pa.binary())])

    def __init__(self, compiling: threading.Event, compiled: threading.Event) -> None:
        self.compiling = compiling
        self.compiled = compiled

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        return self

    def warm_up(self) -> None:
        self.compiling.set()
        assert self.compiled.wait(60)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        return Decoded(pa.RecordBatch.from_arrays([values], schema=self.schema), {})


async def test_a_worker_does_not_join_before_its_formats_are_compiled(clock: VirtualClock) -> None:
    compiling, compiled = threading.Event(), threading.Event()
    strategy = Strategy(
        reduce=[MemoryWriter(Journal())], value=_Compiled(compiling, compiled), tombstones="drop"
    )
    consumer = MemoryConsumer()
    worker = Worker(strategy, Settings(topics=("t",), group="g"), consumer=consumer)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await run_in_thread(compiling.wait, 60)
        assert (worker.status().state, worker.status().ready) == ("starting", False)
        assert not consumer.started.is_set()
        compiled.set()
        await consumer.started.wait()
        await consumer.rebalance([P0])
        assert worker.status().ready
        worker.shutdown("the test is over")
