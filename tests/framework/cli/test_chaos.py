"""`kmr chaos`: what it prints, what it refuses, and what it leaves behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kmr.cli.chaos import chaos
from kmr.errors import SettingsError, StrategyError

STRATEGIES = "tests.framework.chaos.strategies"
ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_a_strategy_keeps_its_promise_through_kills(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = tmp_path / "orders.jsonl"
    lines = [f'{{"customer": "c{at}", "amount": {at}}}' for at in range(20)]
    records.write_text("\n".join([*lines, "broken"]))
    code = chaos(
        f"{STRATEGIES}:ORDERS",
        records=str(records),
        faults=1,
        workers=2,
        partitions=2,
        seed=1,
        directory=tmp_path / "run",
    )
    out = capsys.readouterr().out
    assert code == 0, out
    assert "chaos: 21 records become 10 rows; 10 filtered, 1 failed" in out
    assert "rows: ClickHouse, table orders" in out
    assert "reduce_err: not counted, it cannot be read" in out
    assert re.search(r"kill-everything: broker, clickhouse and every worker; recovered after", out)
    assert "1 fault, 4 processes killed" in out
    assert "; 0 lost, 0 doubled." in out
    assert out.splitlines()[-2] == "exactly-once: kept."
    assert out.splitlines()[-1] == f"Data and logs: {tmp_path / 'run'}"
    assert {path.name for path in (tmp_path / "run" / "logs").iterdir()} == {
        *("broker.log", "clickhouse.log", "worker-1.log", "worker-2.log")
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"faults": 0}, "--faults, --workers and --partitions must be at least 1"),
        ({"workers": 0}, "--faults, --workers and --partitions must be at least 1"),
        ({"rate": 0.0}, "--rate above 0"),
        ({"duration": "soon"}, "--duration soon: "),
        ({"duration": "0s"}, "--duration 0s: it must be above 0"),
        ({"records": "missing.jsonl"}, "--records missing.jsonl: No such file"),
        ({"directory": ROOT}, "is not empty"),
    ],
)
def test_a_wrong_argument_has_one_clear_message(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        chaos(f"{STRATEGIES}:ORDERS", **arguments)


def test_records_that_do_not_fit_are_refused_before_anything_starts(tmp_path: Path) -> None:
    records = tmp_path / "records"
    records.write_text("no order\n")
    with pytest.raises(StrategyError, match="no record of topic chaos becomes a row"):
        chaos(f"{STRATEGIES}:ORDERS", records=str(records), directory=tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.slow
def test_a_signal_ends_every_process_of_the_run_and_leaves_no_directory(tmp_path: Path) -> None:
    command = (
        "import sys; from kmr.cli.chaos import chaos; from kmr.cli.root import run_command; "
        "from importlib.metadata import EntryPoint; "
        "sys.exit(run_command(sys.argv[1:], [EntryPoint('chaos', 'kmr.cli.chaos:chaos', 'kmr.commands')]))"
    )
    records = tmp_path / "records"
    records.write_text('{"customer": "a", "amount": 20}\n')
    with subprocess.Popen(
        [
            *(sys.executable, "-c", command, "chaos", f"{STRATEGIES}:TOPIC", "--workers", "1"),
            *("--records", str(records), "--partitions", "1"),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "1 worker shares 1 partition" in line:
                break
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
    assert process.returncode == 128 + signal.SIGINT, rest
    assert len(children) == 2
    for child in children:
        with pytest.raises(ProcessLookupError):
            os.kill(int(child), 0)
    assert [path.name for path in tmp_path.iterdir()] == ["records"]
