"""Maps of several partitions together: order, slow and failing partitions, lost ones, the drain."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import anyio
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kmr.errors import RecordFailed
from kmr.map_shared import LITTLE
from kmr.mapping.together import Together
from kmr.record import Record, TopicPartition
from kmr.service.threads import run_in_thread
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryConsumer, MemoryWriter
from kmr.values.registry.registry import RegistryUnavailable
from kmr.values.value_format import Decoded, ValueFormat
from tests.examples import examples

from .workers import locate, put, running, until_settled, written

if TYPE_CHECKING:
    from kmr.worker import Worker

PARTITIONS = [TopicPartition("t", number) for number in range(6)]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine any map may take some tens of milliseconds: only one that hangs is slow here."""
    monkeypatch.setattr("kmr.map_shared._TICK", 0.2)
    monkeypatch.setattr("kmr.map_shared._LONGEST_ROUND", 10.0)
    monkeypatch.setattr("kmr.map._QUICK", 10.0)


class Slow:
    """Maps as `locate`; the value `slow` waits until `go_on` is set."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.calls = 0

    def __call__(self, record: Record) -> dict[str, int] | None:
        self.calls += 1
        if record.value == b"slow":
            self.begun.set()
            assert self.go_on.wait(60)
        return locate(record)


def strategy_of(function: Any, journal: Journal, **options: Any) -> Strategy:
    return Strategy(function, [MemoryWriter(journal, max_age=0.01)], **options)


def alone(worker: Worker) -> dict[int, int]:
    """Return how many batches of each partition were mapped by its own stage."""
    shares = worker.pipeline.shared_map.shares
    return {name.partition: share.alone for name, share in shares.items()}


async def until_nothing_is_in_flight(worker: Worker) -> None:
    budget = worker.pipeline.intake.budget
    while budget.used or not budget.has_room(budget.limit):  # noqa: ASYNC110  samples the worker
        await anyio.sleep(0.001)


async def test_little_batches_of_all_partitions_are_mapped_together(patient: None) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    async with running(strategy_of(locate, journal), consumer, executor="thread") as worker:
        await consumer.rebalance(PARTITIONS)
        for partition in PARTITIONS:
            put(consumer, partition.partition, 0, b"a", b"skip", b"b")
        for partition in PARTITIONS:
            await until_settled(worker, partition, 3)
        assert set(alone(worker).values()) == {0}
        await until_nothing_is_in_flight(worker)
    assert [written(journal, number) for number in range(6)] == [[0, 2]] * 6


async def test_a_map_that_hangs_leaves_and_the_others_go_on(patient: None) -> None:
    slow, journal, consumer = Slow(), Journal(), MemoryConsumer()
    async with running(strategy_of(slow, journal), consumer, executor="thread") as worker:
        await consumer.rebalance(PARTITIONS)
        for partition in PARTITIONS:
            hangs = partition.partition == 2
            put(consumer, partition.partition, 0, b"a", b"slow" if hangs else b"a")
        assert await anyio.to_thread.run_sync(slow.begun.wait, 60)
        for partition in PARTITIONS:
            if partition.partition != 2:
                put(consumer, partition.partition, 2, b"b")
                await until_settled(worker, partition, 3)
        put(consumer, 2, 2, b"b")
        assert written(journal, 2) == []
        (stage,) = [each for each in worker.status().stages if each.name == "map t-2"]
        assert stage.activity == "mapping"
        assert stage.working > 0
        slow.go_on.set()
        await until_settled(worker, PARTITIONS[2], 3)
        assert alone(worker) == {number: int(number == 2) for number in range(6)}
        put(consumer, 2, 3, b"c")
        await until_settled(worker, PARTITIONS[2], 4)
        assert alone(worker)[2] == 1  # quick again
        await until_nothing_is_in_flight(worker)
    assert slow.calls == 6 * 2 + 6 + 1  # no record twice
    assert written(journal, 2) == [0, 1, 2, 3]


async def test_a_map_is_quick_whose_end_a_busy_event_loop_notices_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def late(*arguments: Any, **options: Any) -> Any:
        result = await run_in_thread(*arguments, **options)
        await anyio.sleep(0.5)
        return result

    monkeypatch.setattr("kmr.mapping.executor.run_in_thread", late)
    monkeypatch.setattr("kmr.map._QUICK", 0.25)
    journal, consumer = Journal(), MemoryConsumer()
    strategy = Strategy(locate, [MemoryWriter(journal, max_age=0.01)])
    async with running(strategy, consumer, executor="thread") as worker:
        await consumer.rebalance(PARTITIONS[:1])
        put(consumer, 0, 0, *[b"a"] * (LITTLE + 1))
        await until_settled(worker, PARTITIONS[0], LITTLE + 1)
        put(consumer, 0, LITTLE + 1, b"b")
        await until_settled(worker, PARTITIONS[0], LITTLE + 2)
        assert alone(worker)[0] == 1


@pytest.mark.parametrize("full", [False, True], ids=["with room", "into a full stage"])
async def test_rows_before_a_slow_batch_of_their_partition_come_before_its_rows(
    monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    finish, slow, journal, consumer = Together.finish, Slow(), Journal(), MemoryConsumer()

    def finish_late(together: Together, end: int) -> None:
        slow.go_on.set()  # the slow batch is mapped before the rows of those before it are made
        time.sleep(0.2)
        finish(together, end)

    monkeypatch.setattr(Together, "finish", finish_late)
    if full:
        monkeypatch.setattr("kmr.map.MapStage.send_now", lambda *_: False)
    async with running(strategy_of(slow, journal), consumer, executor="thread") as worker:
        await consumer.rebalance(PARTITIONS)
        put(consumer, 1, 0, b"a")
        for offset, value in enumerate([b"a", b"b", b"slow", b"c", b"d"]):
            put(consumer, 2, offset, value)
        await until_settled(worker, PARTITIONS[2], 5)
        await until_settled(worker, PARTITIONS[1], 1)
        await until_nothing_is_in_flight(worker)
    assert written(journal, 2) == [0, 1, 2, 3, 4]


async def test_a_partition_that_is_lost_before_its_earlier_rows_are_made_drops_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finish, slow, journal, consumer = Together.finish, Slow(), Journal(), MemoryConsumer()
    is_finishing, may_finish = threading.Event(), threading.Event()

    def finish_late(together: Together, end: int) -> None:
        is_finishing.set()
        assert may_finish.wait(60)
        finish(together, end)

    monkeypatch.setattr(Together, "finish", finish_late)
    async with running(strategy_of(slow, journal), consumer, executor="thread") as worker:
        await consumer.rebalance(PARTITIONS)
        for partition in (1, 2):
            put(consumer, partition, 0, b"a")
        put(consumer, 2, 1, b"slow")
        assert await anyio.to_thread.run_sync(is_finishing.wait, 60)
        await consumer.rebalance(PARTITIONS[:2])
        may_finish.set()
        await until_settled(worker, PARTITIONS[1], 1)
        slow.go_on.set()
        await until_nothing_is_in_flight(worker)
    assert written(journal, 1) == [0]
    assert written(journal, 2) == []


async def test_a_partition_that_is_lost_while_its_map_hangs_drops_its_rows_alone() -> None:
    slow, journal, consumer = Slow(), Journal(), MemoryConsumer()
    async with running(strategy_of(slow, journal), consumer, executor="thread") as worker:
        await consumer.rebalance(PARTITIONS)
        for partition in PARTITIONS:
            hangs = partition.partition == 0
            put(consumer, partition.partition, 0, b"slow" if hangs else b"a")
        assert await anyio.to_thread.run_sync(slow.begun.wait, 60)
        await consumer.rebalance(PARTITIONS[1:])
        for partition in PARTITIONS[1:]:
            put(consumer, partition.partition, 1, b"b")
            await until_settled(worker, partition, 2)
        slow.go_on.set()
        await until_nothing_is_in_flight(worker)
    assert [written(journal, number) for number in range(6)] == [[], *([[0, 1]] * 5)]


async def test_a_record_that_fails_goes_to_the_error_sink_and_touches_no_other_partition() -> None:
    journal, failed, consumer = Journal(), Journal(), MemoryConsumer()
    strategy = strategy_of(locate, journal, reduce_err=MemoryWriter(failed, max_age=0.01))
    async with running(strategy, consumer, executor="thread") as worker:
        await consumer.rebalance(PARTITIONS)
        for partition in PARTITIONS:
            put(consumer, partition.partition, 0, b"a", b"poison", b"b")
        for partition in PARTITIONS:
            await until_settled(worker, partition, 3)
        await until_nothing_is_in_flight(worker)
    assert [written(journal, number) for number in range(6)] == [[0, 2]] * 6
    places = sorted((row["partition"], row["offset"]) for row in failed.rows())
    assert places == [(number, 1) for number in range(6)]


class Away(ValueFormat):
    """Reads values as they are; those that are `new` need a registry, which has answered once `is_back`."""

    schema = pa.schema([("value", pa.binary())])

    def __init__(self) -> None:
        self.is_back = False
        self.asked = 0

    def decode(self, values: pa.BinaryArray) -> Decoded:
        if any(b"new" in (value or b"") for value in values.to_pylist()) and not self.is_back:
            self.asked += 1
            raise RegistryUnavailable("no answer")
        return Decoded(pa.RecordBatch.from_arrays([values], names=["value"]), {})


@pytest.mark.parametrize("executor", ["thread", "inline"])
async def test_records_wait_for_a_registry_that_does_not_answer_and_no_other_partition_does(
    executor: str,
) -> None:
    journal, failed, consumer, away = Journal(), Journal(), MemoryConsumer(), Away()
    writer = MemoryWriter(journal, max_age=0.01)
    strategy = Strategy(value=away, reduce=writer, reduce_err=MemoryWriter(failed, max_age=0.01))
    async with running(strategy, consumer, executor=executor) as worker:
        await consumer.rebalance(PARTITIONS)
        for partition in PARTITIONS:
            number = partition.partition
            put(consumer, number, 0, b"%d:0" % number, b"%d:1" % number + b" new" * (number == 2))
            put(consumer, number, 2, b"%d:2" % number)
        for partition in PARTITIONS:
            if partition.partition != 2:
                await until_settled(worker, partition, 3)
        while away.asked < 2:  # noqa: ASYNC110  samples the worker
            await anyio.sleep(0.01)
        status = worker.status()
        (waiting,) = [each for each in status.stages if each.reason is not None]
        assert (waiting.name, waiting.reason) == ("map t-2", "no answer")
        assert status.problem == "map t-2: no answer"
        assert status.repeated
        away.is_back = True
        await until_settled(worker, PARTITIONS[2], 3)
        assert worker.status().problem is None
    values = [row["value"].decode().removesuffix(" new") for row in journal.rows()]
    assert sorted(values) == sorted(set(values)) == [f"{p}:{o}" for p in range(6) for o in range(3)]
    assert [each for each in values if each[0] == "2"] == ["2:0", "2:1", "2:2"]
    assert failed.rows() == []


async def test_a_drain_ends_the_wait_for_a_registry_and_settles_nothing_that_waited() -> None:
    journal, consumer, away = Journal(), MemoryConsumer(), Away()
    strategy = Strategy(value=away, reduce=MemoryWriter(journal, max_age=0.01))
    async with running(strategy, consumer, executor="thread") as worker:
        await consumer.rebalance(PARTITIONS)
        put(consumer, 0, 0, b"a")
        await until_settled(worker, PARTITIONS[0], 1)
        put(consumer, 0, 1, b"new", b"b")
        while worker.status().problem is None:  # noqa: ASYNC110  samples the worker
            await anyio.sleep(0.01)
        worker.shutdown("enough")
    assert [row["value"] for row in journal.rows()] == [b"a"]


async def test_without_an_error_sink_a_record_that_fails_ends_the_worker_with_its_name() -> None:
    consumer = MemoryConsumer()

    async def run() -> None:
        async with running(strategy_of(locate, Journal()), consumer, executor="thread") as worker:
            await consumer.rebalance(PARTITIONS)
            put(consumer, 3, 0, b"poison")
            await until_settled(worker, PARTITIONS[3], 1)

    with pytest.raises(ExceptionGroup) as raised:
        await run()
    (error,) = raised.value.exceptions
    assert isinstance(error, RecordFailed)
    assert "t-3[0..0] in map" in str(error)


async def test_a_drain_ends_the_maps_before_their_next_record_and_commits_what_is_mapped() -> None:
    slow, journal, consumer = Slow(), Journal(), MemoryConsumer()
    async with running(strategy_of(slow, journal), consumer, executor="thread") as worker:
        await consumer.rebalance(PARTITIONS)
        put(consumer, 0, 0, b"a", b"slow", b"a")
        assert await anyio.to_thread.run_sync(slow.begun.wait, 60)
        put(consumer, 1, 0, b"a")
        await until_mapped_of(worker, 1)
        worker.shutdown("now")
        await anyio.sleep(0.05)
        slow.go_on.set()
    assert written(journal, 0) == [0, 1]
    assert consumer.commits[-1].get(PARTITIONS[0]) == 2


async def until_mapped_of(worker: Worker, partition: int) -> None:
    while True:
        stages = {stage.name: stage for stage in worker.status().stages}
        if worker.status().consumed >= 4 and stages[f"map t-{partition}"].activity == "idle":
            return
        await anyio.sleep(0.001)


@settings(max_examples=examples(75), deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 6)), min_size=1, max_size=30),
    hasty=st.booleans(),
    late=st.booleans(),
)
def test_rows_keep_the_order_of_their_partition_however_they_are_mapped(
    sizes: list[tuple[int, int]], hasty: bool, late: bool
) -> None:
    """Batches of more than three records are mapped alone, some calls take long, or what follows."""
    journal, finish = Journal(), Together.finish

    def finish_late(together: Together, end: int) -> None:
        time.sleep(0.1)
        finish(together, end)

    async def run() -> None:
        consumer = MemoryConsumer()
        slow = threading.Event()

        def function(record: Record) -> dict[str, int] | None:
            if not hasty and record.offset % 9 == 4:
                slow.wait(0.07)
            return locate(record)

        ends = [0, 0, 0]
        async with running(strategy_of(function, journal), consumer, executor="thread") as worker:
            await consumer.rebalance(PARTITIONS[:3])
            for partition, size in sizes:
                put(consumer, partition, ends[partition], *[b"a"] * size)
                ends[partition] += size
                if hasty:
                    await anyio.lowlevel.checkpoint()
            for partition, end in enumerate(ends):
                if end:
                    await until_settled(worker, PARTITIONS[partition], end)
        assert [written(journal, number) for number in range(3)] == [[*range(end)] for end in ends]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kmr.map_shared.LITTLE", 3)
        if late:
            patch.setattr(Together, "finish", finish_late)
        anyio.run(run)
