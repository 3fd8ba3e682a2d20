"""`kmr simulate`: what it prints, writes and repeats."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kmr.cli.simulate import simulate
from kmr.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

STRATEGY = """
import itertools, json
import pyarrow as pa
from kmr import Collect, Record, Strategy, map_record
from kmr.sinks import ClickHouseWriter
from kmr.testing import Journal, MemoryWriter

numbers = itertools.count()

@map_record
def parse(record: Record) -> dict:
    return {"partition": record.partition, "offset": record.offset, **json.loads(record.value)}

def number(rows: pa.Table) -> pa.Table:
    return rows.append_column("number", pa.array([next(numbers) for _ in range(len(rows))]))

errors = MemoryWriter(Journal(), max_age=1.0)
right = Strategy(parse, [ClickHouseWriter("hits")], reduce_err=errors)
wrong = Strategy(parse, [Collect(number), ClickHouseWriter("hits")], reduce_err=errors)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "simulated_hits.py").write_text(STRATEGY)
    return "simulated_hits"


def test_a_strategy_that_is_right_passes_with_generated_records(
    module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(f"{module}:right", schedules=10) == 0
    assert capsys.readouterr().out.startswith("10 schedules of up to 32 records, ")


def test_a_schedule_that_breaks_a_rule_is_written_replayed_and_drawn(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = tmp_path / "hits.jsonl"
    records.write_text("".join(f'{{"id": {number}}}\n' for number in range(20)))
    saved = tmp_path / "kmr-simulation.json"
    assert simulate(f"{module}:wrong", records=str(records), schedules=100) == 1
    out = capsys.readouterr().out
    assert out.startswith("a range that is written again has other rows")
    assert f"Written to {saved.name}" in out
    assert {"seed", "members", "events"} <= json.loads(saved.read_text()).keys()
    for trace, words in (("text", "is killed"), ("mermaid", "sequenceDiagram")):
        assert simulate(f"{module}:wrong", records=str(records), replay=saved, trace=trace) == 1  # type: ignore[arg-type]
        out = capsys.readouterr().out
        assert words in out
        assert "BROKEN: a range that is written again has other rows" in out


def test_any_number_of_processes_finds_the_same_first_schedule(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = tmp_path / "hits.jsonl"
    records.write_text("".join(f'{{"id": {number}}}\n' for number in range(20)))
    one, many = tmp_path / "one.json", tmp_path / "many.json"
    strategy = f"{module}:wrong"
    assert simulate(strategy, records=str(records), schedules=100, jobs=1, save=one) == 1
    first = capsys.readouterr().out.splitlines()[:-1]
    assert simulate(strategy, records=str(records), schedules=251, jobs=2, save=many) == 1
    assert capsys.readouterr().out.splitlines()[:-1] == first
    assert many.read_bytes() == one.read_bytes()


def test_files_that_cannot_be_used_are_named(module: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"--records none\.jsonl: No such file"):
        simulate(f"{module}:right", records="none.jsonl")
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    with pytest.raises(
        SettingsError, match=r"--replay .*broken\.json: Object missing required field"
    ):
        simulate(f"{module}:right", replay=broken)
