"""Running `kmr` inside the test's process, and strategies to run it on."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, NamedTuple

import pytest

from kmr.cli.root import GROUP, run_command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STRATEGY = """
import sys

import msgspec
import pyarrow as pa
from kmr import Json, Text
from kmr.reducers.collect import Batcher, Collect
from kmr.mapping.functions import map_batch, map_record
from kmr.sinks import KafkaWriter
from kmr.sinks.stream import StreamWriter
from kmr.delivery.error_limit import ErrorLimit
from kmr.strategy import Strategy


@map_record(schema=pa.schema([("a", pa.int64())]))
async def parse(record):
    return {"a": 1}


@map_batch
def passed(batch):
    return batch


def nothing(table):
    return None


strategy = Strategy(
    map=parse,
    reduce=[Batcher(max_rows=500_000, max_bytes=None), Collect(nothing, on_shutdown="drop")],
    reduce_err=StreamWriter(sys.stderr, max_rows=None, max_bytes=None),
    err_limit=ErrorLimit(100),
)
class Hit(msgspec.Struct):
    path: str
    status: int


typed = Strategy(value=Json(Hit), key=Text(), reduce=[Collect(nothing)], reduce_err=StreamWriter(sys.stderr))
bare = Strategy(map=passed, reduce=[Collect(nothing)])
loop = Strategy(map=passed, reduce=[KafkaWriter("orders")])
nameless = Strategy(map=lambda record: {"n": 1}, reduce=[Collect(lambda table: None)])
"""


class Output(NamedTuple):
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str


@pytest.fixture
def kmr(capfd: pytest.CaptureFixture[str]) -> Callable[..., Output]:
    """Runs one command line."""

    def run(*arguments: str) -> Output:
        capfd.readouterr()
        code = run_command(arguments, entry_points(group=GROUP))
        return Output(code, *capfd.readouterr())

    return run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a module `flow` that has strategies."""
    (tmp_path / "flow.py").write_text(STRATEGY, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KMR_DEBUG", "FORCE_COLOR", "KMR_GROUP", "KMR_TOPICS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
