"""PostgresWriter against a real PostgreSQL: what is written, refused, found again, and said."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import UUID

import anyio
import numpy as np
import psycopg
import pyarrow as pa
import pytest

from kmr.errors import StrategyError, UnexpectedDuplicate
from kmr.record import Range, Rows
from kmr.reducers.reducer import Retry
from kmr.sinks import PostgresWriter
from tests.framework.sinks.postgres.writing import (
    execute,
    flush,
    flush_killed,
    opened,
    query,
    refused,
    rows,
)

from ...flushes import Flushed, outcome

if TYPE_CHECKING:
    from chaos.postgres import PostgresServer
    from kmr.reducers.reducer import Context

pytestmark = pytest.mark.usefixtures("closed_at_the_end")


async def test_values_of_every_type_arrive_as_they_are(postgres_url: str, context: Context) -> None:
    moment = datetime(2026, 1, 31, 12, 30, 15, 123456, tzinfo=UTC)
    values: dict[str, Any] = {
        "n": pa.array([1, None], pa.uint32()),
        "big": pa.array([2**64 - 1, 0], pa.uint64()),
        "f": [1.5, float("inf")],
        "b": [True, None],
        "s": ['comma, "quote"\nline', ""],
        "code": pa.array(["a", "a"]).dictionary_encode(),
        "raw": [b"\x00\xff", None],
        "at": pa.array([moment, None], pa.timestamp("ns", "UTC")),
        "local": pa.array([datetime(2026, 1, 31, 1), None]),  # noqa: DTZ001  without a zone
        "day": [date(2026, 1, 31), None],
        "price": pa.array([Decimal("1.20"), None], pa.decimal128(10, 2)),
        "tags": pa.array([["x", "y"], None]),
        "nested": pa.array([{"a": 1, "b": [b"z"]}, None]),
    }
    table = pa.table(values)
    writer = await opened(postgres_url, context, create=table.schema)
    added = Rows(table, (Range("t", 0, 0, 1),), np.arange(2))
    assert await flush(writer, added) == Flushed()
    assert query(postgres_url, "SELECT * FROM hits") == [
        (
            *(1, Decimal(2**64 - 1), 1.5, True, 'comma, "quote"\nline', "a", b"\x00\xff", moment),
            *(datetime(2026, 1, 31, 1), date(2026, 1, 31), Decimal("1.20"), ["x", "y"]),  # noqa: DTZ001
            {"a": 1, "b": ["z"]},
        ),
        (None, Decimal(0), float("inf"), None, "", "a", *([None] * 7)),
    ]


async def test_types_that_the_server_casts_take_text(postgres_url: str, context: Context) -> None:
    execute(
        postgres_url,
        "CREATE TYPE mood AS ENUM ('sad', 'happy')",
        "CREATE TABLE hits (id uuid, at inet, mood mood, numbers int[], document json)",
    )
    key = UUID("12345678-1234-5678-1234-567812345678")
    table = pa.table(
        {
            "id": pa.array([key.bytes, key.bytes], pa.uuid()),
            "at": ["10.0.0.1", "nowhere"],
            "mood": ["happy", "sad"],
            "numbers": ["{1,2}", None],
            "document": ['{"a": [1]}', None],
        }
    )
    result = await flush(
        await opened(postgres_url, context), Rows(table, (Range("t", 0, 0, 1),), np.arange(2))
    )
    assert query(postgres_url, "SELECT id, host(at), mood, numbers, document FROM hits") == [
        (key, "10.0.0.1", "happy", [1, 2], {"a": [1]})
    ]
    named = "PostgreSQL table hits refuses it: column at (inet) cannot hold 'nowhere'"
    assert refused(result) == [(1, f'{named}: invalid input syntax for type inet: "nowhere"')]


_LOCAL = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("kind", "fits", "does_not"),
    [
        ('"char"', "a", "ab"),
        ("name", "n" * 63, "n" * 64),
        ("cents", "1.50", "1.505"),
        ("numeric(3,-2)", 400, 393),
        ("numeric(2,4)", "0.0099", "0.01"),
        ("money", "1.50", "1.505"),
        ("money", "1.50", ""),
        ("oid", 2**32 - 1, -1),
        ("timetz", "12:30:00+02:00", "2026-01-31T12:30:00+02:00"),
        ("timetz", "12:30:00+02:00", datetime(2026, 1, 31, 12, 30, tzinfo=_LOCAL)),
        ("interval", "1 day 00:00:00.5", "00:00:00.0000005"),
        ("interval day to second(0)", "1 day", "00:00:00.5"),
        ("interval day", "2 weeks 1 day 00:00:00", "1 day 05:00:00"),
        ("interval year to month", "1 year -3 mons", "P1Y2M3D"),
        ("interval hour to minute", "01:30", timedelta(seconds=90)),
        ("interval hour", "5 hours", "5 hours 1 minute"),
        ("bit(3)", "101", "1"),
        ("small", 199, 200),
        ("tsvector", "a:1", "a:x"),
    ],
)
async def test_what_the_server_would_cut_round_or_not_take_is_refused_with_column_and_value(
    postgres_url: str, context: Context, kind: str, fits: Any, does_not: Any
) -> None:
    execute(
        postgres_url,
        "CREATE DOMAIN cents AS numeric(5,2)",
        "CREATE DOMAIN small AS smallint CHECK (VALUE < 200)",
        f'CREATE TABLE hits ("offset" bigint, v {kind}, other text)',
    )
    of_one_type = isinstance(fits, type(does_not))
    values = [fits, does_not, fits] if of_one_type else [does_not] * 3
    result = await flush(await opened(postgres_url, context), rows(0, 2, v=values, other=["x"] * 3))
    found = refused(result)
    assert [offset for offset, _ in found] == ([1] if of_one_type else [0, 1, 2])
    assert all("column v (" in reason for _, reason in found)
    if of_one_type:
        assert f"cannot hold {str(does_not)[:20]}" in found[0][1].replace("'", "")
        assert query(postgres_url) == [0, 2]


async def test_digits_of_a_second_that_a_column_lacks_are_cut_off_not_rounded(
    postgres_url: str, context: Context
) -> None:
    execute(
        postgres_url,
        'CREATE TABLE hits ("offset" bigint, t time(3), at timestamptz(0), d interval second(1))',
    )
    at = datetime(2026, 1, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    result = await flush(
        await opened(postgres_url, context),
        rows(0, 0, t=[at.time()], at=[at], d=[timedelta(seconds=1.96)]),
    )
    assert refused(result) == []
    assert query(postgres_url, "SELECT t::text, at AT TIME ZONE 'UTC', d::text FROM hits") == [
        ("23:59:59.999", datetime(2026, 1, 31, 23, 59, 59), "00:00:01.9")  # noqa: DTZ001
    ]


async def test_a_kill_at_any_step_loses_and_doubles_nothing(
    postgres_url: str, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies after each exchange with the server in turn; the next owner writes again."""
    execute(postgres_url, 'CREATE TABLE hits ("offset" bigint CHECK ("offset" % 100 <> 1))')
    victim, heir = [await opened(postgres_url, context) for _ in range(2)]
    for fatal in count():
        first = fatal * 100
        killed = await flush_killed(victim, rows(first, first + 2), fatal, monkeypatch)
        result = await flush(heir, rows(first, first + 2), replayed=True)
        assert [offset for offset, _ in refused(result)] == [first + 1]
        assert query(postgres_url, "SELECT last_offset FROM kmr_ranges") == [first + 2]
        if not killed:
            break
    assert fatal > 15, "the writer has fewer exchanges than this test thinks"
    assert query(postgres_url) == [base + n for base in range(0, first + 1, 100) for n in (0, 2)]


