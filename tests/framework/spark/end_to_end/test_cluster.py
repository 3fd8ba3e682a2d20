"""A standalone cluster from PySpark's package alone: a master and two workers, one of which is killed."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import pytest

from kmr.cli.root import run_command
from kmr.history.deliveries import check
from kmr.sinks.clickhouse.client import ClickHouseAddress, connect
from kmr.spark.jvm import find_jvm, lean_home

pyspark = pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from tests.framework.spark.conftest import Kafka

pytestmark = pytest.mark.slow

STRATEGY = """
import local_helper
from kmr import Strategy, map_batch
from kmr.sinks import ClickHouseWriter, StreamWriter

@map_batch
def locate(batch):
    return local_helper.columns(batch)

strategy = Strategy(locate, [ClickHouseWriter("TABLE", url="URL")], StreamWriter("stderr"))
"""
HELPER = """
def columns(batch):
    return batch.select(["partition", "offset", "timestamp", "kmr_offset"])
"""


class Cluster:
    """Processes of a standalone cluster on loopback, each with a process group of its own."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        package = Path(pyspark.__file__).parent
        self.home = lean_home(package) or package
        # No file of settings: its directory would be the first of the class path, and JVMs use the archive
        # of `quick_jvms` only with the class path of a home without one.
        quick = os.environ["SPARK_SUBMIT_OPTS"]
        settings = f'-Dspark.ui.enabled=false "-Dspark.executor.extraJavaOptions={quick}"'
        self.environ = {
            **os.environ,
            "JAVA_HOME": str(find_jvm().home),
            "SPARK_HOME": str(self.home),
            "SPARK_SUBMIT_OPTS": f"{quick} {settings}",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_WORKER_DIR": str(directory / "work"),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_DAEMON_JAVA_OPTS": quick,
            "NO_COLOR": "1",
        }
        self.master = self._launch("master.Master", r"spark://127\.0\.0\.1:\d+", "--port", "0")[1]

    def worker(self) -> subprocess.Popen[bytes]:
        arguments = ("--cores", "1", "--memory", "1g", self.master)
        return self._launch("worker.Worker", "Successfully registered with master", *arguments)[0]

    def _launch(
        self, kind: str, ready: str, *arguments: str
    ) -> tuple[subprocess.Popen[bytes], str]:
        log = self._directory / f"{kind}-{len(list(self._directory.glob('*.log')))}.log"
        with log.open("w") as stderr:
            process = self._popen(kind, arguments, stderr)
        self._stack.callback(end, process)
        deadline = time.monotonic() + 180
        while (found := re.search(ready, log.read_text())) is None:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        return process, found[0]

    def _popen(
        self, kind: str, arguments: tuple[str, ...], stderr: TextIO
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                *(self.home / "bin" / "spark-class", f"org.apache.spark.deploy.{kind}"),
                *("--host", "127.0.0.1", "--webui-port", "0", *arguments),
            ],
            cwd=self._directory,
            env=self.environ,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )


def end(process: subprocess.Popen[Any]) -> None:
    """Kill its process group: a worker's executors, and their Python processes, too."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_a_worker_of_a_cluster_is_killed_and_nothing_is_missing_or_doubled(
    kafka: Kafka,
    topic: str,
    clickhouse_url: str,
    tmp_path: Path,
    quick_jvms: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = topic
    with connect(ClickHouseAddress.of(clickhouse_url)) as client:
        client.command(
            f"CREATE TABLE {table} (partition UInt32, offset UInt64, timestamp DateTime) ENGINE = "
            "MergeTree ORDER BY (partition, offset) SETTINGS non_replicated_deduplication_window = 10000"
        )
    kafka.create(topic, 4)
    kafka.produce(topic, [b"x" * 100] * 200_000)
    user = tmp_path / "user"
    user.mkdir()
    (user / "cluster_strategy.py").write_text(
        STRATEGY.replace("TABLE", table).replace("URL", clickhouse_url)
    )
    (user / "local_helper.py").write_text(HELPER)
    monkeypatch.chdir(user)
    monkeypatch.syspath_prepend(str(user))
    with ExitStack() as stack:
        cluster = Cluster(tmp_path, stack)
        first, _second = cluster.worker(), cluster.worker()
        command = package(cluster, kafka, topic, tmp_path, capsys)
        submitted = subprocess.Popen(
            shlex.split(command),
            cwd=tmp_path,  # not the strategy's directory: its modules must come from the package
            env=cluster.environ | {"PATH": f"{cluster.home / 'bin'}:{os.environ['PATH']}"},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        stack.callback(end, submitted)
        wait_for(submitted, tmp_path / "checkpoint" / "offsets" / "3")
        end(first)
        _, errors = submitted.communicate(timeout=300)
        assert submitted.returncode == 0, errors
    result = check(table=table, url=clickhouse_url, expected=200_000)
    assert result.clean, result
    assert result.messages == 200_000


def package(
    cluster: Cluster,
    kafka: Kafka,
    topic: str,
    directory: Path,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """Run `kmr spark package`; return the command that it prints."""
    from importlib.metadata import EntryPoint

    group = EntryPoint("spark", "kmr.cli.spark:app", "kmr.commands")
    arguments = [
        *("spark", "package", "cluster_strategy:strategy", "--master", cluster.master),
        *("--output", str(directory / "package"), "--"),
        *("--topic", topic, "--group", "cluster", "--bootstrap-servers", kafka.servers),
        *("--checkpoint", str(directory / "checkpoint"), "--trigger", "available-now"),
        *("--max-offsets-per-trigger", "40000"),
    ]
    assert run_command(arguments, [group]) == 0
    printed = capsys.readouterr().out
    assert "cluster_strategy.py, local_helper.py" in printed
    return printed.strip().splitlines()[-1]


def wait_for(process: subprocess.Popen[str], file: Path) -> None:
    deadline = time.monotonic() + 300
    while not file.exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.02)
