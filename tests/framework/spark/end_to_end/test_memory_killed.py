"""Windows and duplicates on Spark: the job is killed between micro-batches; a worker makes the same rows."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.parquet as pq
import pytest

from kmr import Distinct, Json, Strategy, Window
from kmr.sinks import StreamWriter
from kmr.sinks.clickhouse.client import ClickHouseAddress, connect
from kmr.testing import run_strategy

pytest.importorskip("pyspark")

from tests.framework.spark.end_to_end.test_kill import PATIENCE, SMALL, Engine

if TYPE_CHECKING:
    from tests.framework.spark.conftest import Kafka

pytestmark = pytest.mark.slow

RECORDS = 40_000
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
STRATEGIES = Path(__file__).read_text().partition("# --- strategies\n")[2].partition("# ---")[0]


# --- strategies
class Hit(msgspec.Struct):
    ts: datetime
    path: str
    number: int


def window(idle: str | None = None) -> Window:
    columns = {"hits": ("*", "count"), "mean": ("number", "mean"), "last": ("number", "last")}
    return Window(
        "2s", time="ts", by=["path"], columns=columns, lateness="3s", late="drop", idle=idle
    )


def strategy(*reduce: Any) -> Strategy:
    return Strategy(value=Json(Hit), reduce=reduce, reduce_err=StreamWriter("stderr"))


# ---


def records(partition: int) -> list[bytes]:
    """Records in disorder; some are late, and each number comes twice or more."""
    chance = random.Random(partition)
    made = []
    for at in range(RECORDS // 2):
        late = chance.random() * (8 if chance.random() < 0.1 else 2)
        ts = BEGIN + timedelta(seconds=at * 0.02 - late + 10)
        number = chance.randrange(at // 2 + 1)
        made.append(json.dumps({"ts": ts.isoformat(), "path": f"/{at % 7}", "number": number}))
    return [each.encode() for each in made]


class MemoryEngine(Engine):
    def __init__(self, directory: Path, kafka: Kafka, topic: str, url: str) -> None:
        super().__init__(directory, kafka, topic, url)
        (directory / "strategies.py").write_text(
            f"""
from datetime import datetime
from typing import Any
import msgspec
from kmr import Distinct, Json, Strategy, Window
from kmr.sinks import ClickHouseWriter, ParquetWriter, StreamWriter
{STRATEGIES}
table = ClickHouseWriter("{self.table}", url="{url}", create=True, order_by=["window_start"])
into_clickhouse = strategy(window(), table)
quiet = strategy(window("1s"), ParquetWriter("out"))
distinct = strategy(Distinct("number", within="30s", time="ts"), ParquetWriter("out"))
"""
        )

    def rows(self, name: str, directory: Path) -> list[dict[str, Any]]:
        if name != "into_clickhouse":
            return pq.read_table(directory / "out").to_pylist()
        with connect(ClickHouseAddress.of(self.url)) as client:
            query = f"SELECT * FROM {self.table}"
            rows = client.query(query, query_tz="UTC")
        return [dict(zip(rows.column_names, row, strict=True)) for row in rows.result_rows]


def closed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of the windows that the records close."""
    levels = {}
    for partition in range(2):
        times = [datetime.fromisoformat(json.loads(each)["ts"]) for each in records(partition)]
        levels[partition] = max(times) - timedelta(seconds=3)
    return [row for row in rows if row["window_end"] <= levels[row["partition"]]]


def as_worker(name: str) -> list[dict[str, Any]]:
    """Return what the chain of a worker makes of the records; all windows close at its end."""
    rule = Distinct("number", within="30s", time="ts") if name == "distinct" else window()
    found = []
    for partition in range(2):
        run = run_strategy(strategy(rule, StreamWriter("stdout")), records(partition))
        found += [
            {**row, "partition": partition} if name != "distinct" else row for row in run.rows
        ]
    return closed(found) if name.startswith("into") else found


def comparable(rows: list[dict[str, Any]]) -> Counter[str]:
    """Count rows; ClickHouse returns times in UTC without their zone."""
    plain = [
        {k: v.replace(tzinfo=None) if isinstance(v, datetime) else v for k, v in row.items()}
        for row in rows
    ]
    return Counter(str(sorted(row.items())) for row in plain)


@pytest.mark.parametrize("name", ["into_clickhouse", "distinct"])
def test_a_job_that_is_killed_between_micro_batches_makes_the_rows_of_a_worker_once(
    name: str,
    tmp_path: Path,
    kafka: Kafka,
    topic: str,
    clickhouse_url: str,
    quick_jvms: None,
) -> None:
    topic = topic.replace("[", "-").replace("]", "")
    engine = MemoryEngine(tmp_path, kafka, topic, clickhouse_url)
    kafka.create(topic, 2)
    made = [records(0), records(1)]
    half = RECORDS // 4
    for partition, values in enumerate(made):
        kafka.produce(topic, values[:half], partition=partition)
    engine.kill_once(name, random.Random(1))
    for partition, values in enumerate(made):
        kafka.produce(topic, values[half:], partition=partition)
    with engine.start(name, "--trigger", "available-now", *SMALL) as process:
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    expected = as_worker(name)
    assert len(expected) > 100
    found = engine.rows(name, tmp_path)
    assert comparable(found) == comparable(expected)
    files = Counter(path.parent.name for path in (tmp_path / "checkpoint").rglob("*.arrow"))
    assert set(files.values()) == {2}, files


def test_the_last_windows_of_a_quiet_topic_close_while_the_job_runs(
    tmp_path: Path, kafka: Kafka, topic: str, clickhouse_url: str, quick_jvms: None
) -> None:
    topic = topic.replace("[", "-").replace("]", "")
    engine = MemoryEngine(tmp_path, kafka, topic, clickhouse_url)
    kafka.create(topic, 2)
    for partition in range(2):
        kafka.produce(topic, records(partition), partition=partition)
    expected = as_worker("quiet")

    def is_complete() -> bool:
        files = (tmp_path / "out").rglob("[!_.]*.parquet")
        return sum(pq.read_metadata(file).num_rows for file in files) >= len(expected)

    with engine.start("quiet", "--trigger", "200ms") as process:
        engine.wait_for(process, is_complete)
    assert comparable(engine.rows("quiet", tmp_path)) == comparable(expected)
