"""What `kmr validate --engine spark` says about each kind of strategy."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from framework import Aggregate, Batcher, Strategy, map_batch
from framework.cli.root import run_command
from framework.errors import StrategyError
from framework.sinks import ClickHouseWriter, KafkaWriter, StreamWriter
from framework.sinks.spark.writer import SparkWriter
from framework.spark.checks import findings, require_possible

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

STRATEGIES = """
from framework import Aggregate, Strategy, map_batch
from framework.sinks import ClickHouseWriter

@map_batch
def same(batch):
    return batch

count = Aggregate(["partition"], {"n": ("*", "count")})
good = Strategy(same, [count, ClickHouseWriter("t")])
bad = Strategy(same, [ClickHouseWriter("t")], delivery="at-most-once")
"""


@map_batch
def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def texts(*reducers: Any, stage: str = "reduce-1", **strategy: Any) -> str:
    found = findings(Strategy(same, list(reducers), **strategy))
    return "\n".join(
        f"{finding.level}: {finding.text}" for finding in found if finding.stage == stage
    )


COUNT = Aggregate(["k"], {"n": ("*", "count")})


@pytest.mark.parametrize(
    ("reducer", "guarantee"),
    [
        (ClickHouseWriter("t"), "exactly once, by one token per range of offsets"),
        (SparkWriter(path="p"), "exactly once, by one file per range of offsets"),
        (SparkWriter(path="p", format="orc"), "exactly once, by files or a directory per micro-b"),
        (SparkWriter(path="p", format="delta"), "exactly once, by txnAppId and txnVersion"),
        (SparkWriter(path="p", format="iceberg"), "Spark appends to iceberg, at least once"),
        (SparkWriter(table="t"), "exactly once if the table is made of Parquet files"),
        (SparkWriter(transform=print), "the transform writes by itself, at least once"),
        (KafkaWriter("t"), "at least once: a task or micro-batch that is repeated"),
    ],
)
def test_every_sink_has_its_guarantee(reducer: Any, guarantee: str) -> None:
    assert f"guarantee: {type(reducer).__name__}: {guarantee}" in texts(reducer)


def test_what_writes_files_by_itself_never_meets_the_driver_and_what_needs_the_session_does() -> (
    None
):
    assert "the driver runs the strategy" not in texts(SparkWriter(path="p"))
    by_spark = texts(SparkWriter(path="p", transform=lambda frame: frame))
    assert "from here on the driver runs the strategy" in by_spark
    assert "master= and settings= have no effect" in by_spark
    assert "flushes every" not in by_spark


def test_an_aggregate_is_for_a_micro_batch_and_what_follows_it_too() -> None:
    chain = (COUNT, ClickHouseWriter("t"))
    assert "one result for each micro-batch, with all of its partitions" in texts(*chain)
    assert texts(*chain, stage="reduce-2") == (
        "guarantee: ClickHouseWriter: exactly once, by one token per micro-batch"
    )
    assert "executor" in texts(StreamWriter("stdout"))
    assert "executor" not in texts(COUNT, StreamWriter("stdout"), stage="reduce-2")


def test_limits_count_only_where_a_reducer_has_its_own() -> None:
    assert "at the end of a micro-batch; never" in texts(ClickHouseWriter("t"))
    assert "at the end of a micro-batch, and at max_rows" in texts(Batcher(), ClickHouseWriter("t"))


def test_at_most_once_cannot_be() -> None:
    strategy = Strategy(same, [ClickHouseWriter("t")], delivery="at-most-once")
    with pytest.raises(
        StrategyError, match="strategy cannot run on Spark: delivery='at-most-once'"
    ):
        require_possible(strategy)
    require_possible(Strategy(same, [ClickHouseWriter("t")]))


def test_the_error_sink_runs_in_the_driver_or_is_missing() -> None:
    assert "stops the query" in texts(COUNT, stage="reduce-err")
    found = texts(COUNT, stage="reduce-err", reduce_err=StreamWriter("stderr"))
    assert "StreamWriter: at least once; runs in the driver" in found


def test_validate_prints_the_guarantees_and_fails_for_what_cannot_be(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "checked_strategies.py").write_text(STRATEGIES)
    monkeypatch.syspath_prepend(str(tmp_path))
    command = EntryPoint("validate", "framework.cli.validate:validate", "kmr.commands")
    assert run_command(["validate", "checked_strategies:good", "--engine", "spark"], [command]) == 0
    shown = capsys.readouterr().out
    assert "reduce-2    ClickHouseWriter: exactly once, by one token per micro-batch" in shown
    assert "reduce-1    differs: Aggregate: one result for each micro-batch" in shown
    assert run_command(["validate", "checked_strategies:bad", "--engine", "spark"], [command]) == 1
    assert "strategy    CANNOT BE: delivery='at-most-once'" in capsys.readouterr().out
