"""The engine in a session of the test's own process: reducers, failures, limits, both sources, metrics."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import msgspec
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from framework.cli.strategies import load_strategy
from framework.errors import RecordFailed, StrategyError
from framework.settings import HttpSettings, Settings
from framework.spark.engine import SparkEngine
from framework.spark.settings import EngineSettings
from framework.spark.source import register

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.framework.spark.conftest import Kafka

pytestmark = pytest.mark.slow

STRATEGIES = """
import pathlib
import pyarrow as pa
from framework import Aggregate, Batcher, Collect, ErrorLimit, Flushed, Poisoned, Reducer, Retry, Strategy
from framework import map_batch, map_record
from framework.sinks import StreamWriter
from framework.sinks.spark import SparkWriter

HERE = pathlib.Path("DIRECTORY")

@map_record
def parse(record):
    if record.value == b"poison":
        raise ValueError("poisoned")
    if record.value == b"skip":
        return None
    return {"partition": record.partition, "offset": record.offset, "value": record.value.decode()}

@map_record
async def twice(record):
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
            return Retry(0.0, "not yet")
        refused = [Poisoned(rows.cut(1)[0], "too early") for rows in self.added if len(rows) > 1]
        sizes = " ".join(str(len(rows)) for rows in self.added)
        with (HERE / "picky").open("a") as file:
            file.write(sizes + "\\n")
        return Flushed(poisoned=refused[:1])

def files_writer():
    return SparkWriter(path=str(HERE / "out"))

failed = StreamWriter(HERE / "failed.json")
files = Strategy(parse, [files_writer()], failed)
doubled = Strategy(twice, [Batcher(max_rows=3), files_writer()], failed)
counted = Strategy(parse, [Aggregate(["value"], {"n": ("*", "count")}), files_writer()], failed)
picky = Strategy(parse, [Picky(max_rows=4)], failed)
limited = Strategy(parse, [files_writer()], failed, ErrorLimit(2))
broken = Strategy(wrong, [files_writer()], failed)
"""


class Runner:
    """Runs a strategy of the file on a topic until all that is there is processed."""

    def __init__(self, spark: SparkSession, kafka: Kafka, topic: str, directory: Path) -> None:
        self._spark = spark
        self.settings = Settings(topics=(topic,), group="g", bootstrap_servers=kafka.servers)
        self._directory = directory
        self.module = f"strategies_{abs(hash(topic))}"
        text = STRATEGIES.replace("DIRECTORY", str(directory))
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
    monkeypatch: pytest.MonkeyPatch,
) -> Runner:
    monkeypatch.syspath_prepend(str(tmp_path))
    kafka.create(topic)
    return Runner(spark, kafka, topic, tmp_path)


def sample(runner: SparkEngine, name: str, **labels: str) -> float | None:
    return runner.metrics.registry.get_sample_value(f"kmr_{name}", labels)


@pytest.mark.parametrize("source", ["python", "jvm"])
def test_rows_filtered_records_and_failures_end_where_they_belong(
    spark: SparkSession, runner: Runner, kafka: Kafka, topic: str, source: str
) -> None:
    """With `jvm`, ours stands in for Spark's own source: rows go through `mapInArrow`."""
    register(spark, "kafka")
    kafka.produce(topic, [b"a", b"skip", b"poison", b"b", b"poison"])
    done = runner.run("files", source=source)
    assert [(row["offset"], row["value"]) for row in runner.rows()] == [(0, "a"), (3, "b")]
    first, second = runner.failed()
    assert '"offset":2' in first
    assert '"reason":"ValueError: poisoned","stage":"map","attempt":1' in first
    assert '"offset":4' in second
    assert sample(done, "consumed_records_total", topic=topic) == 5
    assert sample(done, "settled_records_total", topic=topic) == 5
    assert sample(done, "failed_records_total", stage="map") == 2
    assert sample(done, "reduce_flushes_total", stage="reduce-1", reason="trigger") == 1


def test_an_async_map_and_a_chain_of_reducers_deliver_every_row_once(
    runner: Runner, kafka: Kafka, topic: str
) -> None:
    kafka.produce(topic, [b"x"] * 10)
    runner.run("doubled")
    assert Counter(row["offset"] for row in runner.rows()) == dict.fromkeys(range(10), 2)


def test_an_aggregate_has_one_result_for_each_chunk(
    runner: Runner, kafka: Kafka, topic: str
) -> None:
    kafka.produce(topic, [b"a", b"b", b"a"])
    runner.run("counted")
    kafka.produce(topic, [b"a"])
    runner.run("counted")
    found = sorted((row["value"], row["n"]) for row in runner.rows())
    assert found == [("a", 1), ("a", 2), ("b", 1)]


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
    with pytest.raises(RecordFailed, match="more than 2 records failed within 60 s"):
        runner.run("limited")
    assert not (tmp_path / "checkpoint" / "commits" / "1").exists()


def test_a_mistake_in_the_strategy_is_told_as_in_the_worker(
    runner: Runner, kafka: Kafka, topic: str
) -> None:
    kafka.produce(topic, [b"x"])
    with pytest.raises(StrategyError, match="map function wrong returned str"):
        runner.run("broken")


def test_a_micro_batch_that_is_repeated_is_counted_and_its_lag_is_known(
    runner: Runner, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    kafka.produce(topic, [b"x"] * 10)
    runner.run("files")
    for log in ("1", ".1.crc"):
        (tmp_path / "checkpoint" / "commits" / log).unlink(missing_ok=True)
    kafka.produce(topic, [b"y"] * 5)
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
        deadline = time.monotonic() + 60
        while engine.status().settled < 10:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with urlopen(f"{engine.health_url}/ready") as answer:
            assert answer.status == 200
        with urlopen(f"{engine.health_url}/metrics") as answer:
            assert f'kmr_settled_records_total{{topic="{topic}"}} 10.0' in answer.read().decode()
    finally:
        engine.shutdown("test")
        thread.join(60)
    assert not thread.is_alive()
    assert len(runner.rows()) == 10