async def test_a_reset_of_the_offsets_writes_again_and_another_tool_is_found_out(
    postgres_url: str, context: Context
) -> None:
    writer = await opened(postgres_url, context)
    await flush(writer, rows(0, 9))
    again = await opened(postgres_url, context)
    with pytest.raises(UnexpectedDuplicate, match=r"t-0\[0..4\].*run kmr offsets reset"):
        await flush(again, rows(0, 4))
    third = await opened(postgres_url, context)
    with pytest.raises(UnexpectedDuplicate, match=r"t-0\[9..12\]"):
        await flush(third, rows(9, 12))  # it begins at the last record that was written
    assert await flush(again, rows(0, 4), generation=7) == Flushed()
    assert query(postgres_url) == sorted([*range(10), *range(5)])


async def test_a_range_of_one_record_that_was_written_in_a_larger_one_is_not_written_again(
    postgres_url: str, context: Context
) -> None:
    owner, late = [await opened(postgres_url, context) for _ in range(2)]
    assert await flush(late, rows(0, 3)) == Flushed()
    assert await flush(owner, rows(4, 9), replayed=True) == Flushed()
    assert await flush(late, rows(9, 9)) == Flushed(), "a range of another cut, long after"
    assert query(postgres_url) == list(range(10))


async def test_rows_that_do_not_fit_go_to_reduce_err_and_the_others_are_written(
    postgres_url: str, context: Context
) -> None:
    execute(
        postgres_url,
        'CREATE TABLE hits ("offset" bigint UNIQUE, n smallint NOT NULL, s varchar(3), at timestamptz)',
        "INSERT INTO hits VALUES (5, 0)",
    )
    writer = await opened(postgres_url, context)
    result = await flush(
        writer,
        rows(
            *(0, 7),
            n=[1, 70_000, None, 4, 5, 6, 7, 8],
            s=["a", "b", "c", "long", "a\0b", "f", "g", "h"],
            at=["2026-01-31T00:00:00Z"] * 7 + ["soon"],
        ),
    )
    refuses = "PostgreSQL table hits refuses it"
    twice = "duplicate key value violates unique constraint"
    assert sorted(refused(result)) == [
        (1, "column n (smallint) cannot hold 70000"),
        (2, "column n (smallint) cannot be null"),
        (3, "column s (character varying(3)) cannot hold 'long'"),
        (4, "column s (character varying(3)) cannot hold 'a\\x00b'"),
        (5, f'{refuses}: {twice} "hits_offset_key": Key ("offset")=(5) already exists.'),
        (7, "column at (timestamp with time zone) cannot hold 'soon'"),
    ]
    assert query(postgres_url) == [0, 5, 6]


