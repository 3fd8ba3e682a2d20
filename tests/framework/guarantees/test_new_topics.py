"""A topic that is created anew: its records get offsets that a sink has seen before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import clickhouse_connect
import psycopg
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from aiokafka.admin import AIOKafkaAdminClient

from kmr import Strategy, map_record
from kmr.broker.client import BatchProducer
from kmr.record import TopicPartition
from kmr.settings import Settings
from kmr.sinks import ClickHouseWriter, ParquetWriter, PostgresWriter
from kmr.testing import Journal, MemoryWriter
from tests.framework.workers import until_settled

from .working import working

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from kmr.broker import Broker
    from kmr.record import Record
    from kmr.sinks import RangeWriter
    from tests.framework.conftest import CreateTopic

COLUMNS: dict[str, pa.DataType] = {"value": pa.string(), "offset": pa.int64()}
ROWS = pa.schema(COLUMNS)
KINDS = ["clickhouse", "parquet", "postgres"]


@map_record(schema=ROWS)
def place(record: Record) -> dict[str, object]:
    return {"value": (record.value or b"").decode(), "offset": record.offset}


@map_record
def place_in_both(record: Record) -> list[tuple[dict[str, object], str]]:
    row: dict[str, object] = {"value": (record.value or b"").decode(), "offset": record.offset}
    return [(row, "files"), (row, "table")]


@map_record(schema=ROWS)
def fail(record: Record) -> dict[str, object]:
    raise ValueError("no")


class Place:
    """A sink, and the rows that it has."""

    def __init__(self, kind: str, request: pytest.FixtureRequest, directory: Path) -> None:
        self._kind, self._directory = kind, directory
        name = "clickhouse_url" if kind == "clickhouse" else "postgres_url"
        self._url = "" if kind == "parquet" else request.getfixturevalue(name)
        self._table = f"anew{abs(hash(request.node.nodeid))}"

    def writer(self, **options: Any) -> RangeWriter:
        limits: dict[str, Any] = {"max_rows": 10_000, "max_age": 0.2, **options}
        if self._kind == "parquet":
            return ParquetWriter(self._directory, **limits)
        made = ClickHouseWriter if self._kind == "clickhouse" else PostgresWriter
        return made(self._table, url=self._url, create=True, **limits)

    def rows(self) -> int:
        if self._kind == "parquet":
            return ds.dataset(self._directory, format="parquet").count_rows()
        count = f"SELECT count(*) FROM {self._table}"
        if self._kind == "postgres":
            with psycopg.connect(self._url) as connection:
                return next(int(n) for (n,) in connection.execute(count.encode()))
        with clickhouse_connect.get_client(dsn=self._url, autogenerate_session_id=False) as client:
            return int(client.query(count).result_rows[0][0])


@pytest.fixture(params=KINDS)
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(request.param, request, tmp_path / "rows")


def settings_of(broker: Broker) -> Settings:
    return Settings(topics=("t",), group="g", bootstrap_servers=broker.bootstrap_servers)


@pytest.fixture
def process_anew(
    broker: Broker, create_topic: CreateTopic
) -> Callable[[Callable[[], Strategy]], Awaitable[None]]:
    """Processes a topic, and one of its name that is created after it was deleted."""

    async def process(strategy: Callable[[], Strategy]) -> None:
        settings = settings_of(broker)
        for life in ("first", "second"):
            await create_topic("t")
            async with working(strategy(), settings) as worker:
                async with BatchProducer(broker.bootstrap_servers, "t") as producer:
                    await producer.send([f"{life} {n}".encode() for n in range(50)])
                await until_settled(worker, TopicPartition("t", 0), 50)
            admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
            await admin.start()
            await admin.delete_topics(["t"])
            await admin.close()

    return process


async def test_at_least_once_writes_the_records_of_a_topic_that_was_created_anew(
    process_anew: Callable[[Callable[[], Strategy]], Awaitable[None]], sink: Place
) -> None:
    with anyio.fail_after(60):
        await process_anew(
            lambda: Strategy(map=place, reduce=[sink.writer(delivery="at-least-once")])
        )
    assert sink.rows() == 100


async def test_at_most_once_writes_the_records_of_a_topic_that_was_created_anew(
    process_anew: Callable[[Callable[[], Strategy]], Awaitable[None]], sink: Place
) -> None:
    with anyio.fail_after(60):
        await process_anew(
            lambda: Strategy(map=place, reduce=[sink.writer()], delivery="at-most-once")
        )
    assert sink.rows() == 100


async def test_a_branch_beside_one_that_cannot_be_exactly_once_writes_them_too(
    process_anew: Callable[[Callable[[], Strategy]], Awaitable[None]],
    clickhouse_url: str,
    tmp_path: Path,
) -> None:
    with clickhouse_connect.get_client(dsn=clickhouse_url, autogenerate_session_id=False) as client:
        client.command("CREATE TABLE unlike (value String, offset Int64) ENGINE = Memory")

    def both() -> Strategy:
        return Strategy(
            map=place_in_both,
            reduce={
                "files": ParquetWriter(
                    tmp_path / "rows", schema=ROWS, max_rows=10_000, max_age=0.2
                ),
                "table": ClickHouseWriter(
                    "unlike", url=clickhouse_url, max_rows=10_000, max_age=0.2
                ),
            },
        )

    with anyio.fail_after(60):
        await process_anew(both)
    assert ds.dataset(tmp_path / "rows", format="parquet").count_rows() == 100


async def test_dead_letters_of_a_topic_that_was_created_anew_are_written(
    process_anew: Callable[[Callable[[], Strategy]], Awaitable[None]], sink: Place
) -> None:
    rows = Journal()
    with anyio.fail_after(60):
        await process_anew(
            lambda: Strategy(
                map=fail, reduce=[MemoryWriter(rows)], reduce_err=sink.writer(), err_limit=None
            )
        )
    assert sink.rows() == 100
