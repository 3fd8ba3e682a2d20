"""What a query costs before its first record: processes that only plan import little, and no archives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from framework.spark.home import lean_home

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
        pytest.param("import framework, framework.sinks", id="the package"),
        pytest.param("import framework.spark.fused", id="a source is made"),
        pytest.param(
            "import framework.spark.fused_reader, framework.spark.plan", id="a query is planned"
        ),
    ],
)
def test_a_process_that_does_not_read_imports_neither_compiler_nor_clients(statement: str) -> None:
    assert imported_by(statement) == set()


def test_every_name_of_the_package_can_be_imported() -> None:
    import framework
    import framework.sinks

    for package in (framework, framework.sinks):
        assert set(package.__all__) <= set(dir(package))
        for name in package.__all__:
            assert getattr(package, name) is not None
        with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
            package.Nothing  # noqa: B018


def test_a_lean_home_has_the_distribution_but_no_archives_of_pyspark(tmp_path: Path) -> None:
    package = Path(pyspark.__file__).parent
    home = lean_home(package, {}, cache=tmp_path)
    assert home is not None
    assert (home / "bin" / "spark-submit").samefile(package / "bin" / "spark-submit")
    assert (home / "jars").samefile(package / "jars")
    assert not (home / "python").exists()


def test_a_lean_home_is_mended_when_the_package_is_not_where_it_was(tmp_path: Path) -> None:
    package = Path(pyspark.__file__).parent
    home = lean_home(package, {}, cache=tmp_path)
    assert home is not None
    (home / "jars").unlink()
    (home / "jars").symlink_to(tmp_path / "gone")
    assert lean_home(package, {}, cache=tmp_path) == home
    assert (home / "jars").samefile(package / "jars")


def test_a_spark_home_that_the_user_chose_is_kept(tmp_path: Path) -> None:
    package = Path(pyspark.__file__).parent
    assert lean_home(package, {"SPARK_HOME": "/opt/spark"}, cache=tmp_path) is None
    assert lean_home(tmp_path, {}, cache=tmp_path) is None  # no distribution
    (tmp_path / "file").touch()
    assert lean_home(package, {}, cache=tmp_path / "file") is None  # no place for it


SESSION = """
import os, pyarrow
from framework.spark.session import open_session

def where(batches):
    import pyspark
    for _ in batches:
        yield pyarrow.RecordBatch.from_pydict({"file": [pyspark.__file__]})

session = open_session("local[1]", planning_only=True)
assert "SPARK_HOME" not in os.environ
print(session.conf.get("spark.driver.defaultJavaOptions"))
print(session.range(1).mapInArrow(where, "file string").collect()[0].file)
session.stop()
"""


@pytest.mark.slow
def test_tasks_of_a_local_session_import_pyspark_from_where_it_is_installed() -> None:
    environ = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    done = subprocess.run(
        [sys.executable, "-c", SESSION], env=environ, stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout.splitlines() == ["-XX:TieredStopAtLevel=1", pyspark.__file__]
