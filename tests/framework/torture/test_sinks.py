"""Every type of column into every sink: what arrives is what was sent, or the record failed and says why."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import clickhouse_connect
import psycopg
import pyarrow as pa
import pytest

from kmr.errors import KmrError
from kmr.sinks import ClickHouseWriter, ParquetWriter, PostgresWriter, StreamWriter

from .arrow_values import all_cases
from .driver import LOG, Outcome, drive, judge
from .plain_values import Clock, Moment, Span, is_json_of, is_same, plain
from .readers import FIELD, clickhouse_rows, is_same_in, json_rows, parquet_rows, postgres_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .arrow_values import Case

UNIONS = {"sparse_union", "dense_union"}
NO_COLUMN = {
    "stream": set[str](),
    "parquet": set[str](),
    "clickhouse": UNIONS | {"null", "list<null>", "struct<>", "fixed[0]", "struct odd names"},
    "postgres": UNIONS | {"null"},
}
"""Types that a sink has no column for: the worker ends at once, with the column's name and its type."""

WITHOUT_VALUES = {"list<null>", "struct<>"}
"""Parquet has no column for them before a value has a type: rows without it are counted as left out."""


def table_of(case: Case) -> pa.Table:
    return pa.table([pa.array(range(len(case.array))), case.array], names=["id", FIELD])


class Sink:
    """A sink for a column: writes it, and reads it with the sink's own client."""

    name = ""

    def writer(self, table: pa.Table) -> Any:
        raise NotImplementedError

    def rows(self) -> list[tuple[int, Any]]:
        raise NotImplementedError

    def is_same(self, expected: Any, got: Any) -> bool:
        raise NotImplementedError


class Lines(Sink):
    name = "stream"

    def __init__(self, directory: Path) -> None:
        self.path = directory / "rows"

    def writer(self, table: pa.Table) -> StreamWriter:
        self.path.unlink(missing_ok=True)
        return StreamWriter(self.path, max_age=0.02)

    def rows(self) -> list[tuple[int, Any]]:
        return json_rows(self.path.read_bytes().split(b"\n")[:-1])

    def is_same(self, expected: Any, got: Any) -> bool:
        return is_json_of(expected, got)


class Files(Sink):
    name = "parquet"

    def __init__(self, directory: Path) -> None:
        self.directory, self.count = directory, 0

    def writer(self, table: pa.Table) -> ParquetWriter:
        self.count += 1
        return ParquetWriter(self.directory / str(self.count), max_age=0.02)

    def rows(self) -> list[tuple[int, Any]]:
        return parquet_rows(self.directory / str(self.count))

    def is_same(self, expected: Any, got: Any) -> bool:
        return is_same(expected, got)


class ClickHouse(Sink):
    name = "clickhouse"

    def __init__(self, url: str, columns: str | None = None) -> None:
        self.url, self.columns, self.kind = url, columns, ""
        self.client = clickhouse_connect.get_client(dsn=url, autogenerate_session_id=False)

    def writer(self, table: pa.Table) -> ClickHouseWriter:
        self.client.command("DROP TABLE IF EXISTS torture")
        if self.columns is not None:
            self.client.command(
                f"CREATE TABLE torture (id Int64, `{FIELD}` {self.columns}) ENGINE = MergeTree ORDER BY id "
                "SETTINGS non_replicated_deduplication_window = 10000"
            )
        return ClickHouseWriter(
            "torture",
            url=self.url,
            create=table.schema if self.columns is None else False,
            max_age=0.02,
        )

    def rows(self) -> list[tuple[int, Any]]:
        self.kind, found = clickhouse_rows(self.client, "torture")
        return found

    def is_same(self, expected: Any, got: Any) -> bool:
        return is_same_in(expected, got, self.kind)


class Postgres(Sink):
    name = "postgres"

    def __init__(self, url: str, columns: str | None = None) -> None:
        self.url, self.columns, self.kind = url, columns, ""
        self.connection = psycopg.connect(url, autocommit=True)

    def writer(self, table: pa.Table) -> PostgresWriter:
        self.connection.execute("DROP TABLE IF EXISTS torture, kmr_ranges")
        if self.columns is not None:
            self.connection.execute(
                f'CREATE TABLE torture (id bigint, "{FIELD}" {self.columns})'.encode()
            )
        return PostgresWriter(
            "torture",
            url=self.url,
            create=table.schema if self.columns is None else False,
            max_age=0.02,
        )

    def rows(self) -> list[tuple[int, Any]]:
        self.kind, found = postgres_rows(self.connection, "torture")
        return found

    def is_same(self, expected: Any, got: Any) -> bool:
        return is_same_in(expected, got, self.kind)


def try_case(sink: Sink, case: Case) -> list[str]:
    """Write the column, and return what must not have happened."""
    table, expected = table_of(case), plain(case.array)
    outcome: Outcome = anyio.run(drive, sink.writer(table), table)
    if case.name in NO_COLUMN[sink.name]:
        return [] if isinstance(outcome.ended, KmrError) else [f"{case}: there is a column for it"]
    found = sink.rows() if outcome.ended is None and not outcome.hangs else []
    wrong = [
        f"{case}: {kind} {what}"
        for kind, what in judge(len(expected), Counter(n for n, _ in found), outcome)
    ]
    if sink.name == "parquet" and case.name in WITHOUT_VALUES:
        expected = [None] * len(expected)
    is_cut = any("cut" in event["event"] and FIELD in str(event) for event in LOG)
    for n, got in found:
        if not (sink.is_same(expected[n], got) or (is_cut and sink.is_same(cut(expected[n]), got))):
            wrong.append(f"{case}: row {n} is {_short(got)}, not {_short(expected[n])}")
    for n, reasons in outcome.refused.items():
        if FIELD not in reasons[0]:
            wrong.append(f"{case}: row {n} was refused without the field: {reasons[0]}")
    return wrong


def cut(value: Any) -> Any:
    """A time with the microseconds that PostgreSQL has, which it says in the log."""
    if isinstance(value, Moment | Clock | Span):
        return replace(value, ns=value.ns // 1000 * 1000)
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 200 else f"{text[:200]}..."


@pytest.fixture
def lines(tmp_path: Path) -> Sink:
    return Lines(tmp_path)


@pytest.fixture
def files(tmp_path: Path) -> Sink:
    return Files(tmp_path)


@pytest.fixture
def clickhouse(clickhouse_url: str) -> Iterator[Sink]:
    sink = ClickHouse(clickhouse_url)
    yield sink
    sink.client.close()


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[Sink]:
    sink = Postgres(postgres_url)
    yield sink
    sink.connection.close()


@pytest.mark.parametrize("sink", ["lines", "files", "clickhouse", "postgres"])
def test_a_column_of_any_type_arrives_as_it_is_or_says_why_not(
    sink: str, request: pytest.FixtureRequest
) -> None:
    tried: Sink = request.getfixturevalue(sink)
    wrong = [each for case in all_cases() for each in try_case(tried, case)]
    assert not wrong, "\n".join(wrong)