async def test_a_column_that_is_added_while_the_worker_runs_is_written(
    postgres_url: str, context: Context
) -> None:
    writer = await opened(postgres_url, context)
    ((_, reason), *_) = refused(await flush(writer, rows(0, 1, n=[1, 2])))
    assert "hits has no column n to write to; its columns are offset. Alter the table" in reason
    execute(postgres_url, "ALTER TABLE hits ADD n int")
    assert await flush(writer, rows(2, 3, n=[1, 2])) == Flushed()
    assert query(postgres_url, "SELECT n FROM hits ORDER BY 1") == [1, 2]
    execute(postgres_url, "ALTER TABLE hits DROP n")
    with pytest.raises(StrategyError, match="has no column n to write to"):
        await flush(writer, rows(4, 5, n=[1, 2]))


async def test_a_default_that_is_set_while_rows_without_the_column_are_refused_is_used(
    postgres_url: str, context: Context
) -> None:
    writer = await opened(postgres_url, context)
    execute(postgres_url, "ALTER TABLE hits ADD n int NOT NULL")
    assert len(refused(await flush(writer, rows(0, 1)))) == 2
    execute(postgres_url, "ALTER TABLE hits ALTER n SET DEFAULT 7")
    assert await flush(writer, rows(2, 3)) == Flushed()
    assert query(postgres_url, "SELECT n FROM hits") == [7, 7]


async def test_a_server_that_dies_is_waited_for_and_nothing_is_doubled(
    postgres_server: PostgresServer, postgres_url: str, context: Context
) -> None:
    writer = await opened(postgres_url, context)
    assert await flush(writer, rows(0, 4)) == Flushed()
    postgres_server.kill()
    try:
        result = await flush(writer, rows(5, 9))
        assert isinstance(result, Retry)
        assert not result.may_double
    finally:
        postgres_server.start()
    result = await outcome(writer)
    while isinstance(result, Retry):
        result = await outcome(writer)
    assert query(postgres_url) == list(range(10))


