"""The compiled code: when it is compiled, where it is cached, and that it stays inside its arrays."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from kmr.formats import kernels
from kmr.formats.batch_decoder import BatchDecoder, warm_up
from kmr.formats.columns import Row

from .encoding import GZIP, BatchSpec

if TYPE_CHECKING:
    from pathlib import Path


def test_warming_up_compiles_all_kernels() -> None:
    warm_up()
    raw = BatchSpec(
        base=0, last=1, rows=[Row(0, 0, 0, None, b"v", [("k", None)])], codec=GZIP
    ).encode()
    before = signatures()
    batch = BatchDecoder().batch("topic", 3, raw, 0)
    assert batch is not None
    batch.records.validate(full=True)
    assert signatures() == before


def signatures() -> dict[str, list[Any]]:
    return {
        name: list(function.signatures)
        for name, function in vars(kernels).items()
        if hasattr(function, "signatures")
    }


def test_without_a_writable_cache_the_code_is_compiled_in_memory(tmp_path: Path) -> None:
    nowhere = tmp_path / "__pycache__"
    nowhere.write_text("a file, where a directory should be")
    (tmp_path / "doubled.py").write_text(
        "from kmr.formats.kernels import compiled\n@compiled\ndef double(x):\n    return 2 * x\n"
    )
    environment = {**os.environ, "HOME": str(nowhere), "XDG_CACHE_HOME": str(nowhere)}
    environment.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-c", "import doubled; print(doubled.double(21), doubled.double._cache)"],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("42 <numba.core.caching.NullCache")
    assert done.stderr == ""


FUZZ = """
import random, sys
from kmr.formats.batch_decoder import BatchDecoder
from kmr.errors import CorruptRecords
raw = bytes.fromhex(sys.argv[1])
choose = random.Random(1)
for _ in range(20000):
    damaged = bytearray(raw)
    for _ in range(choose.randint(1, 4)):
        damaged[choose.randrange(len(raw))] = choose.randrange(256)
    del damaged[choose.choice((len(raw), len(raw), choose.randrange(len(raw)))):]
    try:
        batch = BatchDecoder(check_crcs=False).batch("topic", 0, bytes(damaged), 0)
        if batch is not None:
            batch.records.validate(full=True)
    except CorruptRecords:
        pass
print("survived")
"""


@pytest.mark.slow
def test_the_compiled_code_stays_inside_its_arrays(tmp_path: Path) -> None:
    """With numba's own bounds checks, an access outside raises IndexError and fails the process."""
    rows = [Row(n, n, 0, b"key", b"v" * n, [("h", b"x"), ("i", None)]) for n in range(5)]
    raw = (
        BatchSpec(base=0, last=4, rows=rows).encode()
        + BatchSpec(base=5, last=5, rows=[Row(5, 1, 0, None, None)]).encode()
    )
    done = subprocess.run(
        [sys.executable, "-c", FUZZ, raw.hex()],
        env={**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("survived\n", "")
