"""`python -m interop.delta`: changes into Delta itself, on both engines, through kills around the MERGE.

Delta's jars come from Maven Central, every one verified, and the PySpark that they are made for from the
Python package index, into an environment of its own; both are kept in the user's cache. Exit codes: 0 every
check passed, 1 one failed, 2 wrong usage, 3 there is no Delta to check against (or no Java).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console

from interop.delta_checks import PARTS
from interop.environment import EnvironmentFailed, python_with_pyspark
from interop.maven import FetchFailed, fetch, read_lock
from kmr.spark.jvm import JvmNotFound, cache_directory, find_jvm

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LOCK", "PYSPARK", "main"]

LOCK: Final = Path(__file__).with_name("delta.lock")
PYSPARK: Final = "4.2.1"
"""The newest one of the Spark that Delta's jars are made for."""

_NO_DELTA: Final = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch, install, check, print; see the module for the exit codes."""
    parser = argparse.ArgumentParser(prog="python -m interop.delta", description=__doc__)
    parser.add_argument(
        "--only",
        action="append",
        choices=PARTS,
        metavar="PART",
        help=f"run this one; may be given more than once: {', '.join(PARTS)}",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the histories [%(default)s]")
    parser.add_argument(
        "--output", default=".kmr/interop/delta", metavar="DIR", help="for logs [%(default)s]"
    )
    options = parser.parse_args(arguments)
    console = Console(soft_wrap=True, highlight=False)
    cache = cache_directory(os.environ)
    try:
        jars = fetch(read_lock(LOCK), cache / "maven")
        java = find_jvm()
        python = python_with_pyspark(PYSPARK, cache / "environments")
    except (EnvironmentFailed, FetchFailed, JvmNotFound) as error:
        console.print("[red]Delta cannot be started:[/]", end=" ")
        console.print(str(error), markup=False)
        return _NO_DELTA
    console.print(f"{', '.join(jar.stem for jar in jars)}; PySpark {PYSPARK}; Java {java.version}")
    command = [str(python), "-m", "interop.delta_checks", "--seed", str(options.seed)]
    command += ["--output", options.output, "--jars", ",".join(map(str, jars))]
    for part in options.only or PARTS:
        command += ["--only", part]
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[1])
    }  # for Spark's Python processes
    return subprocess.run(command, check=False, env=environment).returncode  # noqa: S603  nothing of others


if __name__ == "__main__":
    sys.exit(main())
