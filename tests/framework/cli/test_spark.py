"""kmr spark: the package for spark-submit, and compacting files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kmr.sinks.parquet.files import SUFFIX
from kmr.sinks.planning import Span

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.framework.cli.conftest import Output


def test_a_package_has_the_command_that_runs_it(folder: Path, kmr: Callable[..., Output]) -> None:
    output = kmr("spark", "package", "flow:bare", "--output", str(folder / "out"))
    assert output.code == 0, output.err
    assert "(flow.py)" in output.out
    assert "spark-submit" in output.out.splitlines()[-1]
    assert {path.name for path in (folder / "out").iterdir()} >= {"main.py"}


def test_a_package_that_cannot_be_written_is_one_message(
    folder: Path, kmr: Callable[..., Output]
) -> None:
    (folder / "file").touch()
    output = kmr("spark", "package", "flow:bare", "--output", str(folder / "file"))
    assert output.code == 1
    assert output.err.startswith(f"kmr: cannot write the package to {folder / 'file'}: ")
    assert output.err.count("\n") == 1


def test_compacting_prints_the_number_of_files(tmp_path: Path, kmr: Callable[..., Output]) -> None:
    for first in range(0, 12, 3):
        rows = pa.table({"offset": range(first, first + 3)})
        pq.write_table(rows, tmp_path / f"{Span('g', 't', 0, first, first + 2)}{SUFFIX}")
    compact = ("spark", "compact", str(tmp_path), "--min-age", "0s")
    assert "4 files would become 2" in kmr(*compact, "--dry-run").out
    assert "4 files became 2" in kmr(*compact).out
    wrong = kmr(*compact, "--target-size", "large")
    assert wrong.code == 2
    assert wrong.err.startswith("kmr: --target-size must be a number of bytes")
