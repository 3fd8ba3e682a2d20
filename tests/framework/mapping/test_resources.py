"""Resources: opened once, given to each call, closed at the end by the task that opened them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pyarrow as pa
import pytest

from kmr.errors import StrategyError
from kmr.mapping.functions import map_batch, map_record
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryConsumer, MemoryWriter

from ..workers import P0, put, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kmr.record import Record


class Steps:
    def __init__(self) -> None:
        self.steps: list[str] = []

    @asynccontextmanager
    async def pool(self) -> AsyncIterator[int]:
        async with anyio.create_task_group():  # must be left by the task that entered it
            self.steps.append("open")
            yield 7
            self.steps.append("close")


@map_record
def plain(record: Record, resources: int) -> dict[str, int]:
    return {"o": record.offset, "r": resources}


@map_record(concurrency=2)
async def coroutine(record: Record, *, resources: int) -> dict[str, int]:
    return {"o": record.offset, "r": resources}


@map_batch
def batch(records: pa.RecordBatch, resources: int) -> pa.RecordBatch:
    columns: list[Any] = [records.column("offset"), pa.array([resources] * len(records))]
    return pa.RecordBatch.from_arrays([*columns, columns[0]], ["o", "r", "offset"])


class Annotator:
    """A map that is an object."""

    def __call__(self, record: Record, resources: int) -> dict[str, int]:
        return plain(record, resources)


@pytest.mark.parametrize("executor", ["inline", "thread"])
@pytest.mark.parametrize("function", [plain, coroutine, batch, map_record(Annotator())])
async def test_a_worker_opens_resources_once_and_closes_them_at_its_end(
    function: Any, executor: str
) -> None:
    steps, journal, consumer = Steps(), Journal(), MemoryConsumer()
    put(consumer, 0, 0, b"a", b"b")
    strategy = Strategy(function, [MemoryWriter(journal, max_rows=1)], resources=steps.pool)
    async with running(strategy, consumer, executor=executor):
        await consumer.rebalance([P0])
        await journal.until(lambda j: j.count == 2)
        assert steps.steps == ["open"]
    assert steps.steps == ["open", "close"]
    assert [(row["o"], row["r"]) for row in journal.rows()] == [(0, 7), (1, 7)]


@asynccontextmanager
async def broken() -> AsyncIterator[None]:
    raise OSError("no route")
    yield


@pytest.mark.parametrize(
    ("executor", "message"),
    [("thread", "opened: OSError: no route"), ("process", "opened in the proc")],
)
async def test_resources_that_cannot_be_opened_are_one_message(executor: str, message: str) -> None:
    strategy = Strategy(plain, [MemoryWriter(Journal())], resources=broken)
    expected = pytest.RaisesExc(StrategyError, match="resources= cannot be " + message)
    with pytest.RaisesGroup(expected):
        async with running(strategy, MemoryConsumer(), executor=executor):
            await anyio.sleep_forever()


def test_a_map_and_its_strategy_agree_about_resources() -> None:
    @map_record
    def without(record: Record) -> None: ...

    with pytest.raises(StrategyError, match="plain has a parameter named resources"):
        Strategy(plain, [MemoryWriter(Journal())])
    with pytest.raises(StrategyError, match="without has none"):
        Strategy(without, [MemoryWriter(Journal())], resources=broken)
