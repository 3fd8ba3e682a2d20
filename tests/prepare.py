"""What the suite makes once in a checkout: machine code, rewritten modules, Spark's classes.

`make test` runs it beside the checks, which leave a processor idle. Without it each process of pytest would
rewrite the same modules of tests.
"""

from __future__ import annotations

import subprocess
import sys

from tests.class_archive import class_archive
from tests.kernels import compile_kernels

if __name__ == "__main__":
    compile_kernels()
    # Errors of the collection are those of the suite, which prints them.
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-qq"]
    subprocess.run(collect, stdout=subprocess.DEVNULL, check=False)
    class_archive()
