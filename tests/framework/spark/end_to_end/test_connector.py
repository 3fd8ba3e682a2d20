"""`--spark-source jvm` with Spark's own connector: its JARs are no dependency, so one has to name them.

KMR_SPARK_KAFKA_JARS: paths with commas, of spark-sql-kafka-0-10, spark-token-provider-kafka-0-10,
kafka-clients and commons-pool2.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from tests.framework.spark.conftest import Kafka

JARS = os.environ.get("KMR_SPARK_KAFKA_JARS", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not JARS, reason="KMR_SPARK_KAFKA_JARS names no connector"),
]

STRATEGIES = """
from kmr import Strategy, map_record
from kmr.sinks import StreamWriter
from kmr.sinks.spark.writer import SparkWriter

@map_record
def picky(record):
    if record.value == b"poison":
        raise ValueError("poisoned")
    return {
        "partition": record.partition, "offset": record.offset, "timestamp": record.timestamp,
        "key": record.key, "value": record.value,
        "headers": str([(header.key, header.value) for header in record.headers]),
    }

ours = Strategy(picky, [SparkWriter(path="ours")], StreamWriter("stderr"))
theirs = Strategy(picky, [SparkWriter(path="theirs")], StreamWriter("stderr"))
"""
FLAGS = {"ours": (), "theirs": ("--spark-source", "jvm", "--spark-conf", f"spark.jars={JARS}")}


def test_both_sources_deliver_the_same_rows_and_the_same_failures(
    tmp_path: Path, kafka: Kafka, topic: str
) -> None:
    kafka.create(topic, 2)
    kafka.produce(topic, [b"%d" % number for number in range(25_000)])
    kafka.produce_one(topic, b"v", key=b"k", headers=[("a", b"1"), ("a", b""), ("b", b"2")])
    kafka.produce(topic, [b"poison"])
    kafka.produce_one(topic, None, key=b"gone")
    (tmp_path / "strategies.py").write_text(STRATEGIES)
    rows, failures = [], []
    for strategy, flags in FLAGS.items():
        done = subprocess.run(
            [
                *(Path(sys.executable).with_name("kmr"), "run", f"strategies:{strategy}"),
                *("--engine", "spark", "--master", "local[2]", "--trigger", "available-now"),
                *("--checkpoint", f"checkpoint-{strategy}", "--topic", topic, "--group", strategy),
                *("--bootstrap-servers", kafka.servers, *flags),
            ],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        table = pq.read_table(tmp_path / strategy)
        rows.append(table.sort_by([("partition", "ascending"), ("offset", "ascending")]))
        failures.append([line for line in done.stderr.splitlines() if "poisoned" in line])
    assert rows[0].num_rows == 25_002
    assert rows[0].equals(rows[1])
    assert len(failures[0]) == 1
    assert failures[0] == failures[1]