async def test_a_server_that_says_nothing_any_more_is_given_up_and_asked_again(
    postgres_url: str, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await opened(postgres_url, context)
    writer.timeout = 0.1
    with monkeypatch.context() as patch:
        patch.setattr("kmr.sinks.postgres.writer._GRACE", 0.0)
        patch.setattr(psycopg.AsyncConnection, "wait", lambda *_, **__: anyio.sleep_forever())
        with anyio.fail_after(60):
            result = await flush(writer, rows(0, 4))
    assert isinstance(result, Retry)
    assert result.reason == "PostgreSQL table hits: the server does not answer"
    writer.timeout = 60.0
    assert await outcome(writer) == Flushed()
    assert query(postgres_url) == list(range(5))


async def test_an_address_is_needed(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KMR_POSTGRES_URL", "PGHOST", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StrategyError, match="set url= or KMR_POSTGRES_URL"):
        await PostgresWriter("hits").open(context)
    with pytest.raises(StrategyError, match="timeout must be above 0"):
        PostgresWriter("hits", timeout=0)
    writer = pickle.loads(pickle.dumps(PostgresWriter("hits")))
    assert writer.capabilities.on_spark == (
        "exactly once, by one row of kmr_ranges per range of offsets; in the driver, per micro-batch"
    )


async def test_a_table_that_is_dropped_in_the_run_ends_the_worker_and_refuses_no_row(
    postgres_url: str, context: Context
) -> None:
    writer = await opened(postgres_url, context)
    assert await flush(writer, rows(0, 1)) == Flushed()
    execute(postgres_url, "DROP TABLE hits")
    with pytest.raises(StrategyError, match="There is no PostgreSQL table hits any more"):
        await flush(writer, rows(2, 3))


async def test_texts_are_written_by_a_role_whose_clients_have_another_encoding(
    postgres_url: str, context: Context
) -> None:
    execute(postgres_url, "CREATE TABLE hits (\"offset\" bigint, x text CHECK (x <> 'no'))")
    url = f"{postgres_url}{'&' if '?' in postgres_url else '?'}client_encoding=LATIN1"
    writer = await opened(url, context)
    result = await flush(writer, rows(0, 1, x=["no", "5 €"]))  # row by row
    assert [row for row, _ in refused(result)] == [0]
    assert query(postgres_url, "SELECT x FROM hits") == ["5 €"]


@pytest.mark.parametrize(
    ("before", "after", "values", "reason"),
    [
        ("numeric(9, 4)", "numeric(9, 2)", ["1.2345", "1.5"], "(numeric(9,2)) cannot hold"),
        ("bigint", "real", [16_777_217, 3], "(real) cannot hold"),
        ("text", "varchar(2)", ["ab   ", "cd"], "(character varying(2)) cannot hold"),
    ],
)
async def test_a_table_that_is_altered_to_hold_less_gets_no_value_that_it_would_change(
    postgres_url: str,
    context: Context,
    before: str,
    after: str,
    values: list[Any],
    reason: str,
) -> None:
    execute(postgres_url, f'CREATE TABLE hits ("offset" bigint, x {before})')
    writer = await opened(postgres_url, context)
    assert await flush(writer, rows(0, 1, x=values)) == Flushed()
    execute(postgres_url, "TRUNCATE hits", f"ALTER TABLE hits ALTER COLUMN x TYPE {after}")
    [(row, why)] = refused(await flush(writer, rows(2, 3, x=values)))
    assert reason in why
    assert query(postgres_url) == [5 - row]


async def test_the_maps_are_told_which_columns_are_json(
    postgres_url: str, context: Context
) -> None:
    execute(
        postgres_url, "CREATE TABLE hits (n bigint, a json, b jsonb, c jsonb[], d text, e uuid)"
    )
    told: dict[str, pa.DataType] = {}
    sinks = context.with_sinks(tell_types=lambda _, stored: told.update(stored))
    await opened(postgres_url, sinks, create=False)
    json, texts = pa.json_(), pa.list_(pa.string())
    assert told == {"n": pa.int64(), "a": json, "b": json, "c": texts, "d": json, "e": pa.string()}
