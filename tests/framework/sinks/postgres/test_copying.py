"""Rows that the server refuses: they go to `reduce_err`, fast, and all others are written."""

from __future__ import annotations

import time
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from kmr.errors import StrategyError
from kmr.reducers.reducer import Retry
from kmr.sinks.postgres.types import copy_columns

from .writing import execute, flush, opened, query, refused, rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kmr.reducers.reducer import Context

pytestmark = pytest.mark.usefixtures("closed_at_the_end")

RAISES = (
    """CREATE FUNCTION check_n() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.n < 0 THEN RAISE EXCEPTION 'negative % for %', NEW.n, NEW."offset"; END IF;
    RETURN NEW; END $$""",
    "CREATE TRIGGER t BEFORE INSERT ON hits FOR EACH ROW EXECUTE FUNCTION check_n()",
)


async def test_a_trigger_that_raises_refuses_its_row(postgres_url: str, context: Context) -> None:
    execute(postgres_url, 'CREATE TABLE hits ("offset" bigint, n bigint)', *RAISES)
    writer = await opened(postgres_url, context)
    result = await flush(writer, rows(0, 3, n=[1, 2, -3, 4]))
    assert refused(result) == [(2, "PostgreSQL table hits refuses it: negative -3 for 2")]
    assert query(postgres_url) == [0, 1, 3]


async def test_rows_that_a_trigger_leaves_out_are_counted_and_said_once(
    postgres_url: str, context: Context
) -> None:
    left_out: list[Any] = []
    context = context.with_sinks(count_left_out=lambda *each: left_out.append(each))
    leaves = RAISES[0].replace("RETURN NEW;", "IF NEW.n = 0 THEN RETURN NULL; END IF; RETURN NEW;")
    execute(postgres_url, 'CREATE TABLE hits ("offset" bigint, n bigint)', leaves, RAISES[1])
    writer = await opened(postgres_url, context)
    with capture_logs() as logs:
        await flush(writer, rows(0, 3, n=[1, 0, 0, 4]))
        result = await flush(writer, rows(4, 6, n=[0, -1, 2]))  # row by row
    assert [row for row, _ in refused(result)] == [5]
    assert query(postgres_url) == [0, 3, 6]
    assert left_out == [("reduce-1", "rows", 2), ("reduce-1", "rows", 1)]
    assert [each["event"] for each in logs if "rows are not stored" in each["event"]] == [
        "rows are not stored: a trigger of the table leaves them out"
    ]


async def test_a_value_that_is_too_large_for_an_index_refuses_its_row(
    postgres_url: str, context: Context
) -> None:
    execute(postgres_url, 'CREATE TABLE hits ("offset" bigint, s text)', "CREATE INDEX ON hits (s)")
    execute(postgres_url, "ALTER TABLE hits ALTER COLUMN s SET STORAGE EXTERNAL")
    writer = await opened(postgres_url, context)
    ((row, reason),) = refused(await flush(writer, rows(0, 2, s=["a", "x" * 20_000, "b"])))
    assert row == 1
    assert "index row" in reason
    assert query(postgres_url) == [0, 2]


async def test_a_table_with_row_level_security_is_written_row_by_row(
    postgres_url: str, context: Context
) -> None:
    execute(
        postgres_url,
        'CREATE TABLE hits ("offset" bigint, tenant text)',
        "ALTER TABLE hits ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE hits FORCE ROW LEVEL SECURITY",
        "CREATE POLICY p ON hits USING (true) WITH CHECK (tenant = 'a')",
        "DO $$ BEGIN CREATE ROLE tenants; EXCEPTION WHEN duplicate_object THEN NULL; END $$",
        "DO $$ BEGIN EXECUTE format('GRANT ALL ON SCHEMA %I TO tenants', current_schema()); END $$",
        "GRANT ALL ON hits TO tenants",
    )
    url = f"{postgres_url}{'&' if '?' in postgres_url else '?'}options=-c%20role%3Dtenants"
    if "options=" in postgres_url:
        url = postgres_url.replace("options=", "options=-c%20role%3Dtenants%20")
    writer = await opened(url, context)
    result = await flush(writer, rows(0, 999, tenant=["b" if n == 5 else "a" for n in range(1000)]))
    ((row, reason),) = refused(result)
    assert (row, "row-level security" in reason) == (5, True)
    assert query(postgres_url, "SELECT count(*) FROM hits") == [999]


