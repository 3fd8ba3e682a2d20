"""`kmr run --engine spark` as a process: killed at any moment, stopped by signals; the sinks are counted.

A start of Spark takes ten seconds of processor time, so one query is killed, stopped and started again.
"""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from kmr.history.deliveries import check
from kmr.sinks.clickhouse.client import ClickHouseAddress, connect
from tests.processes import open_descendants

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.framework.spark.conftest import Kafka

pytestmark = pytest.mark.slow

RECORDS = 60_000
SMALL = ("--max-offsets-per-trigger", "10000")
PATIENCE = 300.0  # seconds, for a loaded machine
WELL_BEFORE_FOR_EVER = 120.0  # seconds; the deadline is 1 s
STRATEGIES = """
import pathlib
import threading
from dataclasses import replace
import pyarrow as pa
from kmr import Strategy, map_batch, map_record
from kmr.reducers.collect import one_table
from kmr.sinks import ClickHouseWriter, ParquetWriter, StreamWriter

@map_batch
def locate(batch):
    return batch.select(["partition", "offset", "timestamp", "kmr_offset"])

@map_record
def picky(record):
    if record.value == b"poison":
        raise ValueError("poisoned")
    return {"partition": record.partition, "offset": record.offset}

class Files(ParquetWriter):
    '''Writes files, and hands the rows on.'''
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.capabilities = replace(self.capabilities, forwards=True)
    async def flush(self, write):
        await super().flush(write)
        return one_table(self.rows)

class HungOpen(StreamWriter):
    async def open(self, context):
        pathlib.Path("opening").touch()
        threading.Event().wait()

errors = StreamWriter("stderr")
hung_open = Strategy(locate, [HungOpen("stderr")])
both = Strategy(locate, [Files("out"), ClickHouseWriter("TABLE", url="URL")], errors)
strict = Strategy(picky, [ParquetWriter("out")])
"""


