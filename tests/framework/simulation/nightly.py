"""The long run, `make simulate`: many schedules of every strategy, then every mutation of the protocol.

It prints each schedule that breaks a rule, and after how many schedules each mutation is found. The exit
code is 1 if a rule is broken without a mutation, or if more than a tenth of the mutations is not found.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from kmr.service.process import processor_limit
from kmr.simulation.simulate import Simulator, garbage_is_silent

from .mutations import MUTATIONS
from .strategies import STRATEGIES, records_of

__all__ = ["main", "try_mutation"]

_SEEDS: Final = 50
_ROOT = Path(__file__).parents[3]


def try_mutation(name: str, schedules: int, first: int = 1) -> tuple[int, str]:
    """Search with a mutation; return after how many schedules it is found (0: never), and the rest.

    Args:
        first: the seed of the first schedule.
    """
    module = "tests.framework.simulation.mutations"
    command = [sys.executable, "-m", module, name, str(schedules), str(first)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=_ROOT)
    found, _, rest = done.stdout.strip().partition(" ")
    return int(found), rest


@cache
def _simulators() -> dict[str, Simulator]:
    """Make the simulators of this process."""
    return {name: Simulator(make(), records_of(name)) for name, make in STRATEGIES.items()}


def _search(seeds: range) -> list[str]:
    """Run the schedules of these seeds with every strategy; return the rules that are broken."""
    broken = []
    with garbage_is_silent():
        for seed in seeds:
            for name, simulator in _simulators().items():
                problems = simulator.run(simulator.generate(seed)).problems
                broken += [f"{name}, seed {seed}: {p.rule}: {p.text}" for p in problems[:1]]
    return broken


def _search_unmutated(seeds: int, first: int, processes: int) -> int:
    """Run the schedules of this number of seeds; return how many break a rule."""
    end = first + seeds
    shares = [range(seed, min(seed + _SEEDS, end)) for seed in range(first, end, _SEEDS)]
    began, broken = time.monotonic(), 0
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for found in pool.map(_search, shares):
            broken += len(found)
            for text in found:
                print(f"BROKEN: {text}", flush=True)  # noqa: T201
    ran, seconds = seeds * len(STRATEGIES), time.monotonic() - began
    result = f"{broken} broke a rule" if broken else "no rule was broken"
    print(f"{ran:,} schedules in {seconds:.0f} s ({ran / seconds:.0f}/s): {result}", flush=True)  # noqa: T201
    return broken


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
    if given.schedules:
        seeds = -(-given.schedules // len(STRATEGIES))
        broken = _search_unmutated(seeds, given.seed, given.processes)
    if given.mutated:
        names = list(MUTATIONS)
        with ThreadPoolExecutor(given.processes) as pool:
            outcomes = pool.map(partial(try_mutation, schedules=given.mutated), names)
            for name, (found, rest) in zip(names, outcomes, strict=True):
                missed += not found
                print(f"{found or 'NOT FOUND':>9}  {name}  ({rest})", flush=True)  # noqa: T201
        print(f"{len(names) - missed} of {len(names)} mutations were found")  # noqa: T201
    return 1 if broken or missed * 10 > len(MUTATIONS) else 0


if __name__ == "__main__":
    sys.exit(main())
