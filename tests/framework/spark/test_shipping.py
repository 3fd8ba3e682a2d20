"""The modules of a strategy that executors do not have."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from kmr import Json, Lookup, Record, Strategy
from kmr.errors import StrategyError
from kmr.sinks import StreamWriter
from kmr.spark.shipping import pack_modules, strategy_modules, write_package

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STRATEGY = """
from kmr import Strategy, map_batch
from kmr.sinks import StreamWriter
from shipped_package.helper import same

strategy = Strategy(map_batch(same), [StreamWriter("stdout")])
"""


@pytest.fixture
def strategy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    root = tmp_path / "code"
    (root / "shipped_package").mkdir(parents=True)
    (root / "shipped_package" / "__init__.py").touch()
    (root / "shipped_package" / "helper.py").write_text("def same(batch):\n    return batch\n")
    (root / "shipped_package" / "unused.py").touch()
    (root / "shipped_strategy.py").write_text(STRATEGY)
    monkeypatch.syspath_prepend(str(root))
    yield importlib.import_module("shipped_strategy").strategy
    for name in [name for name in sys.modules if name.startswith("shipped_")]:
        del sys.modules[name]


def test_only_imported_modules_of_the_strategys_directory_are_shipped(strategy: Any) -> None:
    assert set(strategy_modules(strategy)) == {
        "shipped_package/__init__.py",
        "shipped_package/helper.py",
        "shipped_strategy.py",
    }


def test_the_modules_of_the_types_of_values_and_tables_are_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shipped_types.py").write_text(
        "import msgspec\nclass Row(msgspec.Struct):\n    id: int\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    row = importlib.import_module("shipped_types").Row
    plain = Strategy(value=Json(row), reduce=StreamWriter("stdout"))
    assert set(strategy_modules(plain)) == {"shipped_types.py"}
    tables = {"rows": Lookup("rows", key="id", value=Json(row))}
    joined = Strategy(map=_joined, reduce=StreamWriter("stdout"), tables=tables)
    assert "shipped_types.py" in strategy_modules(joined)
    del sys.modules["shipped_types"]


def _joined(record: Record, rows: Any) -> None:
    return None


def test_a_strategy_that_cannot_be_pickled_is_one_message() -> None:
    with pytest.raises(StrategyError, match="cannot be sent to Spark's executors: "):
        strategy_modules(Strategy(map=_with(threading.Lock()), reduce=StreamWriter("stdout")))


def _with(lock: threading.Lock) -> Any:
    def mapped(record: Record) -> None:
        with lock:
            pass

    return mapped


def test_the_same_files_are_the_same_archive(strategy: Any, tmp_path: Path) -> None:
    files = strategy_modules(strategy)
    one, other = pack_modules(files, tmp_path / "a.zip"), pack_modules(files, tmp_path / "b.zip")
    assert one.read_bytes() == other.read_bytes()


def test_a_package_has_our_code_the_strategys_modules_and_a_program(
    strategy: Any, tmp_path: Path
) -> None:
    written = write_package(strategy, tmp_path / "out")
    names = zipfile.ZipFile(written.modules).namelist()
    assert "shipped_package/helper.py" in names
    assert {
        "kmr/spark/engine/task.py",
        "kmr/sql/deliveries.sql",
        "kmr/broker/__init__.py",
    } <= set(names)
    assert {name.partition("/")[0] for name in names} == {
        "kmr",
        "shipped_package",
        "shipped_strategy.py",
    }
    command = written.command("m:s", "spark://h:7077", ["--topic", "a b"])
    assert command.startswith("spark-submit --master spark://h:7077 --py-files ")
    assert command.endswith("main.py m:s --engine spark --topic 'a b'")


IN_ARCHIVE = """
import sys
sys.path.insert(0, sys.argv[1])
import kmr, shipped_strategy
from kmr.spark import EngineSettings
assert kmr.__file__.startswith(sys.argv[1])
print(type(shipped_strategy.strategy).__name__, EngineSettings.__name__)
"""


def test_a_strategy_runs_out_of_the_archive(strategy: Any, tmp_path: Path) -> None:
    written = write_package(strategy, tmp_path / "out")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", IN_ARCHIVE, str(written.modules)],
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["Strategy", "EngineSettings"]
