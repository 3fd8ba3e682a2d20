"""The engine in the test's process: reducers, failures, limits, metrics."""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import anyio
import msgspec
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from google.protobuf.wrappers_pb2 import StringValue

from kmr import Strategy, map_batch
from kmr.errors import (
    DeadlineExceeded,
    RecordFailed,
    SettingsError,
    StrategyError,
)
from kmr.loading import load_strategy
from kmr.settings import HttpSettings, Settings
from kmr.sinks import KafkaWriter
from kmr.sinks.clickhouse.client import ClickHouseAddress, connect
from kmr.spark.engine.engine import SparkEngine
from kmr.spark.engine.engine_settings import EngineSettings
from kmr.testing import Journal, MemoryWriter
from kmr.worker import Worker
from tests.framework.sinks.histories import History

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.framework.spark.conftest import Kafka

pytestmark = pytest.mark.slow

PATIENCE = 300.0  # seconds, for a loaded machine
WELL_BEFORE_FOR_EVER = 120.0  # seconds; the deadline is 1 s
STRATEGIES = """
import contextlib
import os
import pathlib
import threading
import anyio
import msgspec
import pyarrow as pa
from google.protobuf.wrappers_pb2 import StringValue
from kmr import Aggregate, Batcher, Collect, ErrorLimit, Strategy
from kmr.types import Reducer, Retry
from kmr import Avro, Debezium, Json, Lookup, Protobuf, Record, Retries, TopicMap, map_batch, map_record
from kmr.reducers.collect import one_table
from kmr.reducers.sink import Capabilities, Refusal, RowsRefused, Sink
from kmr.sinks import ClickHouseWriter, StreamWriter
from kmr.sinks.parquet.writer import ParquetWriter
from kmr.sinks.spark.writer import SparkWriter

HERE = pathlib.Path("DIRECTORY")

@map_record
def parse(record):
    if record.value == b"poison":
        raise ValueError("poisoned")
    if record.value == b"skip":
        return None
    return {"partition": record.partition, "offset": record.offset, "value": record.value.decode()}

@map_record
def without_place(record):
    return {"value": record.value.decode()}

@contextlib.asynccontextmanager
async def known():
    with (HERE / "opened").open("a") as file:
        file.write(f"{os.getpid()} ")
    yield set()

@map_record(
    concurrency=4, retry=Retries(TimeoutError, attempts=2, backoff=0.01), timeout=0.2, rate_limit=500
)
async def twice(record, resources):
    if record.value == b"hang":
        await anyio.sleep_forever()
    if record.offset not in resources:
        resources.add(record.offset)
        raise TimeoutError("the first attempt")
    row = {"partition": record.partition, "offset": record.offset}
    return [row, row]

@map_batch
def wrong(batch):
    return "nothing that is a row"

class Picky(Reducer):
    '''Refuses a row, and asks to be called again once; writes what it was called with.'''
    calls = 0
    def reset(self): self.added = []
    def add(self, rows): self.added.append(rows)
    def flush(self):
        self.calls += 1
        if self.calls == 1:
            raise Retry("not yet", after=0.0)
        refused = [Refusal(rows.cut(1)[0], "too early") for rows in self.added if len(rows) > 1]
        sizes = " ".join(str(len(rows)) for rows in self.added)
        with (HERE / "picky").open("a") as file:
            file.write(sizes + "\\n")
        if refused:
            raise RowsRefused(refused[:1])

class Witness(Picky, Sink):
    '''Says whether the rows may have been written before, and hands them on.'''
    capabilities = Capabilities(forwards=True)
    def __init__(self, name):
        super().__init__()
        self.name = name
    def flush(self, write=None):
        with (HERE / f"witness-{self.name}").open("a") as file:
            file.write(f"{write.repeated} ")
        return one_table(self.added)

class Stuck(Picky):
    '''Never succeeds.'''
    def flush(self):
        (HERE / "stuck").touch()
        raise Retry("never", after=0.1)

released = threading.Event()

def hang():
    (HERE / "stuck").touch()
    released.wait()

@map_batch
def hung(batch):
    hang()

class HungFlush(Picky):
    def flush(self):
        hang()

class HungLoop(Picky):
    async def flush(self):
        hang()

class HungClose(Picky):
    def flush(self):
        pass
    async def close(self):
        (HERE / "stuck").touch()
        await anyio.to_thread.run_sync(released.wait)

class NeverOpen(Picky):
    async def open(self, context):
        (HERE / "stuck").touch()
        await anyio.sleep_forever()

def count_values(frame):
    return frame.groupBy("value").count()

class Hit(msgspec.Struct):
    value: str
    offset: int = -1

@map_record
def typed(hit: Hit, record: Record) -> Hit:
    return Hit(hit.value, record.offset)

@map_record
def of_message(message, record: Record) -> Hit:
    return Hit(message["value"], record.offset)

def files_writer(**options):
    if options:
        return SparkWriter(path=str(HERE / "out"), **options)
    return ParquetWriter(HERE / "out")

def aggregate():
    return Aggregate(["value"], {"n": ("*", "count"), "last": ("offset", "max")})

failed = StreamWriter(HERE / "failed.json")
files = Strategy(parse, [files_writer()], failed)
doubled = Strategy(twice, [Batcher(max_rows=3), files_writer()], failed, resources=known)
counted = Strategy(parse, [aggregate(), files_writer()], failed)
clickhouse = Strategy(parse, [aggregate(), ClickHouseWriter("TABLE", url="URL")], failed)
witness = Strategy(parse, [Witness("task"), aggregate(), Witness("driver")], Witness("error"))
located = Strategy(without_place, [ClickHouseWriter("TABLE", url="URL")], failed)
coordinates = pa.schema({"partition": pa.int32(), "offset": pa.int64()})
grows = Strategy(
    parse, [ClickHouseWriter("TABLE", url="URL", create=coordinates, evolve="add")], failed
)
table = Strategy(parse, [SparkWriter(table="TABLE", master="local[7]")], failed)
transformed = Strategy(parse, [files_writer(transform=count_values)], failed)
stuck = Strategy(parse, [aggregate(), Stuck(max_rows=1)], failed)
hung_map = Strategy(hung, [StreamWriter("stderr")], failed)
hung_flush = Strategy(parse, [aggregate(), HungFlush()], failed)
hung_loop = Strategy(parse, [aggregate(), HungLoop()], failed)
hung_close = Strategy(parse, [aggregate(), HungClose()], failed)
never_open = Strategy(parse, [aggregate(), NeverOpen()], failed)
formats = Strategy(
    reduce=[files_writer()],
    reduce_err=failed,
    by_topic={
        "TOPIC": TopicMap(typed, value=Json(Hit)),
        "TOPIC-avro": TopicMap(typed, value=Avro(Hit)),
        "TOPIC-protobuf": TopicMap(of_message, value=Protobuf(StringValue)),
    },
)
picky = Strategy(parse, [Picky(max_rows=4)], failed)

def to_both(record):
    row = parse(record)
    return None if row is None else [(row, "files"), ({"n": record.offset}, "numbers")]

def in_driver(frame):
    return frame

NUMBERS = pa.schema({"n": pa.int64()})
branched = Strategy(
    to_both,
    {"files": files_writer(), "numbers": [Batcher(), ClickHouseWriter("TABLE", url="URL", create=NUMBERS)]},
    failed,
)
branched_by_driver = Strategy(
    to_both,
    {
        "files": files_writer(transform=in_driver),
        "numbers": ClickHouseWriter("TABLE", url="URL", create=NUMBERS),
    },
    failed,
)
limited = Strategy(parse, [files_writer()], failed, ErrorLimit(2))
no_table = Strategy(parse, [ClickHouseWriter("nowhere", url="URL")], failed)
broken = Strategy(wrong, [files_writer()], failed)


class Customer(msgspec.Struct):
    id: int
    name: str


class Order(msgspec.Struct):
    number: int
    customer: int


def named(order: Order, record: Record, customers):
    return {"number": order.number, "name": customers[order.customer].name}


@map_batch
def joined(orders, customers):
    rows = customers.join(orders, on="customer", columns=["name"])
    return rows.select(["number", "name", "kmr_offset"])


class Followed(msgspec.Struct):
    id: int
    name: str


followed = Strategy(
    value=Debezium(Json(Followed)),
    reduce=ClickHouseWriter("TABLE", url="URL", key=["id"], changes=True, create=True),
    reduce_err=failed,
)
TABLES = {
    "customers": Lookup(
        "TOPIC-customers", key="id", value=Json(Customer), missing="dead-letter"
    )
}
by_record = Strategy(
    named, [files_writer()], failed, value=Json(Order), tables=TABLES
)
by_batch = Strategy(
    joined, [files_writer()], failed, value=Json(Order), tables=TABLES
)
VERSIONS = {
    "customers": Lookup(
        "TOPIC-customers", key="id", value=Json(Customer), as_of="record", keep="1d"
    )
}
by_time = Strategy(named, [files_writer()], failed, value=Json(Order), tables=VERSIONS)
by_time_in_batches = Strategy(joined, [files_writer()], failed, value=Json(Order), tables=VERSIONS)
"""


