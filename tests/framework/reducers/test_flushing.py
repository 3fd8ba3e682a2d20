"""The flush rule: limits, age, policies and retries, in the reduce stage; time is virtual."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import anyio
import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from kmr.errors import KmrError, SinkError, StrategyError
from kmr.reducers.reducer import Retry
from kmr.reducers.sink import NEW, Write
from kmr.testing import Journal, MemoryWriter, VirtualTimeLoop

from ..stages import Bench, counts, running

if TYPE_CHECKING:
    from collections.abc import Callable

    from kmr.testing import VirtualClock


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


async def test_a_flush_by_count_has_exactly_that_many_rows(clock: VirtualClock) -> None:
    journal = Journal()
    bench = Bench(MemoryWriter(journal, max_rows=10))
    async with running(bench):
        bench.feed(25)
        await journal.until(lambda j: len(j.written) == 2)
        assert counts(journal) == [10, 10]
        assert bench.watermark() == 20
    assert counts(journal) == [10, 10, 5]
    assert bench.watermark() == 25


async def test_rows_are_flushed_when_the_oldest_has_reached_its_age(clock: VirtualClock) -> None:
    journal = Journal()
    bench = Bench(MemoryWriter(journal, max_age=4.0))
    async with running(bench):
        bench.feed(3)
        await clock.advance(3.0)
        bench.feed(2)
        await clock.advance(0.9)
        assert journal.attempts == 0
        await clock.advance(0.1)
        assert counts(journal) == [5]
        await clock.advance(100.0)
        assert journal.attempts == 1, "nothing collected, nothing flushed"


async def test_a_flush_by_bytes_happens_before_the_limit_is_passed(clock: VirtualClock) -> None:
    journal = Journal()
    bench = Bench(MemoryWriter(journal, max_bytes=16 * 10, max_rows=None, max_age=None))
    async with running(bench):
        bench.feed(25)
        await journal.until(lambda j: len(j.written) == 2)
        assert counts(journal) == [10, 10]


async def test_a_retry_has_the_same_rows_whatever_arrives_meanwhile(clock: VirtualClock) -> None:
    journal = Journal()
    journal.outcomes.extend([Retry("busy", after=5.0), OSError("gone"), Retry("busy")])
    bench = Bench(MemoryWriter(journal, max_rows=10))
    async with running(bench):
        bench.feed(10)
        await journal.until(lambda j: j.attempts == 1)
        bench.feed(5)
        await clock.advance(4.9)
        assert journal.attempts == 1
        assert bench.stage.status(anyio.current_time()).reason == "busy"
        await clock.advance(0.1)
        assert journal.attempts == 2
        await clock.advance(60.0)
        assert journal.attempts == 3
        await clock.advance(60.0)
    assert counts(journal) == [10, 5]


def attempted(number: int) -> Callable[[Journal], bool]:
    return lambda journal: journal.attempts == number


async def test_a_flush_that_is_repeated_for_long_is_logged_each_minute(clock: VirtualClock) -> None:
    journal = Journal()
    journal.outcomes.extend([Retry("busy", after=10.0) for _ in range(13)])
    bench = Bench(MemoryWriter(journal, max_rows=10))
    with capture_logs() as logs:
        async with running(bench):
            bench.feed(10)
            for number in range(1, 14):
                await journal.until(attempted(number))
                await clock.advance(10.0)
    of_flush = [each for each in logs if each["event"] == "flush failed, trying again"]
    assert [(each["attempts"], each["failing"]) for each in of_flush] == [
        (1, 0),
        (7, 60),
        (13, 120),
    ]


async def test_divert_sends_every_row_of_a_failing_flush_to_the_error_sink(
    clock: VirtualClock,
) -> None:
    journal = Journal()
    journal.outcomes.append(ValueError("never"))
    bench = Bench(MemoryWriter(journal, max_rows=10, on_error="divert"))
    async with running(bench):
        bench.feed(10)
        failed = await bench.failed.receive()
        assert failed.table.column("offset").to_pylist() == list(range(10))
        assert failed.table.column("exception").unique().to_pylist() == ["ValueError"]
        bench.ledgers.settle(failed.ranges)
        assert bench.watermark() == 10


async def test_stop_ends_the_stage_with_the_error_of_the_sink() -> None:
    journal = Journal()
    journal.outcomes.append(ValueError("never"))
    bench = Bench(MemoryWriter(journal, max_rows=10, on_error="stop"))
    with pytest.RaisesGroup(pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="never"))):
        async with running(bench):
            bench.feed(10)
            await anyio.sleep_forever()
    await bench.stage.close()
    bench.close()


async def test_an_error_that_no_retry_can_fix_stops_even_when_errors_are_retried() -> None:
    journal = Journal()
    journal.outcomes.append(StrategyError("no such column"))
    bench = Bench(MemoryWriter(journal, max_rows=10, on_error="retry"))
    with pytest.RaisesGroup(pytest.RaisesGroup(pytest.RaisesExc(KmrError, match="no such column"))):
        async with running(bench):
            bench.feed(10)
            await anyio.sleep_forever()
    await bench.stage.close()
    bench.close()


class OfALibrary(Exception):
    """As httpx.HTTPError, aiohttp.ClientError, psycopg.Error, or boto3's ClientError."""


