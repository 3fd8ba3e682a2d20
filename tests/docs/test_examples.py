"""Each project in `examples/` runs, with its own sample records where it has some."""

from __future__ import annotations

import importlib
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import fastavro
import msgspec
import pytest
import urllib3
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from kmr.broker.client import BatchProducer
from kmr.cli.validate import validate
from kmr.settings import Settings
from kmr.testing import StrategyRun, run_strategy
from kmr.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kmr.broker import Broker

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Enter the folder of an example, and import a module of it."""
    before = set(sys.modules)

    def enter(folder: str, module: str) -> Any:
        monkeypatch.chdir(EXAMPLES / folder)
        monkeypatch.syspath_prepend(EXAMPLES / folder)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        return importlib.import_module(module)

    yield enter
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(EXAMPLES)):
            del sys.modules[name]


def lines_of(records: str) -> list[bytes]:
    return Path(records).read_bytes().splitlines()


def run_file(module: Any, records: str) -> StrategyRun:
    return run_strategy(module.strategy, lines_of(records))


def reasons(run: StrategyRun) -> dict[int, str]:
    return {failure["offset"]: failure["reason"] for failure in run.failures}


def test_every_project_is_in_the_list_and_is_tested() -> None:
    folders = {path.parent.name for path in EXAMPLES.glob("*/README.md")}
    listed = (EXAMPLES / "README.md").read_text()
    here = Path(__file__).read_text()
    for folder in folders:
        assert f"({folder}/README.md)" in listed
        assert f'example("{folder}"' in here


def test_lines_of_an_access_log_become_rows_and_letters(example: Any) -> None:
    run = run_file(example("access-logs", "access_logs"), "access.log")
    assert [(row["path"], row["status"], row["bytes"]) for row in run.rows] == [
        ("/cart", 200, 512),
        ("/cart", 503, 0),
        ("/", 200, 2048),
    ]
    assert run.rows[0]["time"] == datetime(2026, 11, 1, 10, tzinfo=UTC)
    assert reasons(run) == {3: "ValueError: not a line in the common log format"}
    assert [offset for _, offset in run.filtered] == [1]


async def test_orders_are_enriched_by_a_service_that_drops_connections(
    example: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aiohttp import web

    service, module = example("http-enrichment", "service"), example("http-enrichment", "enrich")
    runner = web.AppRunner(service.app())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0]
        monkeypatch.setenv("CUSTOMERS_URL", f"http://{host}:{port}")
        run = await anyio.to_thread.run_sync(run_file, module, "orders.jsonl")
    finally:
        await runner.cleanup()
    assert [(row["id"], row["country"]) for row in run.rows] == [(1, "GB"), (2, "US"), (4, "GB")]
    assert list(reasons(run)) == [2]
    assert "404" in reasons(run)[2]


async def test_avro_values_of_two_schemas_are_read(
    example: Any, broker: Broker, registry_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = registry_url
    assert url is not None
    monkeypatch.setenv("REGISTRY_URL", url)
    fields = [{"name": "sensor", "type": "string"}, {"name": "celsius", "type": "double"}]
    room = {"name": "room", "type": ["null", "string"], "default": None}
    values: list[bytes] = []

    def encode(columns: list[dict[str, Any]], row: dict[str, Any]) -> None:
        import io
        import json

        schema = {"type": "record", "name": "Reading", "fields": columns}
        answer = urllib3.request(
            "POST", f"{url}/subjects/readings-value/versions", json={"schema": json.dumps(schema)}
        )
        buffer = io.BytesIO(b"\0" + answer.json()["id"].to_bytes(4))
        buffer.seek(0, io.SEEK_END)
        fastavro.schemaless_writer(buffer, schema, row)
        values.append(buffer.getvalue())

    def write_and_read() -> StrategyRun:
        encode(fields, {"sensor": "a", "celsius": 100.0})
        encode([*fields, room], {"sensor": "b", "celsius": 0.0, "room": "hall"})
        values.append(values[-1][:-2])
        return run_strategy(example("avro-registry", "readings").strategy, values)

    run = await anyio.to_thread.run_sync(write_and_read)
    assert [(row["sensor"], row["room"], row["fahrenheit"]) for row in run.rows] == [
        ("a", None, 212.0),
        ("b", "hall", 32.0),
    ]
    assert list(reasons(run)) == [2]


def test_the_strategy_for_both_engines_maps_trips_and_may_run_on_spark(
    example: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_file(example("spark-parquet", "trips"), "trips.jsonl")
    assert [(row["city"], row["km_per_hour"]) for row in run.rows] == [
        ("Oslo", 20.0),
        ("Rome", 30.0),
    ]
    assert reasons(run) == {3: "field km: expected float | null, got str: 'far'"}
    validate("trips", engine="spark")
    assert "exactly once" in capsys.readouterr().out


def test_a_reducer_of_its_own_makes_visits_of_clicks(example: Any) -> None:
    run = run_file(example("own-reducer", "sessions"), "clicks.jsonl")
    assert [(row["user"], row["start"], row["end"], row["pages"]) for row in run.rows] == [
        ("ada", 100, 160, 2),
        ("ada", 5000, 5000, 1),
        ("bob", 110, 110, 1),
    ]


def test_records_are_archived_as_they_are(example: Any) -> None:
    """`tests/framework/history/test_backfill_archive.py` writes the files, and reads them again."""
    run = run_file(example("archive", "archive"), "payments.jsonl")
    assert [row["value"] for row in run.rows] == lines_of("payments.jsonl")
    assert [row["offset"] for row in run.rows] == list(range(len(run.rows)))


async def test_payments_are_booked_in_transactions(example: Any, broker: Broker) -> None:
    module = example("kafka-to-kafka", "payments")
    values = lines_of("payments.jsonl")
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    await admin.start()
    await admin.create_topics([NewTopic(name, 1, 1) for name in ("bookings", "payments-dead")])
    await admin.close()
    async with BatchProducer(broker.bootstrap_servers, "payments") as producer:
        await producer.send(list(values))
    settings = Settings(
        topics=("payments",), group="bank", bootstrap_servers=broker.bootstrap_servers
    )
    worker = Worker(module.strategy, settings)
    consumer = AIOKafkaConsumer(
        "bookings",
        bootstrap_servers=broker.bootstrap_servers,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    await consumer.start()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.run)
            found = [(await consumer.getone()).value for _ in range(4)]
            worker.shutdown("the test is over")
    finally:
        await consumer.stop()
    assert [msgspec.json.decode(value) for value in found if value is not None] == [
        {"id": "p1", "account": "ada", "cents": -1250},
        {"id": "p1", "account": "clearing", "cents": 1250},
        {"id": "p3", "account": "ada", "cents": -99},
        {"id": "p3", "account": "clearing", "cents": 99},
    ]
