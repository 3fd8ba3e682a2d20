"""Ranges of several partitions in one transaction of PostgreSQL, and the next owners of these partitions."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import psycopg
import pyarrow as pa
import pytest

from kmr.delivery.announcement import Announcement
from kmr.errors import RecordFailed
from kmr.record import Range, Rows, TopicPartition
from kmr.reducers.buffer import Buffer
from kmr.reducers.joined_turn import JoinedTurn
from kmr.reducers.sink import Write
from kmr.sinks.postgres.ranges import _LOCK
from kmr.testing import Journal, MemoryWriter

from ...flushes import Flushed, outcome
from .writing import WRITERS, Killed, execute, opened, query, refused

if TYPE_CHECKING:
    from kmr.reducers.reducer import Context, Retry

pytestmark = pytest.mark.usefixtures("closed_at_the_end")

LENGTH = 3
COLUMNS = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])
_WAITING = """
SELECT (SELECT count(*) FROM pg_locks AS had
        WHERE had.pid = waits.pid AND had.locktype = 'advisory' AND had.granted)
FROM pg_locks AS waits WHERE waits.locktype = 'advisory' AND NOT waits.granted"""
PARTS = 'SELECT "partition", count(*) FROM hits GROUP BY 1 ORDER BY 1'


def range_of(partition: int, first: int = 0) -> tuple[Rows, Announcement]:
    offsets = np.arange(first, first + LENGTH)
    last = first + LENGTH - 1
    table = pa.table({"partition": np.full(LENGTH, partition, np.int32), "offset": offsets})
    rows = Rows(table, (Range("t", partition, first, last),), offsets)
    return rows, Announcement(first, last, f"g:t:{partition}:{first}-{last}", "w", rows=LENGTH)


async def write_together(
    url: str, context: Context, partitions: range, *, first_offset: int = 0, late: bool = False
) -> dict[int, Flushed | Retry]:
    """Write a range of each partition, as lanes do that share a turn."""
    buffers = [Buffer(MemoryWriter(Journal())) for _ in partitions]
    turn = JoinedTurn(buffers)
    async with anyio.create_task_group() as tasks:
        for buffer in buffers:
            tasks.start_soon(turn.gather, buffer)
    results: dict[int, Flushed | Retry] = {}
    first = await opened(url, context, create=COLUMNS)
    if late:  # it was suspended: what precedes a write was done before
        first._proven |= {TopicPartition("t", each) for each in partitions}
    sharing = context.with_sinks(opened=first)

    async def lane(partition: int) -> None:
        writer = await opened(url, sharing, create=COLUMNS)
        rows, announcement = range_of(partition, first_offset)
        writer.reset()
        writer.add(rows)
        results[partition] = await outcome(writer, Write(announcement, joined=turn))

    async with anyio.create_task_group() as tasks:
        for partition in partitions:
            tasks.start_soon(lane, partition)
    return results


async def write_again(url: str, context: Context, partition: int) -> Flushed | Retry:
    """Write a range as the next owner of its partition does."""
    writer = await opened(url, context, create=COLUMNS)
    rows, announcement = range_of(partition)
    writer.reset()
    writer.add(rows)
    return await outcome(writer, Write(announcement, repeated=True))


async def test_ranges_of_many_partitions_are_one_transaction(
    postgres_url: str, context: Context
) -> None:
    results = await write_together(postgres_url, context, range(20))
    assert set(results.values()) == {Flushed()}
    assert query(postgres_url, PARTS) == [(partition, LENGTH) for partition in range(20)]
    assert query(postgres_url, "SELECT count(DISTINCT xmin::text) FROM hits") == [1]
    assert query(postgres_url, "SELECT count(*) FROM kmr_ranges") == [20]
    for partition in range(20):
        assert await write_again(postgres_url, context, partition) == Flushed()
    assert query(postgres_url, PARTS) == [(partition, LENGTH) for partition in range(20)]


async def test_a_range_that_is_there_and_rows_that_are_refused_do_not_hold_the_others_up(
    postgres_url: str, context: Context
) -> None:
    await opened(postgres_url, context, create=COLUMNS)
    execute(postgres_url, 'ALTER TABLE hits ADD CHECK ("partition" NOT IN (1, 2) OR "offset" <> 2)')
    await write_again(postgres_url, context, 2)
    results = await write_together(postgres_url, context, range(4), late=True)
    assert query(postgres_url, PARTS) == [(0, 3), (1, 2), (2, 2), (3, 3)]
    found = [[offset for offset, _ in refused(results[partition])] for partition in range(4)]
    assert found == [[], [2], [2], []]
    assert [o for o, _ in refused(await write_again(postgres_url, context, 1))] == [2]


async def test_without_reduce_err_ranges_with_a_refused_row_wait_as_a_whole(
    postgres_url: str, context: Context
) -> None:
    """The worker ends; where the table is mended, all rows are written, not those that are left."""
    strict = context.with_sinks(takes_refused=False)
    await opened(postgres_url, strict, create=COLUMNS)
    execute(
        postgres_url, 'ALTER TABLE hits ADD CONSTRAINT c CHECK ("partition" <> 1 OR "offset" <> 2)'
    )
    for write in (
        write_together(postgres_url, strict, range(3)),
        write_again(postgres_url, strict, 1),
    ):
        with pytest.raises((RecordFailed, ExceptionGroup)) as failed:
            await write
        assert "t-1[2..2] in" in repr(failed.value)
        assert query(postgres_url, PARTS) == []
    execute(postgres_url, "ALTER TABLE hits DROP CONSTRAINT c")
    for partition in range(3):
        assert await write_again(postgres_url, strict, partition) == Flushed()
    assert query(postgres_url, PARTS) == [(0, 3), (1, 3), (2, 3)]


async def test_the_next_ranges_of_all_partitions_replace_the_last_ones(
    postgres_url: str, context: Context
) -> None:
    for first in (0, LENGTH, 2 * LENGTH):
        await write_together(postgres_url, context, range(3), first_offset=first)
    kept = 'SELECT "partition", first_offset FROM kmr_ranges ORDER BY 1'
    assert query(postgres_url, kept) == [(partition, 2 * LENGTH) for partition in range(3)]


async def test_workers_that_claim_the_same_ranges_do_not_wait_for_each_other(
    postgres_url: str, context: Context
) -> None:
    writer = await opened(postgres_url, context, create=COLUMNS)
    place = {"sink": str(writer._name), "group": "g", "topic": "t", "partition": 0}
    async with await psycopg.AsyncConnection.connect(postgres_url) as other:
        await other.execute(_LOCK.encode(), place)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write_together, postgres_url, context, range(2, -1, -1))
            with anyio.fail_after(60):
                while not (waits := query(postgres_url, _WAITING)):  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            await other.rollback()
    assert waits == [0], "it waits for the first range in order, and has no other"


class Mortal:
    """Kills the process in an exchange with the server: after that, nothing more is said."""

    def __init__(self, fatal: int) -> None:
        self.died = False
        self._left = fatal
        self._exchange = psycopg.AsyncConnection.wait

    def method(self) -> Any:
        """Return it as a method of connections."""
        return lambda connection, *given, **options: self.wait(connection, *given, **options)  # noqa: PLW0108

    async def wait(self, connection: Any, *arguments: Any, **options: Any) -> Any:
        self._left -= 1
        if self._left == -1:
            await self._exchange(connection, *arguments, **options)
        if self._left < 0:
            self.died = True
            connection.pgconn.finish()
            raise Killed
        return await self._exchange(connection, *arguments, **options)


async def test_a_kill_at_any_step_of_a_joined_write_loses_and_doubles_nothing(
    postgres_url: str, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = range(3)
    whole = [(partition, LENGTH) for partition in partitions]
    await opened(postgres_url, context, create=COLUMNS)
    left = set()
    for fatal in count():
        execute(postgres_url, "TRUNCATE hits", "TRUNCATE kmr_ranges")
        mortal = Mortal(fatal)
        with monkeypatch.context() as patch, suppress(BaseException):
            patch.setattr(psycopg.AsyncConnection, "wait", mortal.method())
            await write_together(postgres_url, context, partitions)
        left.add(tuple(query(postgres_url, PARTS)))
        for partition in partitions:
            assert await write_again(postgres_url, context, partition) == Flushed()
        assert query(postgres_url, PARTS) == whole
        while WRITERS:  # the server has 100 connections
            await WRITERS.pop().close()
        if not mortal.died:
            break
    assert fatal > 15, "the writer has fewer exchanges than this test thinks"
    assert left == {(), tuple(whole)}