class NoJson(OSError, ValueError):
    """As requests.exceptions.JSONDecodeError: an answer of a proxy that is no JSON."""


async def advance_until(clock: VirtualClock, done: Callable[[], bool]) -> None:
    for _ in range(60):
        if done():
            return
        await clock.advance(31.0)
    raise AssertionError("not done")


_LATER = [OSError, ConnectionResetError, TimeoutError, EOFError, RuntimeError, OfALibrary, NoJson]
_MISTAKES = [KeyError, TypeError, ValueError, AttributeError, IndexError, pa.ArrowInvalid]


@pytest.mark.parametrize("kind", [*_LATER, *_MISTAKES])
async def test_a_mistake_of_code_ends_the_worker_and_all_else_is_tried_until_it_passes(
    clock: VirtualClock, kind: type[Exception]
) -> None:
    journal = Journal()
    outcomes = [kind("odd") for _ in range(4)]
    journal.outcomes.extend([*outcomes, Retry("busy"), *outcomes])
    bench = Bench(MemoryWriter(journal, max_rows=10))
    async with running(bench):
        bench.feed(10)
        await advance_until(clock, lambda: counts(journal) == [10])
        if kind in _LATER:
            journal.outcomes.extend([kind("odd") for _ in range(20)])
            bench.feed(10)
            await advance_until(clock, lambda: counts(journal) == [10, 10])
    if kind in _MISTAKES:
        journal.outcomes.extend([kind("odd") for _ in range(5)])
        bench = Bench(MemoryWriter(journal, max_rows=10))
        message = (
            rf"{kind.__name__}: '?odd'? \(.*testing.py:\d+\), which is a mistake of code or data"
        )
        with pytest.RaisesGroup(pytest.RaisesGroup(pytest.RaisesExc(SinkError, match=message))):
            async with running(bench):
                bench.feed(10)
                await advance_until(clock, lambda: False)
        await bench.stage.close()
        bench.close()


async def test_a_retry_that_a_sink_raises_for_a_mistake_is_a_retry(clock: VirtualClock) -> None:
    journal = Journal()
    retries = [Retry("no token in the answer") for _ in range(20)]
    for retry in retries:
        retry.__cause__ = KeyError("token")
    journal.outcomes.extend(retries)
    bench = Bench(MemoryWriter(journal, max_rows=10))
    async with running(bench):
        bench.feed(10)
        await advance_until(clock, lambda: counts(journal) == [10])


async def test_a_flush_that_returns_nonsense_is_refused() -> None:
    journal = Journal()
    journal.outcomes.append("nothing")  # type: ignore[arg-type]
    bench = Bench(MemoryWriter(journal, max_rows=10))
    with pytest.RaisesGroup(pytest.RaisesGroup(pytest.RaisesExc(SinkError, match="returned str"))):
        async with running(bench):
            bench.feed(10)
            await anyio.sleep_forever()
    await bench.stage.close()
    bench.close()


async def test_backpressure_holds_input_back_until_the_age_is_reached(clock: VirtualClock) -> None:
    journal = Journal()
    bench = Bench(MemoryWriter(journal, max_rows=10, max_age=4.0, when_full="backpressure"))
    async with running(bench):
        bench.feed(10)
        bench.feed(10)
        await clock.advance(3.9)
        assert journal.attempts == 0
        assert bench.inbox.statistics().current_buffer_used == 1
        await clock.advance(0.1)
        assert counts(journal) == [10]
        bench.stage.trigger.drain()
    assert counts(journal) == [10, 10]