async def test_a_deferred_constraint_refuses_its_row_and_not_the_transaction(
    postgres_url: str, context: Context
) -> None:
    execute(
        postgres_url,
        'CREATE TABLE hits ("offset" bigint, n bigint UNIQUE DEFERRABLE INITIALLY DEFERRED)',
    )
    writer = await opened(postgres_url, context)
    result = await flush(writer, rows(0, 3, n=[1, 2, 2, 3]))
    assert [row for row, _ in refused(result)] == [2]
    assert query(postgres_url) == [0, 1, 3]


async def test_the_reason_of_a_deferred_constraint_names_no_column_by_a_part_of_a_word(
    postgres_url: str, context: Context
) -> None:
    execute(
        postgres_url,
        "CREATE TABLE others (id int PRIMARY KEY)",
        'CREATE TABLE hits ("offset" bigint, day date, '
        "n int REFERENCES others DEFERRABLE INITIALLY DEFERRED)",
    )
    writer = await opened(postgres_url, context)
    [(row, reason)] = refused(await flush(writer, rows(0, 1, n=[None, 7], day=[None, None])))
    assert row == 1
    assert 'insert or update on table "hits" violates foreign key constraint' in reason
    assert "column day" not in reason


def slow(seconds: float, where: str = "true") -> tuple[str, str]:
    """A trigger that takes so long for each row of some."""
    return (
        f"""CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF {where} THEN PERFORM pg_sleep({seconds}); END IF; RETURN NEW; END $$""",
        "CREATE TRIGGER t BEFORE INSERT ON hits FOR EACH ROW EXECUTE FUNCTION slow()",
    )


async def test_rows_that_exceed_the_timeout_together_are_written_in_parts_and_later_flushes_are_smaller(
    postgres_url: str, context: Context
) -> None:
    execute(postgres_url, 'CREATE TABLE hits ("offset" bigint, n int CHECK (n <> 7))', *slow(0.005))
    writer = await opened(postgres_url, context, timeout=0.25)
    steps: list[float] = []
    result = await flush(
        writer, rows(0, 399, n=range(400)), progressed=lambda: steps.append(time.monotonic())
    )
    assert [row for row, _ in refused(result)] == [7]
    assert query(postgres_url, "SELECT count(*) FROM hits") == [399]
    assert len(steps) > 8
    assert 1 < (writer.max_rows or 0) <= 50


async def test_a_row_that_exceeds_the_timeout_alone_is_refused_and_the_others_are_written(
    postgres_url: str, context: Context
) -> None:
    execute(
        postgres_url, 'CREATE TABLE hits ("offset" bigint, n int)', *slow(0.5, "NEW.n IN (0, 30)")
    )
    writer = await opened(postgres_url, context, timeout=0.1)
    found = refused(await flush(writer, rows(0, 63, n=range(64))))
    assert [row for row, _ in found] == [0, 30]
    assert "more than 0.1 s for one row" in found[0][1]
    assert query(postgres_url) == [n for n in range(64) if n not in (0, 30)]


async def test_where_every_row_exceeds_the_timeout_the_flush_is_repeated_and_says_why(
    postgres_url: str, context: Context
) -> None:
    execute(postgres_url, 'CREATE TABLE hits ("offset" bigint)', *slow(0.5))
    writer = await opened(postgres_url, context, timeout=0.05)
    result = await flush(writer, rows(0, 9))
    assert isinstance(result, Retry)
    assert "more than 0.05 s for one row" in result.reason


