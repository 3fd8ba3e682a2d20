"""User code that raises what is no `Exception`: its record fails, or the worker does."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from kmr.errors import Escaped, RecordFailed
from kmr.mapping.functions import map_batch, map_record
from kmr.reducers.collect import Batcher, Collect
from kmr.reducers.sink import NEW
from kmr.sinks import RangeRows, RangeWriter
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryConsumer, MemoryWriter, VirtualTimeLoop

from ..workers import P0, put, running, until_mapped

if TYPE_CHECKING:
    import pyarrow as pa

    from kmr.record import Record, Rows
    from kmr.reducers.reducer import Context
    from kmr.testing import VirtualClock


class Odd(BaseException):
    """An exception of the user's that is no `Exception`."""


RAISED = [asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit, Odd]
SPECIAL = [StopIteration, StopAsyncIteration, RecursionError, MemoryError]
"""Exceptions with a meaning to the interpreter: in a coroutine or a generator it raises another one."""


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


def maps(raised: type[BaseException]) -> dict[str, Any]:
    """Every kind of map; each fails for the record `bad`."""

    def look(record: Record) -> dict[str, Any]:
        if record.value == b"bad":
            raise raised
        return {"o": record.offset}

    @map_batch
    def batch(records: pa.RecordBatch) -> pa.RecordBatch:
        if b"bad" in records.column("value").to_pylist():
            raise raised
        return records.select(["offset", "kmr_offset"])

    async def look_async(record: Record) -> dict[str, Any]:
        await anyio.lowlevel.checkpoint()
        return look(record)

    def generate(record: Record) -> Any:
        yield look(record)

    return {
        "record": map_record(look),
        "batch": batch,
        "async": map_record(look_async),
        "generator": map_record(generate),
        "concurrent": map_record(concurrency=2)(look),
        "async concurrent": map_record(concurrency=2)(look_async),
    }


@pytest.mark.parametrize(
    ("raised", "executor"),
    [*product(RAISED, ["inline", "thread"]), *product(SPECIAL, ["inline"])],
)
@pytest.mark.parametrize("kind", sorted(maps(Odd)))
async def test_a_record_fails_whatever_the_map_raises_for_it(
    clock: VirtualClock, raised: type[BaseException], kind: str, executor: str
) -> None:
    journal, errors, consumer = Journal(), Journal(), MemoryConsumer()
    put(consumer, 0, 0, b"a", b"bad", b"c")
    strategy = Strategy(
        maps(raised)[kind],
        [MemoryWriter(journal, max_age=1.0)],
        reduce_err=MemoryWriter(errors, max_age=1.0),
    )
    async with running(strategy, consumer, executor=executor) as worker:
        await consumer.rebalance([P0])
        await until_mapped(worker, 3)
        while errors.count < 1 or journal.count < 2:
            await clock.advance(0.5)
            await anyio.lowlevel.checkpoint()
    (failed,) = errors.rows()
    assert (failed["offset"], raised.__name__ in failed["reason"]) == (1, True)
    assert raised in SPECIAL or failed["exception"].endswith(raised.__name__)
    assert "look" in failed["traceback"] or "batch" in failed["traceback"]


@pytest.mark.parametrize("raised", RAISED)
async def test_without_an_error_sink_the_worker_fails(
    clock: VirtualClock, raised: type[BaseException]
) -> None:
    consumer = MemoryConsumer()
    put(consumer, 0, 0, b"bad")
    strategy = Strategy(maps(raised)["record"], [MemoryWriter(Journal())])
    with pytest.RaisesGroup(pytest.RaisesExc(RecordFailed, match=raised.__name__)):
        async with running(strategy, consumer):
            await consumer.rebalance([P0])
            await anyio.sleep_forever()


class Bad(Batcher):
    """Raises in one of its methods, twice."""

    calls = 0

    def __init__(self, method: str, raised: type[BaseException]) -> None:
        super().__init__(max_rows=1)
        self.method, self.raised = method, raised

    def _maybe(self, method: str) -> None:
        if method == self.method and self.calls < 2:
            Bad.calls += 1
            raise self.raised

    async def open(self, context: Context) -> None:
        self._maybe("open")

    def add(self, rows: Rows) -> None:
        self._maybe("add")
        super().add(rows)

    async def flush(self) -> Any:  # type: ignore[override]
        self._maybe("flush")


@pytest.mark.parametrize("method", ["open", "add", "flush"])
@pytest.mark.parametrize("raised", [asyncio.CancelledError, SystemExit, Odd])
async def test_a_reducer_fails_the_worker_or_is_called_again(
    clock: VirtualClock, raised: type[BaseException], method: str
) -> None:
    consumer = MemoryConsumer()
    put(consumer, 0, 0, b"a")
    Bad.calls = 0
    strategy = Strategy(maps(Odd)["record"], [Bad(method, raised)])
    if (method, raised) == ("flush", asyncio.CancelledError):
        async with running(strategy, consumer) as worker:
            await consumer.rebalance([P0])
            problems = set()
            while worker.status().settled < 1:
                await clock.advance(0.02)
                problems.add(worker.status().problem)
            assert problems == {None, "reduce-1: CancelledError"}
        return
    with pytest.RaisesGroup(pytest.RaisesExc(Escaped, match=raised.__name__)):
        async with running(strategy, consumer):
            await consumer.rebalance([P0])
            await anyio.sleep_forever()


async def test_a_function_of_collect_that_exits_fails_the_worker(clock: VirtualClock) -> None:
    consumer = MemoryConsumer()
    put(consumer, 0, 0, b"a")

    def leave(_: object) -> None:
        raise SystemExit(0)

    strategy = Strategy(maps(Odd)["record"], [Collect(leave, max_rows=1)])
    with pytest.RaisesGroup(pytest.RaisesExc(Escaped, match="SystemExit: 0")):
        async with running(strategy, consumer):
            await consumer.rebalance([P0])
            await anyio.sleep_forever()


class Exiting(RangeWriter):
    """Exits when it writes."""

    async def has(self, rows: RangeRows) -> bool:
        return False

    async def write(self, rows: RangeRows) -> None:
        raise self.raised

    def __init__(self, raised: type[BaseException]) -> None:
        super().__init__(max_rows=1)
        self.raised = raised


@pytest.mark.parametrize("raised", [asyncio.CancelledError, SystemExit, Odd])
async def test_a_sink_names_what_its_write_raised(raised: type[BaseException]) -> None:
    import pyarrow as pa

    from kmr.record import Range, Rows
    from kmr.reducers.reducer import Context

    writer = Exiting(raised)
    await writer.open(Context("g", "reduce-1"))
    writer.add(Rows(pa.table({"n": [1]}), (Range("t", 0, 0, 0),)))
    with pytest.raises(Escaped, match=raised.__name__):
        await writer.flush(NEW)