@pytest.mark.parametrize("waits", ["revoke", "awaited"])
async def test_backpressure_holds_nothing_back_while_a_rebalance_or_a_stage_waits_for_it(
    clock: VirtualClock, waits: Literal["revoke", "awaited"]
) -> None:
    journal = Journal()
    bench = Bench(MemoryWriter(journal, max_rows=10, max_age=600.0, when_full="backpressure"))
    async with running(bench):
        bench.feed(10)
        bench.feed(10)
        await clock.settle()
        assert journal.attempts == 0
        getattr(bench.stage.trigger, waits)(on=True)
        await clock.settle()
        assert counts(journal) == [10, 10]
        flushes = bench.metrics.flushes.labels("reduce-1", waits)
        assert flushes._value.get() == 2
        getattr(bench.stage.trigger, waits)(on=False)
        bench.feed(10)
        await clock.settle()
        assert counts(journal) == [10, 10]
        bench.stage.trigger.drain()
    assert counts(journal) == [10, 10, 10]


async def test_drop_on_shutdown_leaves_what_is_collected_unsettled(clock: VirtualClock) -> None:
    journal = Journal()
    bench = Bench(MemoryWriter(journal, max_rows=10, on_shutdown="drop"))
    async with running(bench):
        bench.feed(15)
        await journal.until(lambda j: len(j.written) == 1)
    assert counts(journal) == [10]
    assert bench.watermark() == 10


async def test_a_used_up_budget_flushes_what_is_collected_without_waiting_for_more(
    clock: VirtualClock,
) -> None:
    journal = Journal()
    bench = Bench(MemoryWriter(journal, max_rows=1_000, max_age=None))
    async with running(bench):
        bench.feed(10)
        await clock.advance(1.0)
        assert journal.attempts == 0
        bench.budget.add(1_000_000)
        bench.stage.trigger.budget_exhausted()
        await journal.until(lambda j: len(j.written) == 1)
        assert bench.watermark() == 10


async def test_a_plain_flush_function_runs_in_a_thread() -> None:
    import threading

    threads: list[int] = []

    class Plain(MemoryWriter):
        def flush(self, write: Write = NEW) -> None:  # type: ignore[override]
            threads.append(threading.get_ident())

    bench = Bench(Plain(Journal(), max_rows=10))
    async with running(bench):
        bench.feed(10)
    assert threads
    assert threads[0] != threading.get_ident()
    assert bench.watermark() == 10


async def test_only_the_records_whose_type_does_not_fit_the_others_are_failed(
    clock: VirtualClock,
) -> None:
    journal = Journal()
    journal.outcomes.extend([None, Retry("busy", after=1.0)])  # the first is refused for its types
    bench = Bench(MemoryWriter(journal, max_rows=6))
    async with running(bench):
        bench.feed(2, value=["bad", None])
        bench.feed(1, partition=1, value=["worse"])
        bench.feed(3, value=[1, 2.5, 3])
        await journal.until(lambda j: j.attempts == 2)
        await clock.advance(1.0)
        failed = [await bench.failed.receive() for _ in range(2)]
        reasons = failed[0].table.column("reason").to_pylist()
        assert reasons == ["column value: 'bad' is string, but most values are double"]
        assert [(rows.ranges[0].partition, rows.ranges[0].first) for rows in failed] == [
            (0, 0),
            (1, 0),
        ]
        assert bench.watermark() == bench.watermark(1) == 0, "failed records are not settled yet"
        for rows in failed:
            bench.ledgers.settle(rows.ranges)
        assert (bench.watermark(), bench.watermark(1)) == (5, 1)
    assert [row["value"] for row in journal.rows()] == [None, 1.0, 2.5, 3.0]
    assert journal.attempts == 3


async def test_records_set_aside_for_their_type_leave_with_their_partition(
    clock: VirtualClock,
) -> None:
    journal = Journal()
    journal.outcomes.extend([None, Retry("busy", after=5.0)])
    bench = Bench(MemoryWriter(journal, max_rows=4))
    async with running(bench):
        bench.feed(1, partition=1, value=["bad"])
        bench.feed(3, value=[1, 2, 3])
        await journal.until(lambda j: j.attempts == 2)
        bench.assign(1)  # a new generation
        await clock.advance(5.0)
    assert bench.failed.statistics().current_buffer_used == 0
    assert [row["value"] for row in journal.rows()] == [1, 2, 3]
