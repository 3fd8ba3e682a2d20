"""Imports: processes that only plan load no compiler and no client of a sink; every public name exists."""

from __future__ import annotations

import subprocess
import sys

import pytest

import kmr
import kmr.sinks
import kmr.spark

HEAVY = ("numba", "clickhouse_connect", "uvicorn")


def imported_by(statement: str) -> set[str]:
    code = f"{statement}; import sys; print(*set({HEAVY}) & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("import kmr, kmr.sinks", id="the package"),
        pytest.param("import kmr.spark.engine.strategy_source", id="a source is made"),
        pytest.param(
            "import kmr.spark.reader, kmr.spark.engine.strategy_source, kmr.spark.engine.chunks",
            id="a query is planned",
        ),
    ],
)
def test_a_process_that_only_plans_imports_neither_compiler_nor_clients(statement: str) -> None:
    assert imported_by(statement) == set()


WITHOUT_PYSPARK = """
import sys
sys.modules["pyspark"] = None
import kmr.cli.check, kmr.cli.run, kmr.cli.spark, kmr.cli.validate
import kmr.spark.engine.engine_settings, kmr.spark.engine.placement, kmr.spark.shipping
from kmr.sinks import SparkWriter
SparkWriter(table="t")
try:
    from kmr.spark import SparkEngine
except Exception as error:
    print(f"{type(error).__name__}: {error}")
try:
    SparkWriter(table="t").session.acquire()
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""


def test_without_pyspark_only_its_users_fail_and_say_how_to_install_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PYSPARK], stdout=subprocess.PIPE, text=True, check=True
    )
    source, writer = done.stdout.splitlines()
    assert source.startswith("MissingExtra: kmr.spark.SparkEngine needs pyspark: pip install ")
    assert writer.startswith("MissingExtra: Spark needs pyspark: pip install ")


def test_every_public_name_can_be_imported_and_no_other() -> None:
    for package, example in (
        (kmr, "Strategy"),
        (kmr.sinks, "SparkWriter"),
        (kmr.spark, "SparkEngine"),
    ):
        names = [name for name in dir(package) if not name.startswith("_")]
        assert example in names
        for name in names:
            assert getattr(package, name) is not None
        with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
            package.Nothing  # noqa: B018
