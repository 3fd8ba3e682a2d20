"""Which ranges `kmr_ranges` knows, for how long, and who waits for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from kmr.errors import SinkError
from kmr.record import TopicPartition
from kmr.reducers.reducer import Retry
from kmr.sinks.postgres.ranges import Ranges
from tests.framework.sinks.postgres.writing import (
    execute,
    flush,
    opened,
    query,
    rows,
)

from ...flushes import Flushed, outcome

if TYPE_CHECKING:
    from kmr.reducers.reducer import Context

pytestmark = pytest.mark.usefixtures("closed_at_the_end")


async def test_a_writer_that_was_suspended_cannot_write_its_range_after_a_later_one(
    postgres_url: str, context: Context
) -> None:
    owner, late = [await opened(postgres_url, context) for _ in range(2)]
    assert await flush(late, rows(0, 4)) == Flushed()
    execute(postgres_url, "TRUNCATE hits, kmr_ranges")  # it was suspended before it wrote that
    for first in (0, 5, 10):
        assert await flush(owner, rows(first, first + 4), replayed=True) == Flushed()
    assert query(postgres_url, "SELECT first_offset FROM kmr_ranges") == [10], "others are pruned"
    assert await flush(late, rows(0, 4)) == Flushed()
    assert query(postgres_url) == list(range(15))


async def test_while_a_suspended_writer_has_its_transaction_open_the_next_owner_waits_and_then_writes(
    postgres_url: str, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    suspended, owner = [await opened(postgres_url, context, timeout=0.5) for _ in range(2)]
    here, on = anyio.Event(), anyio.Event()
    prune = Ranges.prune

    async def pause(*arguments: Any) -> None:
        here.set()
        await on.wait()
        await prune(*arguments)

    monkeypatch.setattr(Ranges, "prune", pause)
    late: list[Flushed | Retry] = []
    async with anyio.create_task_group() as tasks:

        async def write() -> None:
            late.append(await flush(suspended, rows(0, 4)))

        tasks.start_soon(write)
        await here.wait()
        monkeypatch.setattr(Ranges, "prune", prune)
        result = await flush(owner, rows(0, 4), replayed=True)
        while isinstance(
            result, Retry
        ):  # until the server ends the transaction that waits for its client
            assert not result.may_double
            result = await outcome(owner)
        on.set()
    assert isinstance(late[0], Retry)
    assert query(postgres_url) == list(range(5))


async def test_ranges_that_are_not_announced_are_known_by_their_names_for_a_day(
    postgres_url: str, context: Context
) -> None:
    """As the tasks of Spark write them, in any order."""
    one, other = [await opened(postgres_url, context) for _ in range(2)]
    for first in (5, 0):
        assert await flush(one, rows(first, first + 4), announced=False) == Flushed()
    for first in (0, 5, 10):
        await flush(other, rows(first, first + 4), announced=False, replayed=True)
    assert query(postgres_url) == list(range(15))
    assert len(query(postgres_url, "SELECT token FROM kmr_ranges")) == 3
    old = "UPDATE kmr_ranges SET written_at = written_at - interval '2 days' WHERE first_offset = 0"
    execute(postgres_url, old)
    await flush(one, rows(15, 19), announced=False)
    assert query(postgres_url, "SELECT first_offset FROM kmr_ranges ORDER BY 1") == [5, 10, 15]


async def test_failed_records_between_others_that_were_written_before_are_not_taken_for_them(
    postgres_url: str, context: Context
) -> None:
    """As `reduce_err` gets them: after a crash in another order, so that other ones are together."""
    one, other = [await opened(postgres_url, context) for _ in range(2)]
    await flush(one, rows(13, 13), rows(99, 99), announced=False)
    await flush(other, rows(13, 13), rows(50, 50), rows(99, 99), announced=False)
    assert set(query(postgres_url)) == {13, 50, 99}


async def test_a_range_that_was_not_announced_hides_no_announced_one_that_begins_inside_it(
    postgres_url: str, context: Context
) -> None:
    writer, next_one = [await opened(postgres_url, context) for _ in range(2)]
    context.for_sinks.generations[TopicPartition("t", 0)] = 7  # type: ignore[index]
    assert await flush(writer, rows(0, 9), announced=False) == Flushed()
    assert await flush(next_one, rows(5, 19), generation=7) == Flushed()
    assert query(postgres_url) == sorted([*range(10), *range(5, 20)])


async def test_a_generation_below_one_that_was_written_is_refused_and_not_taken_for_written(
    postgres_url: str, context: Context
) -> None:
    writer, behind = [await opened(postgres_url, context) for _ in range(2)]
    assert await flush(writer, rows(0, 9), generation=9) == Flushed()
    with pytest.raises(SinkError, match=r"t-0\[0..4\] is of generation 8.*kmr offsets reset"):
        await flush(behind, rows(0, 4), generation=8)
    assert await flush(behind, rows(0, 4), generation=10) == Flushed()
    assert query(postgres_url) == sorted([*range(10), *range(5)])


async def test_a_writer_of_an_earlier_range_waits_for_the_transaction_of_a_later_one(
    postgres_url: str, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it could not see the later range, and would write rows that were written before."""
    owner, late = [await opened(postgres_url, context) for _ in range(2)]
    assert await flush(late, rows(0, 4)) == Flushed()
    execute(postgres_url, "TRUNCATE kmr_ranges")  # as if the owner had pruned it
    here, on, ended = anyio.Event(), anyio.Event(), anyio.Event()
    prune = Ranges.prune

    async def pause(*arguments: Any) -> None:
        here.set()
        await on.wait()
        await prune(*arguments)

    monkeypatch.setattr(Ranges, "prune", pause)
    async with anyio.create_task_group() as tasks:

        async def write_late() -> None:
            assert await flush(late, rows(0, 4)) == Flushed()
            ended.set()

        async def write() -> None:
            assert await flush(owner, rows(5, 9), replayed=True) == Flushed()

        tasks.start_soon(write)
        await here.wait()
        monkeypatch.setattr(Ranges, "prune", prune)
        tasks.start_soon(write_late)
        with anyio.move_on_after(1.0):
            await ended.wait()
        assert not ended.is_set()
        on.set()
    assert query(postgres_url) == list(range(10))
