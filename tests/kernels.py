"""Machine code of the kernels, compiled before the suite starts.

In a new checkout there is none. Each of the processes that tests start would compile what it needs, and many
of them do so at the same time: 50 s of processor time in one test of Spark alone.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Final

__all__ = ["compile_kernels"]

_LOADERS: Final = (
    "kmr.values.json.json_kernel:kernel",
    "kmr.values.avro.kernel:kernel",
    "kmr.values.protobuf.kernel:kernel",
    "kmr.formats.kernels:_kernels",
    "kmr.values.json.json_texts:_kernels",
    "kmr.values.decoding.pieces:_kernels",
    "kmr.values.decoding.flat_columns:_kernels",
    "kmr.values.registry.framing:_kernels",
    "kmr.memory.distinct_kernel:kernels",
)
_LOAD: Final = """
import pkgutil
import sys

for name in sys.argv[1:]:
    pkgutil.resolve_name(name)()
"""
_AT_ONCE: Final = 2  # processes


def compile_kernels() -> None:
    """Compile all kernels whose machine code is not there, in two processes.

    Raises:
        RuntimeError: a kernel cannot be compiled.
    """
    processes = [
        subprocess.Popen([sys.executable, "-c", _LOAD, *_LOADERS[first::_AT_ONCE]])
        for first in range(_AT_ONCE)
    ]
    codes = [process.wait() for process in processes]
    if any(codes):
        raise RuntimeError("the kernels cannot be compiled; the error is above")
