"""The long run, `make simulate`: many schedules of every strategy, then every mutation of the protocol.

It prints the first schedule that breaks a rule, and after how many schedules each mutation is found. The exit
code is 1 if a rule is broken without a mutation, or if more than a tenth of the mutations is not found.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from .mutations import MUTATIONS

__all__ = ["main", "try_mutation"]

_ROOT = Path(__file__).parents[3]


def try_mutation(name: str, schedules: int, first: int = 1) -> tuple[int, str]:
    """Search with a mutation, or `none`; return after how many schedules (0: never), and the rest."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.framework.simulation.mutations",
            name,
            str(schedules),
            str(first),
        ],
        check=True,
        capture_output=True,
        text=True,
        cwd=_ROOT,
    )
    found, _, rest = done.stdout.strip().partition(" ")
    return int(found), rest


def main() -> int:
    """Run what the arguments say; return the exit code."""
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument(
        "--schedules", type=int, default=100_000, help="without a mutation; 0: none"
    )
    parser.add_argument(
        "--mutated", type=int, default=10_000, help="at most, for each mutation; 0: none"
    )
    parser.add_argument("--seed", type=int, default=1, help="the first seed without a mutation")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    broken = missed = 0
    with ThreadPoolExecutor(given.processes) as pool:
        share = given.schedules // given.processes
        firsts = [given.seed + number * share for number in range(given.processes if share else 0)]
        for found, rest in pool.map(partial(try_mutation, "none", share), firsts):
            broken += found > 0
            result = f"BROKEN at number {found}" if found else "held"
            print(f"{share:,} schedules: {result} {rest}", flush=True)  # noqa: T201
        if given.mutated:
            names = list(MUTATIONS)
            outcomes = pool.map(partial(try_mutation, schedules=given.mutated), names)
            for name, (found, rest) in zip(names, outcomes, strict=True):
                missed += not found
                print(f"{found or 'NOT FOUND':>9}  {name}  ({rest})", flush=True)  # noqa: T201
            print(f"{len(names) - missed} of {len(names)} mutations were found")  # noqa: T201
    return 1 if broken or missed * 10 > len(MUTATIONS) else 0


if __name__ == "__main__":
    sys.exit(main())
