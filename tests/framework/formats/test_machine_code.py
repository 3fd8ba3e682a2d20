"""Machine code: compiled once, kept in a file, and compiled anew where the file is of no use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kmr.formats import machine_code
from kmr.formats.machine_code import BYTES, INT64_TABLE, INT64S, NUMBER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kmr.formats.machine_code import Kernel

SIGNATURE = {"add": (INT64_TABLE, NUMBER, INT64S)}
SOURCE = """
def add(table, number, sums):
    for row in range(table.shape[0]):
        for column in range(table.shape[1]):
            sums[row] += table[row, column] * number
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Kernel]:
    """Load the function anew."""
    package = tmp_path / f"package_of_{tmp_path.name}"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "sums.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))

    return lambda: machine_code.load(f"{package.name}.sums", SIGNATURE)["add"]


@pytest.fixture
def add(load: Callable[[], Kernel]) -> Callable[[], list[int]]:
    """Load the function anew and call it."""

    def call() -> list[int]:
        sums = np.zeros(2, np.int64)
        load()(np.arange(6).reshape(2, 3), 10, sums)
        result: list[int] = sums.tolist()
        return result

    return call


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    compiled: list[str] = []
    compile_now = machine_code._compile

    def note(module: str, signatures: Any) -> bytes:
        compiled.append(module)
        return compile_now(module, signatures)

    monkeypatch.setattr(machine_code, "_compile", note)
    return compiled


def test_code_is_compiled_once_and_again_if_its_file_is_damaged(
    add: Callable[[], list[int]], compilations: list[str], tmp_path: Path
) -> None:
    assert add() == add() == [30, 120]
    assert len(compilations) == 1
    (file,) = (tmp_path / "cache").iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    assert add() == [30, 120]
    assert len(compilations) == 2


def test_without_a_writable_cache_the_code_is_compiled_in_memory(
    add: Callable[[], list[int]],
    compilations: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    nowhere = tmp_path / "file"
    nowhere.write_text("where a directory should be")
    monkeypatch.setattr(machine_code, "_directories", lambda: iter([nowhere, nowhere / "below"]))
    assert add() == [30, 120]
    assert len(compilations) == 1


@pytest.mark.parametrize(
    "table",
    [
        np.zeros((2, 2), np.int32),
        np.zeros((2, 2), np.float64),
        np.zeros((2, 2), ">i8"),
        np.zeros(2, np.int64),
        np.zeros((2, 3), np.int64).T,
        np.zeros((4, 3), np.int64)[::2],
    ],
)
def test_an_array_of_another_kind_is_refused(load: Callable[[], Kernel], table: Any) -> None:
    with pytest.raises(TypeError, match="argument 0: not a int64 array in C's order"):
        load()(table, 1, np.zeros(2, np.int64))


@pytest.mark.parametrize("sums", [None, [0, 0], b"bytes", np.zeros(2, np.int64).view(np.recarray)])
def test_what_is_no_array_is_refused(load: Callable[[], Kernel], sums: Any) -> None:
    with pytest.raises(TypeError, match="argument 2: not an array"):
        load()(np.zeros((2, 3), np.int64), 1, sums)


def test_code_that_needs_more_than_the_c_library_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "printing.py").write_text("def show(data):\n    print(data[0])\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match="the code needs functions of numba"):
        machine_code._compile("printing", {"show": (BYTES,)})