class Engine:
    """Starts the engine on one topic; every start uses the same checkpoint."""

    def __init__(self, directory: Path, kafka: Kafka, topic: str, url: str) -> None:
        self._directory = directory
        self._kafka = kafka
        self._topic = topic
        self.table = topic.replace("-", "_").replace(".", "_")
        self.url = url
        text = STRATEGIES.replace("TABLE", self.table).replace("URL", url)
        (directory / "strategies.py").write_text(text)

    @contextmanager
    def start(
        self, strategy: str, *flags: str, master: str = "local[2]", **environ: str
    ) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(
            [
                *(Path(sys.executable).with_name("kmr"), "run", f"strategies:{strategy}"),
                *("--engine", "spark", "--master", master, "--checkpoint", "checkpoint"),
                *("--topic", self._topic, "--group", "g"),
                *("--bootstrap-servers", self._kafka.servers),
                *flags,
            ],
            cwd=self._directory,
            env={**os.environ, "NO_COLOR": "1", **environ},
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def kill_once(self, strategy: str, chance: random.Random) -> None:
        """Wait until micro-batches run, then a moment, then SIGKILL."""
        begun = self._logged() + 2
        with self.start(strategy, "--trigger", "1ms", *SMALL) as process:
            self.wait_for(process, lambda: self._logged() >= begun)
            time.sleep(chance.uniform(0.0, 0.6))

    def wait_for(self, process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if process.poll() is not None:
                pytest.fail(f"it ended before it was killed: {process.communicate()[1]}")
            assert time.monotonic() < deadline
            time.sleep(0.03)

    def _logged(self) -> int:
        """Return the number of micro-batches that have begun."""
        return len(list((self._directory / "checkpoint" / "offsets").glob("[0-9]*")))

    def writes_last(self, ends: dict[int, int]) -> bool:
        """Return whether the micro-batch that reads to these end offsets has written its files."""
        out = self._directory / "out"
        return all(any(out.glob(f"*~{p}~*-{end - 1:019d}~*.parquet")) for p, end in ends.items())

    def parquet(self) -> Counter[tuple[int, int]]:
        """Count the rows of the files by partition and offset."""
        rows = pq.read_table(self._directory / "out").to_pylist()
        return Counter((row["partition"], row["offset"]) for row in rows)


@pytest.fixture
def engine(
    tmp_path: Path,
    kafka: Kafka,
    topic: str,
    clickhouse_url: str,
    quick_jvms: None,
) -> Engine:
    return Engine(tmp_path, kafka, topic, clickhouse_url)


def make_table(engine: Engine) -> None:
    with connect(ClickHouseAddress.of(engine.url)) as client:
        client.command(
            f"CREATE TABLE {engine.table} (partition UInt32, offset UInt64, timestamp DateTime) "
            "ENGINE = MergeTree ORDER BY (partition, offset) "
            "SETTINGS non_replicated_deduplication_window = 10000"
        )


def slow_python(directory: Path) -> Path:
    """Make a Python whose first start for a source takes longer than the ten seconds that Spark waits."""
    python = directory / "python"
    python.write_text(
        "#!/bin/sh\n"
        'case "$*" in *python_streaming_source_runner*)\n'
        f'  if mkdir "{directory}/slow" 2>/dev/null; then exec sleep 30; fi ;;\n'
        f'esac\nexec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    return python


def test_killed_slow_to_start_stopped_and_started_again_nothing_is_missing_or_doubled(
    engine: Engine, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    make_table(engine)
    kafka.create(topic, 2)
    half = [b"x" * 100] * (RECORDS // 2)
    kafka.produce(topic, half)
    engine.kill_once("both", random.Random(1))

    # A Python process that is too slow for Spark does not end the engine; a signal lets the micro-batch end.
    kafka.produce(topic, half)
    ends = kafka.ends(topic)
    python = str(slow_python(tmp_path))
    with engine.start("both", "--trigger", "1ms", *SMALL, PYSPARK_PYTHON=python) as process:
        engine.wait_for(process, lambda: engine.writes_last(ends))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    assert (tmp_path / "slow").exists()
    assert {p: kafka.committed("g", topic, p) for p in ends} == ends

    # It ends while the processes of its tasks still start, for which it has no use: it prints no error.
    with engine.start("both", "--trigger", "available-now") as process:
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    assert "ERROR" not in errors
    assert "kmr-warm-up" not in errors

    result = check(table=engine.table, url=engine.url, expected=RECORDS)
    assert result.clean, result
    assert result.messages == RECORDS
    found = engine.parquet()
    assert len(found) == RECORDS
    assert set(found.values()) == {1}


def test_a_second_signal_ends_it_at_once_and_its_jvm_too(engine: Engine, tmp_path: Path) -> None:
    with engine.start("hung_open") as process:
        engine.wait_for(process, (tmp_path / "opening").exists)
        jvms = open_descendants(process.pid)
        assert jvms
        process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None:  # a second signal right after the first counts as the same
            assert time.monotonic() < deadline
            time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 128 + signal.SIGTERM
    for jvm in jvms:
        ended, _, _ = select.select([jvm], [], [], PATIENCE)
        os.close(jvm)
        assert ended


def test_an_engine_that_hangs_ends_with_three_at_the_deadline_of_its_first_signal(
    engine: Engine, tmp_path: Path
) -> None:
    """Here its JVM does not start."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="17.0.1"')
    java.write_text(f"#!/bin/sh\ntouch {tmp_path}/opening\nexec cat\n")
    java.chmod(0o755)
    environ = {"JAVA_HOME": str(tmp_path / "java")}
    with engine.start("both", "--shutdown-deadline", "1", **environ) as process:
        engine.wait_for(process, (tmp_path / "opening").exists)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=WELL_BEFORE_FOR_EVER)
    assert process.returncode == 3
    assert "not ended within shutdown_deadline (1 s): opening Spark's session" in errors


def test_an_error_that_the_user_can_fix_is_one_message(
    engine: Engine, kafka: Kafka, topic: str
) -> None:
    kafka.create(topic)
    kafka.produce(topic, [b"poison" if n == 7 else b"x" for n in range(10)])
    with engine.start("strict", "--trigger", "available-now", master="local[1]") as process:
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    *_, last = errors.strip().splitlines()
    assert last.startswith("kmr: record failed, "), errors
    assert last.endswith(
        "[7..7] in map: ValueError: poisoned; set reduce_err= in the strategy to keep such records and go on"
    )
    assert "Traceback" not in errors
