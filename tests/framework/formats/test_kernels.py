"""The kernels need numba only to be compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from kmr.formats.batch_decoder import warm_up
from kmr.formats.columns import Row

from .encoding import GZIP, BatchSpec

if TYPE_CHECKING:
    from pathlib import Path


WITHOUT_NUMBA = """
import sys
sys.modules["numba"] = None
from kmr.formats.batch_decoder import BatchDecoder, warm_up
warm_up()
batch = BatchDecoder().batch("topic", 3, bytes.fromhex(sys.argv[1]), 0)
batch.records.validate(full=True)
print(batch.records.to_pylist()[0]["headers"])
"""


def test_once_compiled_the_decoder_works_without_numba() -> None:
    warm_up()
    rows = [Row(0, 0, 0, None, b"v", [("k", None)])]
    raw = BatchSpec(base=0, last=1, rows=rows, codec=GZIP).encode()
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_NUMBA, raw.hex()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[{'key': 'k', 'value': None}]\n", "")


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
