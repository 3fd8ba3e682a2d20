"""The compiled functions stay inside their arrays."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kmr.formats.columns import Row

from .encoding import BatchSpec

if TYPE_CHECKING:
    from pathlib import Path


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