class Runner:
    """Runs a strategy of the file on a topic until all of its records are processed."""

    def __init__(
        self, spark: SparkSession, kafka: Kafka, topic: str, directory: Path, url: str
    ) -> None:
        self._spark = spark
        self.settings = Settings(topics=(topic,), group="g", bootstrap_servers=kafka.servers)
        self._directory = directory
        self.module = f"strategies_{abs(hash(topic))}"
        self.table = f"t{abs(hash(topic))}"
        self.url = url
        text = STRATEGIES.replace("DIRECTORY", str(directory))
        text = text.replace("TABLE", self.table).replace("URL", url).replace("TOPIC", topic)
        (directory / f"{self.module}.py").write_text(text)

    def engine(self, strategy: str, **engine: Any) -> SparkEngine:
        options = {"checkpoint": str(self._directory / "checkpoint"), "trigger": "available-now"}
        return SparkEngine(
            load_strategy(f"{self.module}:{strategy}"),
            self.settings,
            EngineSettings(**options | engine),
            session=self._spark,
        )

    def run(self, strategy: str, **engine: Any) -> SparkEngine:
        runner = self.engine(strategy, **engine)
        runner.run()
        return runner

    def forget_last(self) -> None:
        """Simulate a kill before the checkpoint had the last micro-batch as complete."""
        commits = self._directory / "checkpoint" / "commits"
        last = max(int(log.name) for log in commits.glob("[0-9]*"))
        for log in (f"{last}", f".{last}.crc"):
            (commits / log).unlink(missing_ok=True)

    def rows(self) -> list[dict[str, Any]]:
        return pq.read_table(self._directory / "out").to_pylist()

    def failed(self) -> list[str]:
        return (self._directory / "failed.json").read_text().splitlines()


