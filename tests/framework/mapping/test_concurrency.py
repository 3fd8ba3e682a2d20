"""Calls at the same time: their order, their failures, their repetitions, and what a stop leaves."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from kmr.mapping.calls import Retries
from kmr.mapping.functions import apply, apply_async, map_record
from kmr.mapping.stop import Stop
from kmr.testing import batch_of

if TYPE_CHECKING:
    from kmr.mapping.results import MapResult
    from kmr.record import Record

RECORDS = batch_of("t", 0, 10, [b"x"] * 8).records
OFFSETS = list(range(10, 18))


def values(mapped: MapResult) -> list[Any]:
    assert mapped.table is not None
    return list(mapped.table.column("o").to_pylist())


async def test_a_slow_call_holds_up_no_other_and_rows_keep_the_order_of_their_records() -> None:
    running, most, done = 0, 0, 0
    others_done = anyio.Event()

    @map_record(concurrency=4)
    async def ask(record: Record) -> dict[str, int]:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await (others_done.wait() if record.offset == 10 else anyio.lowlevel.checkpoint())
        running -= 1
        done += 1
        if done == 7:
            others_done.set()
        return {"o": record.offset}

    mapped = await apply_async(ask, RECORDS)
    assert (values(mapped), mapped.offsets.tolist(), most) == (OFFSETS, OFFSETS, 4)


def test_a_plain_function_is_called_in_so_many_threads_at_a_time() -> None:
    together = threading.Barrier(4)

    @map_record(concurrency=4)
    def ask(record: Record) -> dict[str, int] | None:
        together.wait(timeout=60)
        if record.offset == 13:
            raise ValueError("refused")
        return None if record.offset == 14 else {"o": record.offset}

    mapped = apply(ask, RECORDS)
    assert values(mapped) == [10, 11, 12, 15, 16, 17]
    assert [(f.offset, f.reason) for f in mapped.failures] == [(13, "ValueError: refused")]


async def test_a_stop_leaves_the_calls_that_have_not_begun() -> None:
    @map_record(concurrency=2)
    async def ask(record: Record) -> dict[str, int]:
        if record.offset == 12:
            stop.request()
        await anyio.lowlevel.checkpoint()
        return {"o": record.offset}

    @map_record(concurrency=2)
    def ask_plainly(record: Record) -> dict[str, int]:
        if record.offset == 12:
            stop.request()
        return {"o": record.offset}

    for mapped in (await apply_async(ask, RECORDS, stop=(stop := Stop())), None):
        if mapped is None:
            mapped = apply(ask_plainly, RECORDS, stop=(stop := Stop()))
        assert mapped.rest is not None
        assert 13 <= mapped.rest <= 14
        assert values(mapped) == list(range(10, mapped.rest))


QUICKLY: dict[str, Any] = {"backoff": 0.001}


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_call_is_repeated_after_the_named_errors_before_its_record_fails(
    is_async: bool,
) -> None:
    calls: dict[int, int] = {}
    retry = Retries(on=TimeoutError, attempts=3, **QUICKLY)

    def answer(record: Record) -> dict[str, int]:
        calls[record.offset] = attempt = calls.get(record.offset, 0) + 1
        if record.offset == 10 and attempt < 3:
            raise TimeoutError("busy")
        if record.offset == 11:
            raise TimeoutError("down")
        if record.offset == 12:
            raise (TimeoutError if attempt == 1 else KeyError)("worse")
        if record.offset == 13:
            raise ValueError("wrong")
        return {"o": record.offset}

    @map_record(concurrency=2, retry=retry)
    def plain(record: Record) -> dict[str, int]:
        return answer(record)

    @map_record(concurrency=2, retry=retry)
    async def coroutine(record: Record) -> dict[str, int]:
        return answer(record)

    mapped = await apply_async(coroutine, RECORDS) if is_async else apply(plain, RECORDS)
    assert values(mapped) == [10, 14, 15, 16, 17]
    assert tuple(each[:3] for each in mapped.failures) == (
        (11, "TimeoutError: down", 3),
        (12, "KeyError: 'worse'", 2),
        (13, "ValueError: wrong", 1),
    )
    assert mapped.retries == 5


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_stop_ends_a_pause_and_leaves_its_record(is_async: bool) -> None:
    retry = Retries(on=TimeoutError, backoff=1_000.0, max_backoff=1_000.0)

    @map_record(retry=retry)
    def plain(record: Record) -> dict[str, int]:
        if record.offset == 11:
            threading.Timer(0.05, stop.request).start()
            raise TimeoutError
        return {"o": record.offset}

    @map_record(retry=retry)
    async def coroutine(record: Record) -> dict[str, int]:
        if record.offset == 11:
            tasks.start_soon(stop_soon)
            raise TimeoutError
        return {"o": record.offset}

    async def stop_soon() -> None:
        stop.request()

    stop = Stop()
    async with anyio.create_task_group() as tasks:
        mapped = (
            await apply_async(coroutine, RECORDS, stop=stop)
            if is_async
            else apply(plain, RECORDS, stop=stop)
        )
    assert (values(mapped), mapped.failures, mapped.rest) == ([10], (), 11)


async def test_a_call_that_takes_too_long_is_cancelled_and_fails() -> None:
    @map_record(timeout=0.02, concurrency=8, retry=Retries(TimeoutError, attempts=2, **QUICKLY))
    async def hanging(record: Record) -> dict[str, int]:
        if record.offset == 12:
            await anyio.sleep_forever()
        return {"o": record.offset}

    mapped = await apply_async(hanging, RECORDS)
    assert tuple(each[:3] for each in mapped.failures) == (
        (12, "TimeoutError: the call took longer than timeout=0.02 s", 2),
    )


def test_a_generator_runs_within_its_call() -> None:
    threads: set[int] = set()

    @map_record(concurrency=2)
    def several(record: Record) -> Any:
        together.wait(timeout=60)
        threads.add(threading.get_ident())
        yield {"o": record.offset}
        yield {"o": record.offset}

    together = threading.Barrier(2)
    mapped = apply(several, RECORDS)
    assert values(mapped) == sorted(OFFSETS * 2)
    assert len(threads) == 2
