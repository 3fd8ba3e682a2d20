"""Machine code: compiled once, kept in a file, and compiled anew where the file is of no use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kmr.formats import machine_code
from kmr.formats.machine_code import BYTES, INT64_TABLE, INT64S, NUMBER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

SIGNATURE = {"add": (INT64_TABLE, NUMBER, INT64S)}
SOURCE = """
def add(table, number, sums):
    for row in range(table.shape[0]):
        for column in range(table.shape[1]):
            sums[row] += table[row, column] * number
"""


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    """Load the function anew and call it."""
    package = tmp_path / f"package_of_{tmp_path.name}"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "sums.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))

    def call() -> list[int]:
        sums = np.zeros(2, np.int64)
        loaded = machine_code.load(f"{package.name}.sums", SIGNATURE)
        loaded["add"](np.arange(6).reshape(2, 3), 10, sums)
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
    "arguments",
    [
        (np.zeros((2, 2), np.int32), 1, np.zeros(2, np.int64)),
        (np.zeros(2, np.int64), 1, np.zeros(2, np.int64)),
        (np.zeros((2, 3), np.int64).T, 1, np.zeros(2, np.int64)),
    ],
)
def test_an_array_of_another_kind_is_refused(arguments: Sequence[Any]) -> None:
    with pytest.raises(TypeError, match="argument 0: not a int64 array"):
        machine_code.Kernel("add", SIGNATURE["add"], 0)(*arguments)


def test_code_that_needs_more_than_the_c_library_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "printing.py").write_text("def show(data):\n    print(data[0])\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match="the code needs functions of numba"):
        machine_code._compile("printing", {"show": (BYTES,)})