@pytest.fixture
def runner(
    spark: SparkSession,
    kafka: Kafka,
    topic: str,
    tmp_path: Path,
    clickhouse_url: str,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Runner:
    """Return a runner on a topic with one partition, or the number in the parameter."""
    monkeypatch.syspath_prepend(str(tmp_path))
    kafka.create(topic, getattr(request, "param", 1))
    return Runner(spark, kafka, topic, tmp_path, clickhouse_url)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def sample(runner: SparkEngine, name: str, **labels: str) -> float | None:
    return runner.metrics.registry.get_sample_value(f"kmr_{name}", labels)


def test_rows_filtered_records_and_failures_reach_their_sinks(
    runner: Runner, kafka: Kafka, topic: str
) -> None:
    kafka.produce(topic, [b"a", b"skip", b"poison", b"b", b"poison"])
    done = runner.run("files")
    assert [(row["offset"], row["value"]) for row in runner.rows()] == [(0, "a"), (3, "b")]
    first, second = runner.failed()
    assert '"offset":2' in first
    assert '"reason":"ValueError: poisoned","stage":"map","attempt":1' in first
    assert '"offset":4' in second
    assert sample(done, "consumed_records_total", topic=topic) == 5
    assert sample(done, "settled_records_total", topic=topic) == 5
    assert sample(done, "failed_records_total", stage="map") == 2
    assert sample(done, "reduce_flushes_total", stage="reduce-1", reason="trigger") == 1


def test_values_of_all_formats_become_typed_rows_in_the_tasks(
    runner: Runner, kafka: Kafka, topic: str
) -> None:
    values = {
        topic: [b'{"value":"j"}', b'{"value":1}'],
        f"{topic}-avro": [b"\2a\0", b"\2"],
        f"{topic}-protobuf": [StringValue(value="p").SerializeToString(), b"\xff"],
    }
    for name, some in values.items():
        if name != topic:
            kafka.create(name)
        kafka.produce(name, some)
    runner.settings = msgspec.structs.replace(runner.settings, topics=tuple(values))
    runner.run("formats")
    rows = sorted((row["value"], row["offset"]) for row in runner.rows())
    assert rows == [("a", 0), ("j", 0), ("p", 0)]
    failed = sorted(json.loads(line)["reason"].partition(":")[0] for line in runner.failed())
    assert failed == ["field value", "field value", "the value"]


def test_an_async_map_and_a_chain_of_reducers_deliver_every_row_once(
    runner: Runner, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    kafka.produce(topic, [*([b"x"] * 10), b"hang"])
    engine = runner.run("doubled")
    assert Counter(row["offset"] for row in runner.rows()) == dict.fromkeys(range(10), 2)
    (failed,) = map(json.loads, runner.failed())
    assert (failed["offset"], failed["attempt"], failed["exception"]) == (10, 2, "TimeoutError")
    assert engine.metrics.map_retries._value.get() == 11
    processes = (tmp_path / "opened").read_text().split()
    assert len(processes) == len(set(processes))  # resources are opened once in each


@pytest.mark.parametrize("strategy", ["branched", "branched_by_driver"])
@pytest.mark.parametrize("runner", [2], indirect=True)
def test_each_branch_has_its_rows_once_when_a_micro_batch_is_repeated(
    runner: Runner, kafka: Kafka, topic: str, strategy: str
) -> None:
    kafka.produce_to(topic, 0, [b"a", b"skip", b"b"])
    kafka.produce_to(topic, 1, [b"c", b"poison"])
    runner.run(strategy)
    runner.forget_last()
    runner.run(strategy)
    assert sorted(row["value"] for row in runner.rows()) == ["a", "b", "c"]
    target = ClickHouseAddress.of(runner.url)
    with connect(target) as client:
        found = client.query(f"SELECT n FROM {runner.table} ORDER BY n").result_rows
    assert found == [(0,), (0,), (2,)]


@pytest.mark.parametrize("runner", [2], indirect=True)
def test_an_aggregate_has_one_result_for_each_micro_batch_with_all_its_partitions(
    runner: Runner, kafka: Kafka, topic: str
) -> None:
    kafka.produce_to(topic, 0, [b"a", b"b"])
    kafka.produce_to(topic, 1, [b"a", b"poison"])
    runner.run("counted")
    kafka.produce_to(topic, 1, [b"a"])
    done = runner.run("counted")
    found = sorted((row["value"], row["n"], row["last"]) for row in runner.rows())
    assert found == [("a", 1, 2), ("a", 2, 0), ("b", 1, 1)]
    assert len(runner.failed()) == 1
    assert sample(done, "reduce_flushes_total", stage="reduce-2", reason="trigger") == 1


@pytest.mark.parametrize("runner", [2], indirect=True)
def test_an_aggregate_is_in_clickhouse_once_when_its_micro_batch_is_repeated(
    runner: Runner, kafka: Kafka, topic: str
) -> None:
    with connect(ClickHouseAddress.of(runner.url)) as client:
        client.command(
            f"CREATE TABLE {runner.table} (value String, n UInt32, last UInt64) ENGINE = MergeTree "
            "ORDER BY value SETTINGS non_replicated_deduplication_window = 10000"
        )
        for partition in (0, 1):
            kafka.produce_to(topic, partition, [b"a", b"b", b"a"])
        runner.run("clickhouse")
        runner.forget_last()
        kafka.produce_to(topic, 1, [b"a"])
        runner.run("clickhouse")
        found = client.query(f"SELECT value, n, last FROM {runner.table} ORDER BY ALL").result_rows
    assert found == [("a", 1, 3), ("a", 4, 2), ("b", 2, 1)]


def test_a_repeated_micro_batch_is_counted_where_clickhouse_knows_its_token_and_not_its_rows(
    runner: Runner, kafka: Kafka, topic: str
) -> None:
    with connect(ClickHouseAddress.of(runner.url)) as client:
        client.command(
            f"CREATE TABLE {runner.table} (topic String, partition UInt32, offset UInt64, value String) "
            "ENGINE = MergeTree ORDER BY offset SETTINGS non_replicated_deduplication_window = 10000"
        )
        kafka.produce(topic, [b"x"] * 10)
        runner.run("located")
        client.command(f"ALTER TABLE {runner.table} DELETE WHERE 1 SETTINGS mutations_sync = 2")
        runner.forget_last()
        runner.run("located")
        found = client.query(f"SELECT offset FROM {runner.table} ORDER BY offset").result_rows
    assert [offset for (offset,) in found] == list(range(10))


def test_records_that_a_new_checkpoint_reads_again_are_written_again(
    runner: Runner, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    """The driver creates the table, a task adds a column."""
    with connect(ClickHouseAddress.of(runner.url)) as client:
        kafka.produce(topic, [b"x"] * 10)
        runner.run("grows")
        runner.forget_last()
        runner.run("grows")  # the same checkpoint: a repetition
        assert client.command(f"SELECT countIf(value = 'x') FROM {runner.table}") == 10
        runner.run("grows", checkpoint=str(tmp_path / "again"))
        assert client.command(f"SELECT countIf(value = 'x') FROM {runner.table}") == 20


def test_a_reducer_knows_that_its_rows_may_have_been_written_only_in_a_repeated_micro_batch(
    runner: Runner, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    kafka.produce(topic, [b"a", b"poison"])
    runner.run("witness")
    runner.forget_last()
    kafka.produce(topic, [b"a", b"poison"])
    runner.run("witness")
    for name in ("task", "driver", "error"):
        said = (tmp_path / f"witness-{name}").read_text().split()
        assert said == ["False", "True", "False"], name


@pytest.mark.parametrize("runner", [2], indirect=True)
def test_a_table_of_spark_has_every_row_once_and_misfits_go_to_the_error_sink(
    spark: SparkSession, runner: Runner, kafka: Kafka, topic: str
) -> None:
    """The writer's `master` has no effect: the engine's session writes."""
    spark.sql(
        f"CREATE TABLE {runner.table} (offset BIGINT, value INT, partition INT) USING parquet "
        "PARTITIONED BY (partition)"
    )
    kafka.produce_to(topic, 0, [b"7", b"text", b"9"])
    kafka.produce_to(topic, 1, [b"1", b"poison"])
    runner.run("table")
    runner.forget_last()
    kafka.produce_to(topic, 1, [b"3"])
    runner.run("table")
    rows = spark.table(runner.table).select("partition", "offset", "value").collect()
    spark.sql(f"DROP TABLE {runner.table}")
    assert sorted(map(tuple, rows)) == [(0, 0, 7), (0, 2, 9), (1, 0, 1), (1, 2, 3)]
    refused, *_ = (line for line in runner.failed() if '"stage":"reduce-1"' in line)
    assert "column value (int32) cannot hold 'text'" in refused
    assert '"offset":1' in refused


def test_a_transform_gets_the_micro_batch_and_its_result_is_written_once(
    runner: Runner, kafka: Kafka, topic: str
) -> None:
    kafka.produce(topic, [b"a", b"b", b"a"])
    runner.run("transformed")
    runner.forget_last()
    kafka.produce(topic, [b"b"])
    runner.run("transformed")
    found = sorted((row["value"], row["count"]) for row in runner.rows())
    assert found == [("a", 2), ("b", 1), ("b", 1)]


@pytest.fixture
def short(runner: Runner) -> Iterator[Runner]:
    """Run with a deadline of one second; at the end, release the calls that hang, and join their threads."""
    runner.settings = msgspec.structs.replace(runner.settings, shutdown_deadline=1.0)
    yield runner
    sys.modules[runner.module].released.set()
    for thread in threading.enumerate():
        if thread.name == "kmr engine":
            thread.join(PATIENCE)
            assert not thread.is_alive()


@pytest.mark.parametrize(
    ("strategy", "undone"),
    [
        ("stuck", "micro-batch 1 did not end within"),
        ("hung_map", "micro-batch 1 did not end within"),
        ("hung_flush", "micro-batch 1 did not end within"),
        ("hung_loop", "micro-batch 1 did not end within"),
        ("hung_close", "closing the reducers"),
    ],
)
def test_a_run_ends_at_its_deadline_whatever_hangs(
    short: Runner, kafka: Kafka, topic: str, tmp_path: Path, strategy: str, undone: str
) -> None:
    kafka.produce(topic, [b"x"])
    engine = short.engine(strategy)
    with ThreadPoolExecutor() as pool:
        ended = pool.submit(engine.run)
        try:
            wait_for((tmp_path / "stuck").exists)
        finally:
            engine.shutdown()
        with pytest.raises(DeadlineExceeded, match=undone):
            ended.result(WELL_BEFORE_FOR_EVER)


def test_a_run_that_is_stopped_while_a_reducer_opens_ends_at_once(
    runner: Runner, tmp_path: Path
) -> None:
    engine = runner.engine("never_open")
    with ThreadPoolExecutor() as pool:
        ended = pool.submit(engine.run)
        wait_for((tmp_path / "stuck").exists)
        engine.shutdown()
        ended.result(runner.settings.shutdown_deadline / 2)
    assert not (tmp_path / "checkpoint").exists()


def test_a_users_reducer_has_the_contract_of_the_worker(
    runner: Runner, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    kafka.produce(topic, [b"x"] * 10)
    done = runner.run("picky")
    assert (tmp_path / "picky").read_text().splitlines() == ["4", "4", "2"]
    assert len(runner.failed()) == 3
    assert '"reason":"too early","stage":"reduce-1","attempt":2' in runner.failed()[0]
    assert sample(done, "reduce_flush_retries_total", stage="reduce-1") == 1


def test_more_failures_than_the_limit_stop_the_query_and_the_micro_batch_is_not_complete(
    runner: Runner, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    kafka.produce(topic, [b"poison"] * 3)
    with pytest.raises(RecordFailed, match="more than 2 records in 60 s failed"):
        runner.run("limited")
    assert not (tmp_path / "checkpoint" / "commits" / "1").exists()


def test_a_mistake_in_the_strategy_is_the_error_of_the_worker(
    runner: Runner, kafka: Kafka, topic: str
) -> None:
    kafka.produce(topic, [b"x"])
    with pytest.raises(StrategyError, match="map function wrong returned str"):
        runner.run("broken")


def test_a_reducer_that_cannot_open_stops_the_query_before_it_begins(
    runner: Runner, tmp_path: Path
) -> None:
    with pytest.raises(StrategyError, match="nowhere"):
        runner.run("no_table")
    assert not (tmp_path / "checkpoint").exists()


def test_a_micro_batch_that_is_repeated_is_counted_and_its_lag_is_known(
    runner: Runner, kafka: Kafka, topic: str
) -> None:
    kafka.produce(topic, [b"x"] * 10)
    runner.run("files")
    runner.forget_last()
    kafka.produce(topic, [b"y"] * 5)
    settings = runner.settings
    runner.settings = msgspec.structs.replace(settings, group="other")
    with pytest.raises(SettingsError, match="belongs to group g: with group other"):
        runner.run("files")
    runner.settings = settings
    done = runner.run("files")
    assert len(runner.rows()) == 15
    assert sample(done, "commits_total", result="checkpoint") == 2
    assert sample(done, "consumer_lag_records", topic=topic, partition="0") == 0


def test_metrics_and_readiness_are_served_while_the_query_runs(
    runner: Runner, kafka: Kafka, topic: str
) -> None:
    kafka.produce(topic, [b"x"] * 10)
    runner.settings = msgspec.structs.replace(runner.settings, http=HttpSettings(port=0))
    engine = runner.engine("files", trigger="100ms")
    thread = threading.Thread(target=engine.run)
    thread.start()
    try:
        wait_for(lambda: engine.status().settled == 10)
        with urlopen(f"{engine.health_url}/ready") as answer:
            assert answer.status == 200
        with urlopen(f"{engine.health_url}/metrics") as answer:
            assert f'kmr_settled_records_total{{topic="{topic}"}} 10.0' in answer.read().decode()
    finally:
        engine.shutdown()
        thread.join(PATIENCE)
    assert not thread.is_alive()
    assert len(runner.rows()) == 10


@pytest.mark.parametrize("runner", [2], indirect=True)
def test_a_table_equals_its_source_when_micro_batches_of_changes_are_repeated(
    runner: Runner, kafka: Kafka, topic: str
) -> None:
    chance, history = random.Random(5), History(2)
    sent = [0, 0]
    with connect(ClickHouseAddress.of(runner.url)) as client:
        for _ in range(2):
            for _ in range(60):
                key, kind = chance.randrange(8), chance.choice(["put", "put", "delete", "move"])
                more = chance.randrange(8) if kind == "move" else f"name {chance.random()}"
                history.apply((kind, key, more))
            for partition, values in enumerate(history.topic):
                new = [each for each in values[sent[partition] :] if each is not None]
                kafka.produce_to(topic, partition, new)
                sent[partition] = len(values)
            runner.run("followed")
            runner.forget_last()
        runner.run("followed")
        found = client.query(f"SELECT id, name FROM {runner.table} FINAL ORDER BY id").result_rows
    assert history.table
    assert found == sorted(history.table.items())


@pytest.mark.parametrize("strategy", ["by_time", "by_time_in_batches"])
def test_a_micro_batch_that_is_repeated_finds_the_same_versions_by_the_time_of_its_records(
    runner: Runner, kafka: Kafka, topic: str, strategy: str
) -> None:
    kafka.create(f"{topic}-customers", 1)
    for name in (b"ann", b"eve"):
        kafka.produce_to(f"{topic}-customers", 0, [b'{"id":1,"name":"%s"}' % name])
        kafka.produce(topic, [b'{"number":1,"customer":1}'])
        runner.run(strategy)
    runner.forget_last()
    kafka.produce_to(f"{topic}-customers", 0, [b'{"id":1,"name":"zoe"}'])
    runner.run(strategy)
    assert sorted(row["name"] for row in runner.rows()) == ["ann", "eve"]


@pytest.mark.parametrize("strategy", ["by_record", "by_batch"])
def test_a_map_has_look_up_tables_as_in_a_worker_and_each_micro_batch_the_newest_rows(
    runner: Runner, kafka: Kafka, topic: str, strategy: str, tmp_path: Path
) -> None:
    orders = [b'{"number":%d,"customer":%d}' % (n, n % 3) for n in range(6)]
    kafka.create(f"{topic}-customers", 2)
    kafka.produce_to(f"{topic}-customers", 0, [b'{"id":0,"name":"ann"}'])
    kafka.produce_to(f"{topic}-customers", 1, [b'{"id":1,"name":"bob"}'])
    kafka.produce(topic, orders)
    runner.run(strategy)
    expected = [(0, "ann"), (1, "bob"), (3, "ann"), (4, "bob")]
    assert sorted((row["number"], row["name"]) for row in runner.rows()) == expected
    reasons = [json.loads(line)["reason"] for line in runner.failed()]
    assert reasons == ["NoRow: customers has no row of the key 2"] * 2
    loaded = load_strategy(f"{runner.module}:{strategy}")
    journal, letters = Journal(), Journal()
    trial = loaded.with_chains(
        lambda _, __: [MemoryWriter(journal)], reduce_err=MemoryWriter(letters)
    )
    settings = msgspec.structs.replace(runner.settings, group="worker", until_caught_up=True)
    anyio.run(lambda: Worker(trial, settings).run())
    assert sorted((row["number"], row["name"]) for row in journal.rows()) == expected
    assert [row["reason"] for row in letters.rows()] == reasons
    kafka.produce_to(f"{topic}-customers", 1, [b'{"id":1,"name":"rob"}', b'{"id":2,"name":"cat"}'])
    kafka.produce(topic, orders[1:3])
    runner.run(strategy)
    found = sorted((row["number"], row["name"]) for row in runner.rows())
    assert found == sorted([*expected, (1, "rob"), (2, "cat")])


def test_an_engine_that_would_read_its_own_messages_is_refused() -> None:
    strategy = Strategy(map_batch(lambda batch: batch), [KafkaWriter("t")])
    with pytest.raises(StrategyError, match="reduce-1: KafkaWriter writes to topic t"):
        SparkEngine(strategy, Settings(topics=("t",), group="g"), EngineSettings(checkpoint="c"))
