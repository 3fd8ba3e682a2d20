"""A flush of several branches: each branch writes its part once, also when other branches fail."""

from __future__ import annotations

from typing import Any

import clickhouse_connect
import numpy as np
import pyarrow as pa
import pytest

from kmr.branches.branches import Branches, per_name
from kmr.delivery.announcement import Announcement
from kmr.errors import SinkError, SinkUnavailable, StrategyError
from kmr.record import Range, Rows
from kmr.reducers.aggregate import Aggregate
from kmr.reducers.reducer import Context, Retry
from kmr.reducers.sink import NEW, Refusal, RowsRefused, Write
from kmr.sinks import ClickHouseWriter
from kmr.tagged_rows import tag
from kmr.testing import Journal, MemoryWriter, batch_of

CONTEXT = Context(group="g", stage="reduce-1")


class Telling(MemoryWriter):
    """Also keeps what it is told of each write."""

    def __init__(self, journal: Journal, **options: Any) -> None:
        super().__init__(journal, **options)
        self.told: list[Write] = []
        self.groups: list[str] = []

    async def open(self, context: Context) -> None:
        self.groups.append(f"{context.group} {context.stage}")

    async def flush(self, write: Write = NEW) -> pa.Table | None:
        self.told.append(write)
        return await super().flush(write)


def rows(partition: int, names: str) -> Rows:
    """A row for each letter: its branch, and the number of its record."""
    order = {
        name: np.array([at for at, each in enumerate(names) if each == name], np.int64)
        for name in sorted(set(names))
    }
    tables = {name: pa.table({"n": at + 10 * partition}) for name, at in order.items()}
    return Rows(
        tag(tables, order),
        (Range("t", partition, 0, len(names) - 1),),
        np.arange(len(names)),
        (batch_of("t", partition, 0, [b""] * len(names)),),
    )


def written(journal: Journal) -> list[int]:
    return [row["n"] for row in journal.rows()]


async def opened(branches: Branches) -> Branches:
    branches.reset()
    await branches.open(CONTEXT)
    return branches


@pytest.mark.anyio
async def test_each_branch_writes_its_rows_under_the_token_and_its_name() -> None:
    a, b = Telling(Journal()), Telling(Journal())
    branches = await opened(Branches({"a": [a], "b": [b]}))
    branches.add(rows(0, "abba"))
    await branches.flush(Write(Announcement(0, 3, "token", "me"), repeated=True))
    assert written(a.journal) == [0, 3]
    assert written(b.journal) == [1, 2]
    for each, name in ((a, "a"), (b, "b")):
        (write,) = each.told
        assert write.announcement is not None
        assert write.announcement.token == f"token+{name}"
        assert write.repeated
        assert each.groups == [f"g+{name} reduce-1 {name}"]
    assert {name: count for name, (count, _) in branches.counts.items()} == {"a": 2, "b": 2}


@pytest.mark.anyio
async def test_a_branch_that_fails_is_tried_again_without_the_others() -> None:
    a, b = MemoryWriter(Journal()), MemoryWriter(Journal())
    b.journal.outcomes += [Retry("busy", after=3.0), OSError("gone")]
    branches = await opened(Branches({"a": [a], "b": [b]}))
    branches.add(rows(0, "ab"))
    with pytest.raises(Retry, match="branch b: busy") as first:
        await branches.flush()
    assert first.value.after == 3.0
    assert {name: each.reason for name, each in branches.pending.items()} == {"b": "branch b: busy"}
    with pytest.raises(Retry, match=r"branch b: .*gone"):
        await branches.flush()
    await branches.flush()
    assert branches.pending == {}
    assert (written(a.journal), a.journal.attempts) == ([0], 1)
    assert (written(b.journal), b.journal.attempts) == ([1], 3)


@pytest.mark.anyio
async def test_what_is_written_stays_so_when_a_partition_is_lost_between_two_attempts() -> None:
    a, b = MemoryWriter(Journal()), MemoryWriter(Journal())
    b.journal.outcomes.append(Retry("busy"))
    branches = await opened(Branches({"a": [a], "b": [b]}))
    kept, lost = rows(0, "ab"), rows(1, "ab")
    branches.add(kept)
    branches.add(lost)
    with pytest.raises(Retry):
        await branches.flush()
    branches.reset()
    branches.add(kept)
    await branches.flush()
    assert written(a.journal) == [0, 10]
    assert written(b.journal) == [1]
    branches.reset()
    branches.add(kept)  # read again, as another flush
    await branches.flush()
    assert written(a.journal) == [0, 10, 0]


