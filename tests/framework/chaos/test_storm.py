"""A strategy in real processes: what is broken on purpose is found, and which faults are possible."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from anyio import to_thread

from kmr.chaos.records import generate
from kmr.chaos.storm import Storm, carry_out, possible_faults
from kmr.errors import SettingsError, StrategyError
from kmr.sinks import ParquetWriter
from tests.framework.chaos import strategies
from tests.framework.chaos.strategies import LOSING, ORDERS, STREAM, LosingWriter

if TYPE_CHECKING:
    from pathlib import Path

    from kmr import Strategy

HERE = "tests.framework.chaos.strategies"


def storm_of(strategy: Strategy, name: str, **shape: int) -> Storm:
    return Storm(f"{HERE}:{name}", {"t": generate(strategy, "t", 1)}, **shape)


def test_only_faults_of_processes_that_are_there_strike(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = possible_faults(storm_of(ORDERS, "ORDERS"), ORDERS)
    assert {"kill-clickhouse", "suspend-clickhouse", "pause-worker"} <= everything.keys()
    alone = possible_faults(storm_of(LOSING, "LOSING", workers=1), LOSING)
    assert not alone.keys() & {"kill-clickhouse", "pause-worker", "fewer-and-more"}
    assert {"kill-worker", "kill-broker"} <= alone.keys()
    monkeypatch.setenv("KMR_CLICKHOUSE_URL", "http://there.already:8123")
    assert "kill-clickhouse" not in possible_faults(storm_of(ORDERS, "ORDERS"), ORDERS)


def test_a_sink_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        StrategyError, match="StreamWriter: kmr chaos cannot read what it has written"
    ):
        carry_out(storm_of(STREAM, "STREAM"), STREAM, tmp_path, print)


@pytest.mark.parametrize("old", ["files", "errors"])
def test_rows_and_letters_of_an_earlier_storm_are_refused(tmp_path: Path, old: str) -> None:
    writers = {name: ParquetWriter(tmp_path / name) for name in ("files", "errors")}
    strategy = replace(LOSING, reduce=[writers["files"]], reduce_err=writers["errors"])
    (tmp_path / old).mkdir()
    rows = pa.table({"topic": ["t"] * 3, "partition": [0] * 3, "offset": [1, 2, 2]})
    pq.write_table(rows, tmp_path / old / "before.parquet")
    with pytest.raises(
        SettingsError, match=f"{old} has 3 rows of t: they would count too; empty it, or choose"
    ):
        carry_out(storm_of(strategy, "LOSING", workers=1), strategy, tmp_path / "storm", print)


@pytest.mark.slow
async def test_a_sink_that_loses_rows_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tmp_path / "files"
    monkeypatch.setenv("CHAOS_TEST_FILES", str(files))
    losing = replace(LOSING, reduce=[LosingWriter(files)])
    # seed 5: the broker is killed
    storm = storm_of(losing, "LOSING", workers=1, partitions=2, faults=1, seed=5)
    said: list[str] = []
    outcome = await to_thread.run_sync(partial(carry_out, storm, losing, tmp_path, said.append))
    assert not outcome.ok
    assert (outcome.given_up, outcome.died, outcome.struck) == ("", (), 1), said
    (offence,) = outcome.verdicts[""].offences
    assert offence.what.startswith("records are lost")
    assert offence.count == outcome.verdicts[""].lost > 0
    assert offence.examples[0] in ("t[0] offset 7", "t[0] offset 57")  # 7 may be a broken value
    assert outcome.verdicts[""].doubled == 0
    assert outcome.verdicts[""].failed > 0
    logs = {path.name for path in (tmp_path / "logs").iterdir()}
    assert logs == {"broker.log", "worker-1.log"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("WINDOWS", None),
        ("LETTERS_LOST", "records are lost: neither in the sink nor in reduce_err"),
        ("LETTERS_DOUBLED", "a window's row has letters that are no copies"),
    ],
)
async def test_each_row_of_a_window_is_in_the_sink_or_a_letter(
    name: str, fault: str | None, tmp_path: Path
) -> None:
    strategy = getattr(strategies, name)
    # seed 1: broker, ClickHouse and workers are killed
    storm = storm_of(strategy, name, workers=1, partitions=2, faults=1, seed=1)
    outcome = await to_thread.run_sync(partial(carry_out, storm, strategy, tmp_path, print))
    verdict = outcome.verdicts[""]
    assert [offence.what for offence in verdict.offences] == ([fault] if fault else [])
    assert verdict.refused > 0
    assert verdict.delivered > 0
    assert (outcome.given_up, outcome.died, outcome.struck) == ("", (), 1)