async def test_rows_that_wait_for_a_lock_are_not_divided(
    postgres_url: str, context: Context
) -> None:
    execute(postgres_url, 'CREATE TABLE hits ("offset" bigint)')
    writer = await opened(postgres_url, context, timeout=0.25)
    with psycopg.connect(postgres_url) as other:
        other.execute("LOCK TABLE hits")
        result = await flush(writer, rows(0, 9))
        assert isinstance(result, Retry)
        assert "lock timeout" in result.reason
    assert refused(await flush(writer, rows(0, 9))) == []
    assert writer.max_rows == 32_768


async def test_thirty_thousand_refused_rows_of_a_flush_take_seconds_and_few_statements(
    postgres_url: str, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(
        postgres_url,
        'CREATE TABLE hits ("offset" bigint, n bigint PRIMARY KEY)',
        "INSERT INTO hits SELECT -1, n FROM generate_series(0, 29999) n",
    )
    writer = await opened(postgres_url, context)
    order = [(n * 7919) % 32_768 for n in range(32_768)]
    exchange, exchanges = psycopg.AsyncConnection.wait, count(1)

    async def wait(self: Any, *arguments: Any, **options: Any) -> Any:
        next(exchanges)
        return await exchange(self, *arguments, **options)

    monkeypatch.setattr(psycopg.AsyncConnection, "wait", wait)
    began = time.monotonic()
    result = await flush(writer, rows(0, 32_767, n=order))
    assert time.monotonic() - began < 180, "the aim is 10 s, on a quiet machine"
    assert next(exchanges) < 250
    assert [row for row, _ in refused(result)] == [row for row, n in enumerate(order) if n < 30_000]
    assert query(postgres_url, 'SELECT count(*) FROM hits WHERE "offset" >= 0') == [2_768]


@pytest.mark.parametrize(
    "bad",
    [
        range(900),  # then none
        range(1_200, 1_500),  # between good ones
        [*range(0, 1_000, 7), 2_499],  # many, then one
        range(0, 2_500, 200),
    ],
)
async def test_rows_are_written_around_the_refused_ones_wherever_these_are(
    postgres_url: str, context: Context, bad: Sequence[int]
) -> None:
    execute(postgres_url, 'CREATE TABLE hits ("offset" bigint, n bigint CHECK (n > 0))')
    writer = await opened(postgres_url, context)
    values = np.ones(2_500, np.int64)
    values[list(bad)] = 0
    result = await flush(writer, rows(0, 2_499, n=values))
    assert [row for row, _ in refused(result)] == list(bad)
    assert query(postgres_url) == np.flatnonzero(values).tolist()


async def test_a_set_up_that_refuses_every_row_ends_the_worker_and_writes_nothing(
    postgres_url: str, context: Context
) -> None:
    execute(
        postgres_url,
        'CREATE TABLE hits ("offset" bigint)',
        "CREATE FUNCTION closed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE EXCEPTION 'closed'; END $$",
        "CREATE TRIGGER t BEFORE INSERT ON hits FOR EACH ROW EXECUTE FUNCTION closed()",
    )
    writer = await opened(postgres_url, context)
    assert [row for row, _ in refused(await flush(writer, rows(0, 0)))] == [0], "one is a letter"
    with pytest.raises(StrategyError, match=r"refused for one reason: .* closed"):
        await flush(writer, rows(1, 500))
    assert query(postgres_url, "SELECT last_offset FROM kmr_ranges") == [0]


async def test_rows_of_one_by_one_are_written_as_copy_writes_them(
    postgres_url: str, context: Context
) -> None:
    """Each value twice: by COPY, and beside a row that is refused."""
    execute(
        postgres_url,
        'CREATE TABLE hits ("offset" bigint CHECK ("offset" <> 9), t text, b bytea, d numeric(10, 2), '
        "at timestamptz, day date, f real, j jsonb, i interval, a int[])",
    )
    values: dict[str, Any] = {
        "t": [r"\N", "", "a'b\"c\\", None],
        "b": [b"\x00\xff", b"", b"\\x41", None],
        "d": [1.5, -0.01, 0, None],
        "at": pa.array([0, 2**63 - 1, -210_866_803_200_000_000, None]).cast(pa.timestamp("us")),
        "day": pa.array([0, -2_440_588, 2_145_042_905, None], pa.int32()).cast(pa.date32()),
        "f": [float("nan"), float("inf"), -0.0, None],
        "j": [{"a": "\\"}, {"a": "'"}, {"a": "😀"}, None],
        "i": pa.array([0, -1_500_000, 2**40, None]).cast(pa.duration("us")),
        "a": ["{1,2}", "{}", "{NULL}", None],
    }
    writer = await opened(postgres_url, context)
    assert refused(await flush(writer, rows(0, 3, **values))) == []
    table = pa.table({name: pa.array(each) for name, each in values.items()})
    table = pa.concat_tables([table, table.slice(3)])
    result = await flush(writer, rows(5, 9, **{n: table.column(n) for n in table.column_names}))
    assert [row for row, _ in refused(result)] == [9]
    columns = "t, b, d, at::text, day::text, f::text, j, i, a"
    first = query(postgres_url, f'SELECT {columns} FROM hits WHERE "offset" < 4 ORDER BY "offset"')
    again = query(postgres_url, f'SELECT {columns} FROM hits WHERE "offset" > 4 ORDER BY "offset"')
    assert first == again
    assert first[1][3].startswith("294247-01-10")
    assert first[2][3].startswith("4714-11-24")


async def test_bytes_and_far_times_are_text_for_copy() -> None:
    table = pa.table({"at": pa.array([2**63 - 1]).cast(pa.timestamp("us", "UTC")), "b": [b"\1"]})
    assert copy_columns(table).to_pylist() == [
        {"at": "294247-01-10 04:00:54.775807+00", "b": "\\x01"}
    ]


async def test_a_row_that_is_put_off_each_time_is_refused_and_its_neighbours_are_written(
    postgres_url: str, context: Context
) -> None:
    execute(
        postgres_url,
        'CREATE TABLE hits ("offset" bigint, n int)',
        "CREATE FUNCTION collides() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.n = 3 THEN "
        "RAISE EXCEPTION 'could not serialize access' USING ERRCODE = '40001'; END IF; RETURN NEW; END $$",
        "CREATE TRIGGER t BEFORE INSERT ON hits FOR EACH ROW EXECUTE FUNCTION collides()",
    )
    writer = await opened(postgres_url, context)
    for _ in range(6):
        assert isinstance(await flush(writer, rows(0, 9, n=range(10))), Retry)
    [(row, reason)] = refused(await flush(writer, rows(0, 9, n=range(10))))
    assert row == 3
    assert "could not serialize access (each of 6 attempts; other rows are written)" in reason
    assert query(postgres_url) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    for _ in range(12):  # none of these is written: the server may be the reason
        assert isinstance(await flush(writer, rows(10, 12, n=[3, 3, 3])), Retry)


async def test_a_trigger_that_asserts_refuses_its_row(postgres_url: str, context: Context) -> None:
    execute(
        postgres_url,
        'CREATE TABLE hits ("offset" bigint, n int)',
        "CREATE FUNCTION asserts() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "ASSERT NEW.n <> 3, 'n is odd'; RETURN NEW; END $$",
        "CREATE TRIGGER t BEFORE INSERT ON hits FOR EACH ROW EXECUTE FUNCTION asserts()",
    )
    writer = await opened(postgres_url, context)
    [(row, reason)] = refused(await flush(writer, rows(0, 9, n=range(10))))
    assert row == 3
    assert "n is odd" in reason
    assert query(postgres_url) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
