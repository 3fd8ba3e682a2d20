"""Where each reducer runs, and what `kmr validate --engine spark` says about it."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

import pytest

from kmr import Aggregate, Batcher, Strategy, map_batch
from kmr.cli.root import run_command
from kmr.errors import StrategyError
from kmr.reducers.sink import NEW, Capabilities, Sink, Write
from kmr.sinks import ClickHouseWriter, KafkaWriter, PostgresWriter, StreamWriter
from kmr.sinks.parquet.writer import ParquetWriter
from kmr.sinks.spark.writer import SparkWriter
from kmr.spark.engine.aggregation import FinalAggregate, PartialAggregate
from kmr.spark.engine.placement import examine_strategy, place_reducers, require_runnable

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from kmr.record import Rows

STRATEGIES = """
from kmr import Aggregate, Strategy, map_batch
from kmr.sinks import ClickHouseWriter

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
    found = examine_strategy(Strategy(same, list(reducers), **strategy))
    return "\n".join(
        f"{finding.level}: {finding.text}" for finding in found if finding.stage == stage
    )


COUNT = Aggregate(["k"], {"n": ("*", "count")})


@pytest.mark.parametrize(
    ("reducer", "guarantee"),
    [
        (ClickHouseWriter("t"), "exactly once, by one token per range of offsets"),
        (ParquetWriter("p"), "exactly once, by one file per range of offsets"),
        (SparkWriter(path="p", format="orc"), "exactly once, by a directory per micro-batch"),
        (SparkWriter(path="p", format="delta"), "exactly once, by txnAppId and txnVersion"),
        (SparkWriter(table="t", changes=True, key=["id"]), "exactly once in Delta, by a MERGE"),
        (SparkWriter(path="p", format="iceberg"), "Spark appends to iceberg, at least once"),
        (SparkWriter(table="t"), "exactly once if the table is made of Parquet files"),
        (SparkWriter(transform=print), "the transform writes, at least once"),
        (KafkaWriter("t"), "at least once: a task or micro-batch that is repeated"),
    ],
)
def test_every_sink_has_its_guarantee(reducer: Any, guarantee: str) -> None:
    assert f"guarantee: {type(reducer).__name__}: {guarantee}" in texts(reducer)


def test_a_writer_of_files_runs_in_tasks_and_one_that_needs_the_session_in_the_driver() -> None:
    assert "the driver runs the strategy" not in texts(ParquetWriter("p"))
    by_spark = texts(SparkWriter(path="p", transform=lambda frame: frame))
    assert "from here on the driver runs the strategy" in by_spark
    assert "master= and settings= have no effect" in by_spark
    assert "flushes every" not in by_spark


def test_the_driver_runs_reducers_that_need_all_rows_or_the_session_and_those_after_them() -> None:
    clickhouse, files = ClickHouseWriter("t"), ParquetWriter("out")
    table = SparkWriter(table="t")
    assert place_reducers(Strategy(same, [files]).stages) == ({"reduce-1": files}, {})
    tasks, driver = place_reducers(Strategy(same, [COUNT, clickhouse]).stages)
    assert {name: type(half) for name, half in tasks.items()} == {"reduce-1": PartialAggregate}
    assert type(driver["reduce-1"]) is FinalAggregate
    assert driver["reduce-2"] is clickhouse
    assert place_reducers(Strategy(same, [table]).stages) == ({}, {"reduce-1": table})


class ThirdPartySink(Sink):
    """A sink of a user, which the engine knows only by its attributes."""

    def __init__(self, *, needs_session: bool = False) -> None:
        super().__init__(max_rows=5)
        self.capabilities = Capabilities(
            names_ranges=True,
            needs_session=needs_session,
            forwards=True,
            on_spark="exactly once, by names",
            errors_on_spark="exactly once, by names of errors",
            difference_on_spark="differs",
        )

    def add(self, rows: Rows) -> None:
        raise NotImplementedError

    def flush(self, write: Write = NEW) -> None:
        raise NotImplementedError

    def reset(self) -> None:
        """Nothing is held."""


