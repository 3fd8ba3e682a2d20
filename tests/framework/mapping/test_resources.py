"""Resources: opened once, given to each call, closed at the end by the task that opened them."""

from __future__ import annotations

import importlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pyarrow as pa
import pytest

from kmr.errors import StrategyError
from kmr.mapping.functions import map_batch, map_record
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryConsumer, MemoryWriter

from ..workers import P0, P1, put, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

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
    return pa.RecordBatch.from_arrays([*columns, columns[0]], ["o", "r", "kmr_offset"])


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


JOURNALED = """
import contextlib, os, pathlib
from kmr import map_record

JOURNAL = pathlib.Path(__file__).with_name("journal")

def note(step):
    with JOURNAL.open("a") as file:
        file.write(f"{step} {os.getpid()}\\n")

@contextlib.asynccontextmanager
async def pool():
    note("open")
    yield 7
    note("close")

@map_record
def plain(record, resources):
    while record.value == b"wait" and JOURNAL.read_text().count("open") < 2:
        pass
    return {"o": record.offset, "r": resources, "process": os.getpid()}
"""


async def test_each_process_of_a_plain_map_opens_resources_and_closes_them_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "journaled.py").write_text(JOURNALED)
    monkeypatch.syspath_prepend(tmp_path)
    journaled = importlib.import_module("journaled")
    journal, consumer = Journal(), MemoryConsumer()
    put(consumer, 0, 0, b"wait")
    put(consumer, 1, 0, b"wait")
    strategy = Strategy(
        journaled.plain, [MemoryWriter(journal, max_rows=1)], resources=journaled.pool
    )
    async with running(strategy, consumer, executor="process", executor_workers=2):
        await consumer.rebalance([P0, P1])
        await journal.until(lambda j: j.count == 2)
    rows = journal.rows()
    assert [(row["o"], row["r"]) for row in rows] == [(0, 7), (0, 7)]
    processes = {row["process"] for row in rows}
    assert len(processes) == 2
    steps = (tmp_path / "journal").read_text().splitlines()
    assert sorted(steps[:2]) == sorted(f"open {process}" for process in processes)
    assert sorted(steps[2:]) == sorted(f"close {process}" for process in processes)


async def test_resources_that_another_process_cannot_import_are_refused() -> None:
    def local() -> AbstractAsyncContextManager[None]:
        return broken()

    strategy = Strategy(plain, [MemoryWriter(Journal())], resources=local)
    with pytest.RaisesGroup(pytest.RaisesExc(StrategyError, match="resources cannot be pickled")):
        async with running(strategy, MemoryConsumer(), executor="process"):
            await anyio.sleep_forever()


@asynccontextmanager
async def broken() -> AsyncIterator[None]:
    raise OSError("no route")
    yield


@pytest.mark.parametrize("executor", ["thread", "process"])
async def test_resources_that_cannot_be_opened_are_one_message(executor: str) -> None:
    strategy = Strategy(plain, [MemoryWriter(Journal())], resources=broken)
    expected = pytest.RaisesExc(
        StrategyError, match="resources= cannot be opened: OSError: no route"
    )
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
