"""What a `Window` refuses, and what its stage does: idle partitions, late rows, memory."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import pyarrow as pa
import pytest

from kmr import Aggregate, Distinct, Strategy, Window, map_record
from kmr.delivery.announcement import Closed, Generation, WindowAnnouncement, read_metadata
from kmr.errors import StateTooLarge, StrategyError
from kmr.kafka.consumer import CommitOffset
from kmr.record import SCHEMA, Batch, Range, Record, Rows
from kmr.sinks import ClickHouseWriter, KafkaWriter, RangeWriter, StreamWriter
from kmr.sinks.planning import plan_ranges
from kmr.testing import Journal, MemoryConsumer, MemoryWriter, VirtualTimeLoop, run_strategy
from tests.framework.memory.test_window_functions import Spread
from tests.framework.workers import P0, committed, put, running

if TYPE_CHECKING:
    from kmr.sinks import RangeRows
    from kmr.testing import VirtualClock

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


@map_record
def parse(record: Record) -> list[dict[str, Any]]:
    assert record.value is not None
    texts = record.value.decode().split()
    return [
        {"ts": None if text == "null" else BEGIN + timedelta(seconds=int(text)), "o": record.offset}
        for text in texts
    ]


def window(**changes: Any) -> Window:
    given: dict[str, Any] = {
        "length": "10s", "time": "ts", "late": "drop", "columns": {"n": ("*", "count"), "of": ("o", "list")},
        "keyed": True,
    }  # fmt: skip
    return Window(**(given | changes))


def windows_of(journal: Journal) -> list[tuple[float, list[int]]]:
    rows = journal.rows()
    return [((row["window_start"] - BEGIN).total_seconds(), row["of"]) for row in rows]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"late": "keep"}, "late must be"),
        ({"every": "3s"}, "length must be a multiple of every"),
        ({"columns": {}}, "columns is empty"),
        ({"columns": {"n": ("v", "median")}}, "there is no function 'median'"),
        ({"columns": {"window_start": ("*", "count")}}, "would be twice"),
        ({"lateness": "soon"}, "lateness: 'soon' is not a number"),
        ({"by": "path"}, r"by must be list\[str\], not 'path'"),
        ({"length": 0}, "length must be above 0"),
        ({"lateness": -1}, "lateness must be at least 0"),
        ({"length": float("nan")}, "length: nan is no duration"),
        ({"idle": "inf"}, "idle"),
        ({"lateness": float("inf")}, "lateness: inf is no duration"),
        ({"length": "20000d"}, "less than ten years"),
        ({"columns": {"n": "count"}}, "columns has for each new column"),
        ({"columns": ["n"]}, r"columns must be dict\[str, tuple\[.*, not \['n'\] \(list\)"),
        ({"max": "1h"}, "give a length, as in"),
        ({"session": "30m", "max": "1h"}, "neither a length"),
        ({"late": "reemit"}, "go together"),
        ({"correct": "1h"}, "go together"),
        (
            {"length": None, "session": "30m", "max": "1h", "late": "reemit", "correct": "1h"},
            "not for sessions",
        ),
        ({"length": None, "session": "30m"}, "needs max=.*hold the committed offset back for ever"),
        ({"length": None, "session": "30m", "max": "10m"}, "shorter than session='30m'"),
    ],
)
def test_a_window_refuses_what_it_cannot_do(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        window(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"by": ["place"]}, r"by='place' is struct<.*>, which makes no groups"),
        ({"by": ["tags"]}, "by='tags' is list<.*>, which makes no groups"),
        ({"columns": {"n": ("tags", "sum")}}, "n: there is no sum of 'tags', which is list"),
        ({"columns": {"n": ("place", "last")}}, "n: there is no last of 'place', which is struct"),
        ({"columns": {"n": ("path", "p95")}}, "n: there is no p95 of 'path', which is string"),
    ],
)
@pytest.mark.parametrize("session", [None, "5s"])
def test_columns_that_cannot_be_grouped_or_aggregated_are_refused_before_a_window_closes(
    changes: dict[str, Any], message: str, session: str | None
) -> None:
    if session is not None:
        changes = changes | {"length": None, "session": session, "max": "10s"}
    columns = {"columns": {"n": ("*", "count")}} | changes
    hit = {"ts": BEGIN, "path": "/", "place": {"town": "Rome"}, "tags": ["new"]}
    schema = pa.Table.from_pylist([hit]).schema
    with pytest.raises(StrategyError, match=message):
        window(**columns).schema_after(schema)


@pytest.mark.parametrize(
    ("ahead", "timestamp", "fails"),
    [("1d", BEGIN, True), (None, BEGIN, False), ("1d", None, False)],
)
def test_a_time_far_after_the_timestamp_of_its_record_closes_nothing(
    ahead: str | None, timestamp: datetime | None, *, fails: bool
) -> None:
    columns: dict[str, Any] = {name: [None] * 3 for name in SCHEMA.names}
    columns |= {"topic": ["t"] * 3, "partition": [0] * 3, "offset": [0, 1, 2]}
    columns |= {"timestampType": [0] * 3}
    columns |= {"timestamp": [timestamp or datetime(1970, 1, 1, tzinfo=UTC)] * 3}
    batch = Batch.of(pa.RecordBatch.from_pydict(columns, schema=SCHEMA))
    times = [BEGIN, BEGIN + timedelta(days=2), BEGIN]
    table = pa.table({"ts": times, "o": [0, 1, 2]})
    rows = Rows(table, (Range("t", 0, 0, 2),), np.arange(3), (batch,))
    taken = window(ahead=ahead).state(P0).take(rows)
    assert list(taken.refused) == [1] * fails
    assert taken.late.tolist() == [False, False, not fails]


def test_records_that_all_have_no_time_fail_and_end_nothing() -> None:
    state = window(by=["g"]).state(P0)

    def rows_of(first: int, times: list[Any], groups: list[Any]) -> Rows:
        offsets = np.arange(first, first + len(times))
        table = pa.table({"ts": times, "o": offsets, "g": groups})
        return Rows(table, (Range("t", 0, first, int(offsets[-1])),), offsets)

    for number, kind in enumerate([pa.null(), pa.timestamp("us", "UTC")]):
        times: Any = pa.array([None, None], kind)
        taken = state.take(rows_of(2 * number, times, [None, None]))
        assert list(taken.refused) == [0, 1]
    assert not state.take(rows_of(4, [BEGIN, BEGIN + timedelta(seconds=30)], ["a", "b"])).late.any()
    assert state.close(state.level).to_pylist()[0]["of"] == [4]


MOST = 2**63 - 1


def rows_at(first: int, seconds: list[int], **columns: Any) -> Rows:
    offsets = np.arange(first, first + len(seconds))
    times = [BEGIN + timedelta(seconds=second) for second in seconds]
    table = pa.table({"ts": times, "o": offsets, **columns})
    return Rows(table, (Range("t", 0, first, first + len(seconds) - 1),), offsets)


def test_a_record_that_makes_a_sum_be_beyond_its_type_fails_and_a_mean_needs_none() -> None:
    columns = {"total": ("v", "sum"), "mean": ("v", "mean"), "n": ("*", "count")}
    strategy = Strategy(
        map=lambda record: {"ts": BEGIN, "v": int(record.value)},
        reduce=[window(columns=columns), StreamWriter("stdout")],
    )
    run = run_strategy(strategy, [str(MOST), "-1", "2", "1"])
    assert [(row["total"], row["n"]) for row in run.rows] == [(MOST, 3)]
    reason = f"column v: 2 would make the sum {MOST + 1}, beyond int64, of the window of 2026-01-01T00:00:00"
    assert [failure["reason"] for failure in run.failures] == [f"{reason}.000Z; cast v in the map"]
    means = Strategy(
        map=strategy.map, reduce=[window(columns={"mean": ("v", "mean")}), StreamWriter("stdout")]
    )
    assert run_strategy(means, [str(MOST)] * 2).rows[0]["mean"] == float(MOST)


def test_such_a_row_of_a_session_is_left_out_when_the_session_closes() -> None:
    sessions = window(
        length=None, session="5s", max="10s", columns={"total": ("v", "sum"), "n": ("*", "count")}
    )
    state = sessions.state(P0)
    taken = state.take(rows_at(0, [1, 2, 3], v=[MOST, 1, -1]))
    assert not taken.refused
    (row,) = state.close_all().to_pylist()
    assert (row["total"], row["n"], state.left_out) == (MOST - 1, 2, 1)


def test_a_row_is_left_out_only_of_the_hopping_windows_whose_sum_it_makes_too_large() -> None:
    hopping = window(every="5s", columns={"total": ("v", "sum")}, late="drop")
    state = hopping.state(P0)
    taken = state.take(rows_at(0, [6, 12, 16], v=[MOST, 3, 4]))
    assert (list(taken.left_out), list(taken.refused)) == ([1], [])
    assert [row["total"] for row in state.close_all().to_pylist()] == [MOST, MOST, 7, 4]
    # Read again where the first window has closed, the others are the same.
    closed_to = int(BEGIN.timestamp() + 10) * 10**6
    again = hopping.state(P0, Closed(2, closed_to, hopping.definition, 0))
    taken = again.take(rows_at(0, [6, 12, 16], v=[MOST, 3, 4]))
    assert not taken.left_out
    assert not taken.refused
    assert [row["total"] for row in again.close_all().to_pylist()] == [MOST, 7, 4]


def test_windows_are_the_same_however_rows_are_divided_and_saved() -> None:
    sums = window(columns={"total": ("v", "sum"), "f": ("w", "sum")}, by=["k"])
    values = [MOST, 5, -7, 1, 2, MOST, -MOST, -MOST, -3]
    floats = [1e308, 1e308, 1.0, -1e308, 9e307, 9e307, 9e307, float("inf"), 1e308]
    keys = ["a", "b", "a", "a", "a", "b", "b", "a", "a"]
    rows = rows_at(0, [1] * len(keys), v=values, w=floats, k=keys)
    whole = sums.state(P0)
    refused = set(whole.take(rows).refused)
    expected = whole.close_all().to_pylist()
    assert refused
    for size in (1, 2, 4):
        state, found = sums.state(P0), set[int]()
        for first in range(0, len(keys), size):
            part = slice(first, first + size)
            taken = state.take(rows_at(
                first, [1] * len(keys[part]), v=values[part], w=floats[part], k=keys[part]
            ))  # fmt: skip
            found |= {first + row for row in taken.refused}
            saved = state.saved()
            state = sums.state(P0)
            state.restore(saved)
        assert (found, state.close_all().to_pylist()) == (refused, expected)


@pytest.mark.parametrize("session", [None, "5s"])
@pytest.mark.parametrize("restored", [False, True])
def test_a_value_of_another_type_than_the_rows_before_it_is_joined_or_fails(
    session: str | None, *, restored: bool
) -> None:
    of_rows = {} if session is None else {"length": None, "session": session, "max": "10s"}
    columns = {"last": ("v", "last"), "total": ("v", "sum"), "n": ("*", "count")}
    sums = window(columns=columns, by=["k"], **of_rows)
    state = sums.state(P0)

    def then(first: int, v: list[Any], k: list[Any]) -> list[str]:
        nonlocal state
        if restored:
            saved = state.saved()
            state = sums.state(P0)
            state.restore(saved)
        taken = state.take(rows_at(first, [1] * len(v), v=v, k=k))
        return [taken.refused[row] for row in sorted(taken.refused)]

    assert then(0, [None, 1], ["a", "a"]) == []
    assert then(2, [2.0, 3.0], ["a", None]) == []
    assert then(4, [2.5], ["a"]) == []
    assert then(5, [2**53 + 1, 4], ["a", "b"]) == ["column v (double) cannot hold 9007199254740993"]
    assert then(7, [1], [7]) == ["column k: 7 is int64, but rows of the open windows are string"]
    (reason,) = then(8, ["one"], ["a"])
    assert "there is no sum of 'v', which is string" in reason
    rows = sorted(state.close_all().to_pylist(), key=lambda row: str(row["k"]))
    assert [(row["k"], row["last"], row["total"], row["n"]) for row in rows] == [
        (None, 3.0, 3.0, 1), ("a", 2.5, 5.5, 4), ("b", 4.0, 4.0, 1)
    ]  # fmt: skip
    assert then(9, [1], [7]) == []  # no window is open


def test_what_was_summed_exactly_is_not_rounded_for_a_later_float() -> None:
    state = window(columns={"last": ("v", "max")}).state(P0)
    assert not state.take(rows_at(0, [1], v=[2**53 + 1])).refused
    assert list(state.take(rows_at(1, [1, 1], v=[0.5, 2.0])).refused) == [0]
    assert state.close_all().to_pylist()[0]["last"] == 2**53 + 1


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_in_any_unit_are_in_their_window_and_no_time_wraps(unit: str) -> None:
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    times = [5 * per_second, None, 2**63 - 1, -(2**63), 12 * per_second]
    table = pa.table(
        {"ts": pa.array(times, pa.timestamp(cast("Any", unit), "UTC")), "o": list(range(5))}
    )
    state = window(ahead=None, late="drop").state(P0)
    taken = state.take(Rows(table, (Range("t", 0, 0, 4),), np.arange(5)))
    beyond = [] if unit == "ns" else [2]
    assert sorted(taken.refused) == [1, *beyond, 3]
    assert "before 1970, or after the year 148107" in taken.refused[1]
    closed = state.close_all().to_pylist()
    assert [row["of"] for row in closed] == ([[0], [2]] if unit == "ns" else [[0], [4]])


def test_a_batch_whose_times_are_text_fails_and_many_such_rows_end_with_the_reason() -> None:
    def batch(first: int, rows: int) -> Rows:
        offsets = np.arange(first, first + rows)
        table = pa.table({"ts": ["yesterday"] * rows, "o": offsets})
        return Rows(table, (Range("t", 0, first, first + rows - 1),), offsets)

    state = window().state(P0)
    state.take(rows_at(0, [1]))
    taken = state.take(batch(1, 2))
    assert set(taken.refused) == {0, 1}
    assert "time='ts' is string, not a timestamp" in taken.refused[0]
    with pytest.raises(StrategyError, match="time='ts' is string, not a timestamp"):
        state.take(batch(3, 100))
    assert state.close_all().to_pylist()[0]["of"] == [0]


def test_the_late_rows_have_to_be_decided() -> None:
    with pytest.raises(StrategyError, match="late"):
        Window("1m", time="ts", columns={"n": ("*", "count")})  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("reduce", "more", "message"),
    [
        ([window()], {}, "Window is the last and writes nothing"),
        (ClickHouseWriter("t"), {"reduce_err": window()}, "reduce_err: Window is the last"),
        ([window(), window(), ClickHouseWriter("t")], {}, "a strategy has one Window"),
        ([window(), {"a": ClickHouseWriter("t")}], {}, "branches cannot follow a reducer"),
        ([window(), Aggregate(["n"], {"m": ("*", "count")}), ClickHouseWriter("t")], {}, "directly"),
        ([Aggregate(["n"], {"m": ("*", "count")}), window(), ClickHouseWriter("t")], {}, "no single record"),
        ([window(), Distinct(key="o", within="1m"), ClickHouseWriter("t")], {}, "first"),
        ([window(), ClickHouseWriter("t")], {"delivery": "at-most-once"}, "at-most-once"),
        ([window(), KafkaWriter("t", delivery="exactly-once")], {}, "transactions"),
        ([window(late="dead-letter"), ClickHouseWriter("t")], {}, "needs reduce_err="),
        ({"a": [window(), ClickHouseWriter("t")]}, {}, "cannot be in a branch"),
        ([window(late="reemit", correct="1h"), ClickHouseWriter("t")], {}, r"key=\['window_start'\]"),
        ([window(late="reemit", correct="1h", by=["o"]), ClickHouseWriter("t", changes=True, key=["o"])], {},
         r"key=\['window_start', 'o'\]"),
    ],
)  # fmt: skip
def test_a_strategy_refuses_a_window_where_it_cannot_be(
    reduce: Any, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(StrategyError, match=message):
        Strategy(map=parse, reduce=reduce, **more)


def test_the_metadata_says_what_is_closed_and_an_announcement_what_was_before() -> None:
    closed = Closed(9, 1000, "10s of ts")
    assert (
        read_metadata(P0, CommitOffset(5, Generation(3, closed=closed).metadata)).closed == closed
    )
    announcement = WindowAnnouncement(
        5, 12, "token", "me", closed_from=1000, closed_to=2000, definition="10s of ts"
    )
    assert read_metadata(P0, CommitOffset(5, announcement.metadata)).closed == Closed(
        12, 1000, "10s of ts"
    )
    assert read_metadata(P0, CommitOffset(5)).closed is None


def test_rows_of_other_windows_have_other_names_though_their_offsets_are_the_same() -> None:
    table, ranges = pa.table({"n": [1]}), (Range("t", 0, 5, 9),)
    names = [
        {each.token, each.file_name}
        for closes in ((0, 10), (10, 20))
        for each in plan_ranges([Rows(table, ranges, closes=closes)], "g", {})
    ]
    assert names[0].isdisjoint(names[1])


async def test_an_idle_partition_closes_its_windows_by_the_wall_clock(clock: VirtualClock) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    strategy = Strategy(map=parse, reduce=[window(idle="5s"), MemoryWriter(journal, max_age=60)])
    async with running(strategy, consumer):
        await consumer.rebalance([P0])
        put(consumer, 0, 0, b"1", b"12")
        await clock.advance(1)
        for _ in range(5):
            await clock.advance(1)
        assert windows_of(journal) == [], "the sink waits for max_age"
        for _ in range(5):
            await clock.advance(1)
        assert windows_of(journal) == [(0, [0]), (10, [1])]
        put(consumer, 0, 2, b"13", b"21")
        await clock.advance(1)
        for _ in range(20):
            await clock.advance(1)
        assert windows_of(journal)[2:] == [(20, [3])], "13 is late: its window is closed"


class Tokens(RangeWriter):
    """Remembers the announcements of its writes."""

    def __init__(self, announced: list[WindowAnnouncement]) -> None:
        super().__init__(max_age=0.1)
        self.announced = announced

    def __deepcopy__(self, memo: object) -> Self:
        other = copy.copy(self)
        other.reset()
        return other

    def has(self, rows: RangeRows) -> bool:
        return False

    def write(self, rows: RangeRows) -> None:
        assert isinstance(rows.write.announcement, WindowAnnouncement)
        self.announced.append(rows.write.announcement)


async def test_the_same_offsets_with_other_times_have_another_token(clock: VirtualClock) -> None:
    announced: list[WindowAnnouncement] = []
    consumer = MemoryConsumer()
    strategy = Strategy(map=parse, reduce=[window(idle="1s", lateness="15s"), Tokens(announced)])
    async with running(strategy, consumer):
        await consumer.rebalance([P0])
        put(consumer, 0, 0, b"12", b"3")
        for _ in range(300):  # a map takes time of its own on a loaded machine
            await clock.advance(1)
            if len(announced) == 2:
                break
    first, second = announced
    assert (first.first, first.last) == (second.first, second.last) == (0, 1)
    assert (first.closed_to, second.closed_from) == (second.closed_from, first.closed_to)
    assert first.closed_to < second.closed_to
    assert first.token != second.token


async def test_after_a_reset_windows_begin_anew_with_other_tokens(clock: VirtualClock) -> None:
    announced: list[WindowAnnouncement] = []
    consumer = MemoryConsumer()
    strategy = Strategy(map=parse, reduce=[window(), Tokens(announced)])
    put(consumer, 0, 0, b"1", b"2", b"13", b"25")
    for generation in (0, 7):
        if generation:  # what `kmr offsets reset` commits
            consumer._committed[P0] = CommitOffset(0, Generation(generation).metadata)
        async with running(strategy, consumer):
            await consumer.rebalance([P0])
            for _ in range(4):
                await clock.advance(0.5)
        before, consumer = consumer, MemoryConsumer()
        consumer.log, consumer._committed = before.log, before._committed
    rows = [(each.first, each.last, each.closed_from, each.closed_to) for each in announced]
    assert rows[: len(rows) // 2] == rows[len(rows) // 2 :]
    tokens = [each.token for each in announced]
    assert len(set(tokens)) == len(tokens)
    assert read_metadata(P0, consumer._committed[P0]).closed is not None


async def test_an_idle_partition_closes_its_sessions_together(clock: VirtualClock) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    sessions = window(length=None, session="5s", max="1h", by=["ts"], lateness="2s", idle="1s")
    strategy = Strategy(map=parse, reduce=[sessions, MemoryWriter(journal, max_age=0.1)])
    async with running(strategy, consumer, commit_interval=0.1):
        await consumer.rebalance([P0])
        put(consumer, 0, 0, b"1", b"3", b"3", b"0")
        for _ in range(6):
            await clock.advance(1)
        assert windows_of(journal) == [], "the first would be over, but another is open"
        for _ in range(3):
            await clock.advance(1)
        assert windows_of(journal) == [(1, [0]), (3, [1, 2])], "0 was late by more than 2 s"
        assert committed(consumer)[P0] == 4


def test_sessions_that_were_saved_go_on() -> None:
    rows = [(0, "a"), (1, "b"), (4, "a"), (30, "b"), (7, "a"), (34, "b"), (60, "a")]
    sessions = window(length=None, session="5s", max="10s", by=["g"], lateness="40s", time="t")

    def rows_at(offset: int) -> Rows:
        second, group = rows[offset]
        table = pa.table({"t": [BEGIN + timedelta(seconds=second)], "g": [group], "o": [offset]})
        return Rows(table, (Range("t", 0, offset, offset),), np.array([offset]))

    whole = sessions.state()
    out: list[Any] = []
    expected: list[Any] = []
    saved: dict[str, pa.Table] = {}
    for offset in range(len(rows)):
        whole.take(rows_at(offset))
        part = sessions.state()
        if saved:
            part.restore(saved)
        part.take(rows_at(offset))
        for state, into in ((whole, expected), (part, out)):
            if state.can_close(state.level):
                into += state.close(state.level).to_pylist()
        saved = part.saved()
    expected += whole.close_all().to_pylist()
    out += part.close_all().to_pylist()
    assert out == expected
    assert [(row["g"], row["of"]) for row in out] == [
        ("a", [0, 2, 4]),
        ("b", [1]),
        ("b", [3, 5]),
        ("a", [6]),
    ]


async def test_open_windows_hold_the_commit_and_are_no_lag(clock: VirtualClock) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    strategy = Strategy(map=parse, reduce=[window(), MemoryWriter(journal, max_age=0.1)])
    async with running(strategy, consumer, commit_interval=0.1) as worker:
        await consumer.rebalance([P0])
        put(consumer, 0, 0, b"1", b"2", b"11", b"12")
        await clock.advance(0.5)
        await clock.advance(0.5)
        assert windows_of(journal) == [(0, [0, 1])]
        assert committed(consumer)[P0] == 2
        (partition,) = worker.status().partitions
        assert (partition.held, partition.lag, partition.watermark) == (2, 0, 2)
        labels = {"topic": "t", "partition": "0"}
        assert worker.metrics.registry.get_sample_value("kmr_held_records", labels) == 2


async def test_late_records_are_letters_and_mixed_ones_are_counted(clock: VirtualClock) -> None:
    journal, letters, consumer = Journal(), Journal(), MemoryConsumer()
    strategy = Strategy(
        map=parse,
        reduce=[window(late="dead-letter"), MemoryWriter(journal, max_age=0.1)],
        reduce_err=MemoryWriter(letters, max_age=0.1),
        err_limit=None,
    )
    async with running(strategy, consumer) as worker:
        await consumer.rebalance([P0])
        put(consumer, 0, 0, b"1", b"25", b"2", b"3 26", b"null", b"40")
        for _ in range(4):
            await clock.advance(0.2)
        assert windows_of(journal) == [(0, [0]), (20, [1, 3])]
        beyond = "before 1970, after the year 148107"
        assert {row["offset"]: row["reason"] for row in letters.rows()} == {
            2: "late: the windows of its ts have closed",
            4: f"ts is null, {beyond}, or more than 86400 s later than the record's timestamp",
        }
        late = {"stage": "reduce-1", "outcome": "dropped"}
        assert worker.metrics.registry.get_sample_value("kmr_late_rows_total", late) == 1


def test_a_test_of_a_strategy_has_the_failures_of_its_window() -> None:
    strategy = Strategy(
        parse,
        [window(late="dead-letter"), StreamWriter("stdout")],
        reduce_err=StreamWriter("stderr"),
    )
    run = run_strategy(strategy, ["1", "25", "2", "null", "900000000"])
    assert [row["of"] for row in run.rows] == [[0], [1], [4]]  # any time: the records have no clock
    assert {failure["offset"]: failure["reason"].partition(",")[0] for failure in run.failures} == {
        2: "late: the windows of its ts have closed",
        3: "ts is null",
    }


@pytest.mark.parametrize(
    ("changes", "largest"),
    [
        ({}, "2026-01-01T00:00:00.000Z with "),
        ({"columns": {"q": ("o", "p95"), "n": ("o", Spread())}}, "2026-01-01T00:00:00.000Z with "),
        ({"late": "reemit", "correct": "1h"}, "2026-01-01T00:00:00.000Z with "),
        (
            {"length": None, "session": "5s", "max": "1m"},
            "2026-01-01T00:00:01.000Z of 0 with 1 row",
        ),
    ],
)
async def test_windows_that_need_too_much_memory_end_the_worker_and_name_the_largest(
    clock: VirtualClock, changes: dict[str, Any], largest: str
) -> None:
    consumer, journal = MemoryConsumer(), Journal()
    sink = MemoryWriter(journal)
    sink.replaces_by = ("window_start", "o")
    strategy = Strategy(map=parse, reduce=[window(by=["o"], **changes), sink])
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with running(strategy, consumer, inflight_bytes=1 << 20):
            await consumer.rebalance([P0])
            for first in range(0, 30_000, 1000):
                put(consumer, 0, first, *[b"1"] * 1000)
                await clock.advance(0.1)
    (error,) = caught.value.exceptions
    assert isinstance(error, StateTooLarge)
    assert largest in str(error)
    assert "Nothing is lost" in str(error)
    assert not journal.rows()
    assert committed(consumer).get(P0, 0) == 0


async def test_a_batch_that_is_larger_than_the_budget_does_not_stop_the_worker(
    clock: VirtualClock,
) -> None:
    journal, consumer = Journal(), MemoryConsumer()
    strategy = Strategy(map=parse, reduce=[window(by=["ts"]), MemoryWriter(journal, max_age=0.1)])
    values = [b"%d%s" % (number // 100, b" " * 1500) for number in range(2000)]
    async with running(strategy, consumer, inflight_bytes=1 << 20):
        await consumer.rebalance([P0])
        put(consumer, 0, 0, *values, b"40")
        for _ in range(60):
            await clock.advance(0.5)
    assert sum(row["n"] for row in journal.rows()) == 2000


async def test_another_definition_of_windows_is_refused(clock: VirtualClock) -> None:
    consumer = MemoryConsumer()
    consumer._committed[P0] = CommitOffset(
        0, Generation(0, closed=Closed(3, 5, "60s of ts")).metadata
    )
    strategy = Strategy(map=parse, reduce=[window(), MemoryWriter(Journal())])
    async with running(strategy, consumer):
        with pytest.raises(StrategyError, match="has open windows of '60s of ts'"):
            await consumer.rebalance([P0])


def test_the_time_and_the_topic_may_be_those_of_the_record_where_the_columns_are_declared() -> None:
    made = window(time="timestamp", by=["topic"]).schema_after(pa.schema([("o", pa.int64())]))
    assert made.names[:2] == ["window_start", "window_end"]
    assert "topic" in made.names