@pytest.mark.anyio
async def test_rows_that_a_branch_refuses_are_failed_records_with_its_name() -> None:
    a, b = MemoryWriter(Journal()), MemoryWriter(Journal())
    part = rows(0, "ab")
    refused = Rows(pa.table({"n": [1]}), part.ranges, np.array([1]), part.sources)
    b.journal.outcomes.append(RowsRefused([Refusal(refused, "too long")]))
    branches = await opened(Branches({"a": [a], "b": [b]}))
    branches.add(part)
    with pytest.raises(RowsRefused) as found:
        await branches.flush()
    (letter,) = (row for each in found.value.records for row in each.table.to_pylist())
    assert (letter["offset"], letter["stage"]) == (1, "reduce-1 b")
    assert letter["reason"] == "too long"
    assert written(a.journal) == [0]


@pytest.mark.anyio
async def test_a_branch_may_be_a_chain_that_is_not_begun_anew_after_a_failure() -> None:
    last = MemoryWriter(Journal())
    last.journal.outcomes.append(Retry("busy"))
    calls = []

    class Counting(Aggregate):
        def flush(self) -> pa.Table:
            calls.append(len(self.rows))
            return super().flush()

    counting = Counting(["n"], {"rows": ("*", "count")})
    branches = await opened(Branches({"a": [counting, last]}))
    branches.add(rows(0, "aa"))
    branches.add(rows(0, "a"))
    with pytest.raises(Retry):
        await branches.flush()
    await branches.flush()
    assert calls == [2]
    assert last.journal.rows() == [{"n": 0, "rows": 2}, {"n": 1, "rows": 1}]


@pytest.mark.anyio
async def test_an_error_that_no_retry_mends_is_raised_after_the_others_have_written() -> None:
    a, b = MemoryWriter(Journal()), MemoryWriter(Journal())
    a.journal.outcomes.append(SinkError("no such table"))
    branches = await opened(Branches({"a": [a], "b": [b]}))
    branches.add(rows(0, "ab"))
    with pytest.raises(SinkError, match="no such table"):
        await branches.flush()
    assert written(b.journal) == [1]


@pytest.mark.anyio
async def test_a_branch_is_made_for_each_name_up_to_a_limit() -> None:
    journals: dict[str, Journal] = {}

    def make(name: str) -> MemoryWriter:
        if name == "c":
            raise StrategyError("no such tenant")
        return MemoryWriter(journals.setdefault(name, Journal()))

    branches = await opened(Branches({}, per_name(make, at_most=2)))
    reasons = []
    for names in ("ac", "abd"):
        branches.reset()
        branches.add(rows(0, names))
        with pytest.raises(RowsRefused) as found:
            await branches.flush()
        reasons += [str(refusal.reason) for refusal in found.value.refusals]
    assert reasons == [
        "branch c: no such tenant",
        "branch d: there are 2 branches already; raise at_most=",
    ]
    assert (written(journals["a"]), written(journals["b"])) == ([0, 0], [1])
    await branches.close()


@pytest.mark.anyio
async def test_a_name_without_a_database_fails_alone(clickhouse_url: str) -> None:
    tables = {"a": "of_a", "b": "nosuch.of_b", "c": "of_{c}"}

    def make(name: str) -> ClickHouseWriter:
        return ClickHouseWriter(
            tables.get(name, name), url=clickhouse_url, create=True, delivery="at-least-once"
        )

    branches = await opened(Branches({}, per_name(make, at_most=9)))
    branches.add(rows(0, "abca"))
    with pytest.raises(RowsRefused) as found:
        await branches.flush()
    await branches.close()
    reasons = sorted(str(refusal.reason) for refusal in found.value.refusals)
    assert len(reasons) == 2
    assert "branch b: " in reasons[0]
    assert "nosuch does not exist" in reasons[0]
    assert "branch c: ClickHouseWriter: ClickHouse would replace" in reasons[1]
    with clickhouse_connect.get_client(dsn=clickhouse_url) as client:
        assert client.query("SELECT n FROM of_a ORDER BY n").result_rows == [(0,), (3,)]


@pytest.mark.anyio
@pytest.mark.parametrize("error", [SinkUnavailable("starting"), SinkError("no such user")])
async def test_a_branch_waits_for_a_sink_that_is_away_and_for_no_other(error: SinkError) -> None:
    class Closed(MemoryWriter):
        async def open(self, context: Context) -> None:
            raise error

    branches = await opened(Branches({}, per_name(lambda _: Closed(Journal()), at_most=9)))
    branches.add(rows(0, "a"))
    with pytest.raises(Retry if isinstance(error, SinkUnavailable) else SinkError):
        await branches.flush()
