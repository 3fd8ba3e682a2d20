"""A sink refuses rows that are made of many records: each row is there or is a letter, once."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import anyio
import clickhouse_connect
import psycopg
import pyarrow as pa
import pytest

from kmr import Aggregate, Strategy, Window, map_record
from kmr.delivery.row_letters import ROW
from kmr.testing import Journal, MemoryWriter
from tests.framework.workers import P0, until_settled

from .dying import Dying, DyingClickHouseWriter, DyingPostgresWriter, run_until_all_died
from .working import quick_settings, working

if TYPE_CHECKING:
    from kmr.broker import Broker
    from kmr.record import Record
    from kmr.sinks import RangeWriter
    from tests.framework.conftest import Produce

    from .dying import Moment

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
RECORDS = [b"1 a 1", b"2 b 700", b"3 c 3", b"4 b 700", b"5 d 2000", b"6 e 13", b"12 a 5", b"25 a 0"]
WRITTEN = [("a", 1), ("a", 5), ("c", 3)]
REFUSED = [("b", 1400), ("d", 2000), ("e", 13)]


@map_record
def parse(record: Record) -> dict[str, Any]:
    assert record.value is not None
    second, path, n = record.value.decode().split()
    return {"ts": BEGIN + timedelta(seconds=int(second)), "path": path, "n": int(n)}


class Largest(Window.Function):
    """Fails for the row of one group."""

    state = result = pa.int64()

    def init(self) -> int:
        return 0

    def add(self, state: int, values: pa.Array[Any]) -> int:
        given: list[int] = values.to_pylist()  # type: ignore[assignment]
        return max(state, *given)

    def merge(self, state: int, other: int) -> int:
        return max(state, other)

    def finish(self, state: int) -> int:
        if state == 13:
            raise ValueError("unlucky")
        return state


class DyingErrors(MemoryWriter):
    async def flush(self, *given: Any) -> Any:
        flush = super().flush
        return await Dying.around(lambda: flush(*given))


class Place:
    """A table that refuses totals above 1,000."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind, self.url = kind, url
        if kind == "postgres":
            self.run(
                "CREATE TABLE totals (window_start timestamptz, window_end timestamptz, path text, "
                "most bigint, total bigint CHECK (total <= 1000 AND total <> 13))"
            )
        else:
            self.run("DROP TABLE IF EXISTS totals")
            self.run(
                "CREATE TABLE totals (window_start Nullable(DateTime64(6)), "
                "window_end Nullable(DateTime64(6)), path String, most Nullable(Int64), total Int64, "
                "CONSTRAINT small CHECK total <= 1000 AND total <> 13) ENGINE = MergeTree ORDER BY path "
                "SETTINGS non_replicated_deduplication_window = 10000"
            )

    def run(self, sql: str) -> None:
        if self.kind == "postgres":
            with psycopg.connect(self.url) as connection:
                connection.execute(sql)
        else:
            with clickhouse_connect.get_client(dsn=self.url) as client:
                client.command(sql)

    def writer(self) -> RangeWriter:
        made: Any = DyingPostgresWriter if self.kind == "postgres" else DyingClickHouseWriter
        writer: RangeWriter = made("totals", url=self.url, max_age=0.05)
        return writer

    def rows(self) -> list[tuple[Any, ...]]:
        sql = "SELECT path, total FROM totals ORDER BY path, total"
        if self.kind == "postgres":
            with psycopg.connect(self.url) as connection:
                return connection.execute(sql).fetchall()
        with clickhouse_connect.get_client(dsn=self.url) as client:
            return [tuple(row) for row in client.query(sql).result_rows]


@pytest.fixture(params=["postgres", "clickhouse"])
def place(request: pytest.FixtureRequest) -> Place:
    return Place(request.param, request.getfixturevalue(f"{request.param}_url"))


def window() -> Window:
    columns: Any = {"total": ("n", "sum"), "most": ("n", Largest())}
    return Window("10s", time="ts", by=["path"], late="drop", keyed=True, columns=columns)


def letters(errors: Journal) -> dict[tuple[Any, ...], list[tuple[str, int]]]:
    """The rows of letters, by what names them: a letter that was written twice has one name."""
    found: dict[tuple[Any, ...], list[tuple[str, int]]] = {}
    for row in errors.rows():
        headers = {pair["key"]: pair["value"] for pair in row["headers"]}
        name = row["topic"], row["partition"], row["offset"], headers[ROW]
        value = json.loads(row["value"])
        found.setdefault(name, []).append((value["path"], value["total"]))
    return found


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("at", ["the sink", "the letter"])
async def test_each_row_of_a_window_is_written_or_a_letter_once_when_a_worker_dies(
    broker: Broker, produce: Produce, place: Place, at: str, moment: Moment
) -> None:
    await produce("t", RECORDS)
    errors, settings = Journal(), quick_settings(broker)
    # Writes are counted together: that of the sink is the first one, that of the letters the second one.
    Dying.plan = [(0 if at == "the sink" else 1, moment)]
    reduce_err = DyingErrors(errors, max_age=0.05)
    strategy = Strategy(parse, [window(), place.writer()], reduce_err)
    with anyio.fail_after(60):
        await run_until_all_died(strategy, settings)
        async with working(strategy, settings) as heir:
            await until_settled(heir, P0, 7)
    assert place.rows() == WRITTEN
    found = letters(errors)
    assert sorted(rows[0] for rows in found.values()) == REFUSED
    assert all(len(set(rows)) == 1 for rows in found.values())


async def test_offsets_stay_until_the_letters_of_a_window_are_accepted(
    broker: Broker, produce: Produce, place: Place
) -> None:
    await produce("t", RECORDS)
    Dying.plan = []
    errors = Journal(hold=anyio.Event())
    strategy = Strategy(parse, [window(), place.writer()], MemoryWriter(errors, max_age=0.05))
    with anyio.fail_after(60):
        async with working(strategy, quick_settings(broker)) as worker:
            await errors.until(lambda j: j.attempts == 1)
            await anyio.sleep(0.2)
            ledger = worker.pipeline.ledgers.get(P0)
            assert ledger is not None
            assert ledger.watermark == 0
            assert errors.hold is not None
            errors.hold.set()
            await until_settled(worker, P0, 7)
    assert place.rows() == WRITTEN


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_each_row_of_an_aggregate_is_written_or_a_letter_once_when_a_worker_dies(
    broker: Broker, produce: Produce, place: Place, moment: Moment
) -> None:
    await produce("t", RECORDS)
    errors, settings = Journal(), quick_settings(broker)
    Dying.plan = [(1, moment)]  # around the letters
    aggregate = Aggregate(["path"], {"total": ("n", "sum")}, max_rows=8, max_age=60.0)
    strategy = Strategy(parse, [aggregate, place.writer()], DyingErrors(errors, max_age=0.05))
    with anyio.fail_after(60):
        await run_until_all_died(strategy, settings)
        async with working(strategy, settings) as heir:
            await until_settled(heir, P0, 8)
    assert place.rows() == [("a", 6), ("c", 3)]
    assert sorted(rows[0] for rows in letters(errors).values()) == REFUSED
