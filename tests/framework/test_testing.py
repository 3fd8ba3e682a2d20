"""The tools for tests: the virtual clock, the consumer and the writer in memory."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import pytest
import structlog
from structlog.testing import capture_logs

from kmr import Aggregate, Collect, Json, Record, Strategy, map_batch, map_record
from kmr.errors import StrategyError
from kmr.sinks import ClickHouseWriter, StreamWriter
from kmr.testing import (
    Journal,
    MemoryWriter,
    VirtualTimeLoop,
    run_strategy,
)
from kmr.types import Header, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from kmr.reducers.reducer import Context
    from kmr.testing import VirtualClock


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


async def test_time_passes_only_when_a_test_advances_it(clock: VirtualClock) -> None:
    woken: list[float] = []

    async def sleep() -> None:
        await anyio.sleep(3600)
        woken.append(clock.now)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sleep)
        await clock.advance(3599)
        assert woken == []
        await clock.advance(1)
    assert woken == [3600.0]


async def test_copies_of_a_writer_share_the_journal_and_no_rows(clock: VirtualClock) -> None:
    writer = MemoryWriter(Journal())
    other = copy.deepcopy(writer)
    other.reset()
    assert other.journal is writer.journal
    assert other.collected is not writer.collected


class Order(msgspec.Struct):
    id: int
    amount: float


@map_record
def large(order: Order, record: Record) -> dict[str, Any] | None:
    if order.amount < 0:
        raise ValueError("negative")
    return None if order.amount < 10 else {"id": order.id, "partition": record.partition}


ORDERS = Strategy(
    value=Json(Order),
    map=large,
    reduce=[ClickHouseWriter("nowhere")],
    reduce_err=StreamWriter("/nowhere/at/all"),
    delivery="at-most-once",
)


async def test_run_strategy_returns_rows_failures_and_what_was_filtered_without_its_sinks() -> None:
    run = run_strategy(
        ORDERS,
        [
            {"id": 1, "amount": 20},
            '{"id": 2, "amount": 5}',
            b'{"id": 3, "amount": -1}',
            Record("orders", 3, 7, b"k", b'{"id": 4, "amount": 10}', 0, 0, (Header("h", b"v"),)),
            Record("orders", 3, 9, None, b"{}", 0, 0, (Header("h", b"v"),)),
            None,
        ],
    )
    assert sorted(run.rows, key=lambda row: int(row["id"])) == [
        {"id": 1, "partition": 0},
        {"id": 4, "partition": 3},
    ]
    assert {(row["topic"], row["offset"]): row["reason"] for row in run.failures} == {
        ("test", 2): "ValueError: negative",
        ("orders", 9): "field id: missing, and it has no default",
    }
    assert [row["headers"] for row in run.failures if row["topic"] == "orders"] == [
        [{"key": "h", "value": b"v"}]
    ]
    assert run.filtered == [(TopicPartition("test", 0), 1), (TopicPartition("test", 0), 5)]


def test_run_strategy_logs_what_the_map_logs_and_not_that_a_worker_starts_and_ends() -> None:
    def noted(record: Record) -> None:
        structlog.get_logger().info("seen", offset=record.offset)

    with capture_logs() as logs:
        run_strategy(Strategy(map=noted, reduce=[StreamWriter("stdout")]), ["1"])
    assert [event["event"] for event in logs] == ["seen"]


def test_run_strategy_runs_the_reducers_before_the_last_one_and_the_last_on_request() -> None:
    totals = Aggregate(["partition"], {"orders": ("id", "count")})
    strategy = replace(ORDERS, reduce=[totals, ClickHouseWriter("nowhere")])
    orders = [{"id": number, "amount": 10} for number in range(5)] + [{"id": 9, "amount": 1}]
    run = run_strategy(strategy, orders)
    assert run.rows == [{"partition": 0, "orders": 5}]
    assert run.filtered == [(TopicPartition("test", 0), 5)]
    largest = Collect(lambda rows: rows.sort_by([("id", "descending")]).slice(0, 1))
    alone = replace(strategy, reduce=[largest])
    assert len(run_strategy(alone, orders).rows) == 5
    assert [row["id"] for row in run_strategy(alone, orders, include_last=True).rows] == [4]


def test_run_strategy_raises_what_a_reducer_raises_when_it_is_opened() -> None:
    class Unready(Collect):
        async def open(self, context: Context) -> None:
            raise ModuleNotFoundError("no module of this name")

    with pytest.raises(ModuleNotFoundError, match="no module of this name"):
        run_strategy(
            Strategy(map=repr, reduce=[Unready(lambda rows: rows), ClickHouseWriter("nowhere")]),
            [b"x"],
        )


def test_run_strategy_raises_what_would_end_a_worker() -> None:
    @map_batch
    def wrong(batch: pa.RecordBatch) -> Any:
        return 7

    with pytest.raises(StrategyError, match="int"):
        run_strategy(Strategy(map=wrong, reduce=[ClickHouseWriter("nowhere")]), [b"x"])
    assert run_strategy(ORDERS, []).rows == []