def test_the_attributes_of_a_third_party_sink_decide_its_place_and_its_findings() -> None:
    in_tasks, in_driver = ThirdPartySink(), ThirdPartySink(needs_session=True)
    assert place_reducers(Strategy(same, [in_tasks]).stages) == ({"reduce-1": in_tasks}, {})
    assert place_reducers(Strategy(same, [in_tasks, in_driver]).stages) == (
        {"reduce-1": in_tasks},
        {"reduce-2": in_driver},
    )
    said = texts(in_tasks, in_driver)
    assert "guarantee: ThirdPartySink: exactly once, by names\n" in said
    assert "difference: ThirdPartySink: differs" in said
    assert "at the end of a micro-batch; never at max_age" in said  # its max_rows has no effect
    said = texts(in_tasks, in_driver, stage="reduce-2")
    assert "guarantee: ThirdPartySink: exactly once, by names\n" in said
    assert "from here on the driver runs the strategy" in said
    said = texts(COUNT, in_driver, stage="reduce-err", reduce_err=in_tasks)
    assert "exactly once, by names of errors; runs in the driver" in said


def test_an_aggregate_and_the_reducers_after_it_run_once_for_a_micro_batch() -> None:
    chain = (COUNT, ClickHouseWriter("t"))
    assert "one result for each micro-batch, with all of its partitions" in texts(*chain)
    assert texts(*chain, stage="reduce-2") == (
        "guarantee: ClickHouseWriter: exactly once, by one token per range of offsets; "
        "in the driver, per micro-batch"
    )
    assert "executor" in texts(StreamWriter("stdout"))


def test_limits_have_an_effect_only_without_names_of_ranges() -> None:
    assert "at the end of a micro-batch; never" in texts(ClickHouseWriter("t"))
    assert "at the end of a micro-batch, and at max_rows" in texts(Batcher(), ClickHouseWriter("t"))


def test_at_most_once_is_not_supported() -> None:
    strategy = Strategy(same, [ClickHouseWriter("t")], delivery="at-most-once")
    with pytest.raises(
        StrategyError, match="strategy cannot run on Spark: delivery='at-most-once'"
    ):
        require_runnable(strategy)
    require_runnable(Strategy(same, [ClickHouseWriter("t")]))


def test_transactions_are_refused_unless_the_strategy_is_at_least_once() -> None:
    writer = KafkaWriter("t", delivery="exactly-once")
    found = texts(writer, stage="strategy")
    assert found.startswith("error: delivery='exactly-once' of KafkaWriter: its transactions")
    with pytest.raises(StrategyError, match="cannot run on Spark"):
        require_runnable(Strategy(same, [writer]))
    require_runnable(Strategy(same, [writer], delivery="at-least-once"))


def test_the_error_sink_runs_in_the_driver_or_is_missing() -> None:
    assert "stops the query" in texts(COUNT, ClickHouseWriter("t"), stage="reduce-err")
    found = texts(
        COUNT, ClickHouseWriter("t"), stage="reduce-err", reduce_err=StreamWriter("stderr")
    )
    assert "StreamWriter: at least once; runs in the driver" in found


def test_validate_prints_the_guarantees_and_fails_for_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "checked_strategies.py").write_text(STRATEGIES)
    monkeypatch.syspath_prepend(str(tmp_path))
    command = EntryPoint("validate", "kmr.cli.validate:validate", "kmr.commands")
    assert run_command(["validate", "checked_strategies:good", "--engine", "spark"], [command]) == 0
    shown = capsys.readouterr().out
    assert (
        "reduce-2    ClickHouseWriter: exactly once, by one token per range of offsets; in the driver"
        in shown
    )
    assert "reduce-1    differs: Aggregate: one result for each micro-batch" in shown
    assert run_command(["validate", "checked_strategies:bad", "--engine", "spark"], [command]) == 1
    assert "strategy    CANNOT BE: delivery='at-most-once'" in capsys.readouterr().out


@pytest.mark.parametrize(
    "writer",
    [PostgresWriter("t", key=["id"], changes=True), KafkaWriter("t", key="id", changes=True)],
)
def test_changes_that_need_their_order_are_refused(writer: Sink) -> None:
    strategy = Strategy(same, [writer])
    with pytest.raises(StrategyError, match="needs changes in their order"):
        require_runnable(strategy)
    require_runnable(Strategy(same, [ClickHouseWriter("t", key=["id"], changes=True)]))
