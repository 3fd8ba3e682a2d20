"""The long run, `make simulate`: many schedules of every strategy, then every mutation of the protocol.

It prints the first schedule that breaks a rule, and after how many schedules each mutation is found. The exit
code is 1 if a rule is broken without a mutation, or if more than a tenth of the mutations is not found.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kmr.service.process import processor_limit

from .mutations import MUTATIONS
from .strategies import STRATEGIES

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["main", "try_mutation"]

_SHARE: Final = 500 * len(STRATEGIES)
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


def _shares(schedules: int, seed: int) -> Iterator[tuple[int, int]]:
    """Cut a search into parts, each with its first seed; the same ones however many processes there are."""
    for done in range(0, schedules, _SHARE):
        yield seed + done // len(STRATEGIES), min(_SHARE, schedules - done)


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
    parser.add_argument("--processes", type=int, default=processor_limit())
    given = parser.parse_args()
    broken = missed = 0
    with ThreadPoolExecutor(given.processes) as pool:
        began, held = time.monotonic(), 0
        shares = list(_shares(given.schedules, given.seed))
        for (first, share), (found, rest) in zip(
            shares,
            pool.map(lambda each: try_mutation("none", each[1], each[0]), shares),
            strict=True,
        ):
            broken += found > 0
            held += found - 1 if found else share
            if found:
                print(f"BROKEN from seed {first} on, at number {found}: {rest}", flush=True)  # noqa: T201
        if shares:
            rate = held / (time.monotonic() - began)
            result = f"{broken} broken" if broken else "no rule was broken"
            print(f"{held:,} schedules: {result}; {rate:.0f} schedules/s", flush=True)  # noqa: T201
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
