"""What a `Window` refuses, and what its stage does: idle partitions, late rows, memory."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pytest

from kmr import Aggregate, Distinct, Strategy, Window, map_record
from kmr.delivery.announcement import Closed, Generation, WindowAnnouncement, read_closed
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
        ({"late": "keep"}, "late must be one of"),
        ({"every": "3s"}, "length must be a multiple of every"),
        ({"columns": {}}, "columns is empty"),
        ({"columns": {"n": ("v", "median")}}, "there is no function 'median'"),
        ({"columns": {"window_start": ("*", "count")}}, "would be twice"),
        ({"lateness": "soon"}, "lateness: 'soon' is not a number"),
        ({"by": "path"}, r"by=\['path'\]"),
        ({"length": 0}, "length must be above 0"),
        ({"lateness": -1}, "lateness must be at least 0"),
        ({"length": float("nan")}, "length: nan is no duration"),
        ({"idle": "inf"}, "idle"),
        ({"lateness": float("inf")}, "lateness: inf is no duration"),
        ({"length": "20000d"}, "less than ten years"),
        ({"columns": {"n": "count"}}, "columns has for each new column"),
        ({"columns": ["n"]}, "columns has for each new column"),
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
    assert taken.invalid.tolist() == [False, fails, False]
    assert taken.late.tolist() == [False, False, not fails]


def test_records_that_all_have_no_time_fail_and_end_nothing() -> None:
    state = window(by=["g"]).state(P0)

    def rows_of(first: int, times: list[Any], groups: list[Any]) -> Rows:
        offsets = np.arange(first, first + len(times))
        table = pa.table({"ts": times, "o": offsets, "g": groups})
        return Rows(table, (Range("t", 0, first, int(offsets[-1])),), offsets)

    for number, kind in enumerate([pa.null(), pa.timestamp("us", "UTC")]):
        times: Any = pa.array([None, None], kind)
        assert state.take(rows_of(2 * number, times, [None, None])).invalid.all()
    assert not state.take(rows_of(4, [BEGIN, BEGIN + timedelta(seconds=30)], ["a", "b"])).late.any()
    assert state.close(state.level).to_pylist()[0]["of"] == [4]


@pytest.mark.parametrize("session", [None, "5s"])
def test_a_sum_beyond_its_type_ends_with_the_reason_and_a_mean_needs_none(
    session: str | None,
) -> None:
    of_rows = {} if session is None else {"length": None, "session": session, "max": "10s"}
    most = 2**63 - 1
    strategy = Strategy(
        map=lambda _: {"ts": BEGIN, "v": most},
        reduce=[window(columns={"mean": ("v", "mean")}, **of_rows), StreamWriter("stdout")],
    )
    (row,) = run_strategy(strategy, [b"", b""]).rows
    assert row["mean"] == float(most)
    sums = window(columns={"total": ("v", "sum")}, **of_rows)
    strategy = Strategy(map=strategy.map, reduce=[sums, StreamWriter("stdout")])
    with pytest.raises(StrategyError, match=f"the sum of total is {2 * most}, beyond int64"):
        run_strategy(strategy, [b"", b""])


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
    assert read_closed(P0, CommitOffset(5, Generation(3, closed=closed).metadata)) == closed
    announcement = WindowAnnouncement(
        5, 12, "token", "me", closed_from=1000, closed_to=2000, definition="10s of ts"
    )
    assert read_closed(P0, CommitOffset(5, announcement.metadata)) == Closed(12, 1000, "10s of ts")
    assert read_closed(P0, CommitOffset(5)) is None


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
    assert read_closed(P0, consumer._committed[P0]) is not None


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
        assert {row["offset"]: row["reason"] for row in letters.rows()} == {
            2: "late: the windows of its ts have closed",
            4: "ts is null, before 1970, or more than 86400 s later than the record's timestamp",
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
            "2026-01-01T00:00:01.000Z of 0 with 1 rows",
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
