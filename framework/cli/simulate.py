"""`kmr simulate`: run a strategy through schedules of failures, in virtual time."""

from __future__ import annotations

import json
import random
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple

import msgspec
from cyclopts import Parameter

from ..errors import SettingsError, StrategyError
from ..loading import load_strategy
from ..service.process import processor_limit

if TYPE_CHECKING:
    from ..simulation.run import SimulationOutcome
    from ..simulation.schedule import Schedule
    from ..simulation.simulate import Simulated, Simulator

_SHARE: Final = 250


def simulate(
    strategy: str,
    /,
    *,
    records: str = "generated",
    schedules: Annotated[int, Parameter(negative=())] = 1000,
    seed: int = 1,
    partitions: int = 2,
    topic: str = "simulated",
    jobs: Annotated[int, Parameter(negative=())] = 0,
    replay: Path | None = None,
    trace: Annotated[Literal["text", "mermaid"] | None, Parameter(negative=())] = None,
    save: Path = Path("kmr-simulation.json"),
) -> int:
    """Run a strategy through schedules of failures, in virtual time, and check what reaches its sinks.

    The map, the reducers, the worker, its ledgers and commits are the real ones. The consumer group, the
    brokers and the sinks are models: nothing is connected to. Each schedule kills, stops and drains
    members, moves partitions, and lets requests fail before and after their effect.

    The first schedule that breaks a rule is shrunk to few events, which are printed and written to a file;
    the exit code is 1 then.

    For example:

        kmr simulate hits:strategy --records hits.jsonl
        kmr simulate hits:strategy --records hits.jsonl --replay kmr-simulation.json --trace text

    Parameters
    ----------
    strategy
        The strategy: module:attribute. The current directory is searched first.
    records
        A file with the value of one record on each line; or `generated`: 28 JSON objects and 4 values
        that are no JSON.
    schedules
        How many schedules to try.
    seed
        Of the first schedule; the others have those after it.
    partitions
        Over how many the records are spread.
    topic
        The topic's name, where the strategy distinguishes topics.
    jobs
        How many processes search; 0: one for each processor. The result is the same for any number.
    replay
        Run the schedule of this file only.
    trace
        Print what happened in the schedule that broke a rule, or in the one of --replay, as a sequence
        diagram: for a terminal, or as Mermaid.
    save
        Where a schedule that breaks a rule is written.
    """
    from ..simulation.schedule import write_replay
    from ..simulation.simulate import Simulator, describe, garbage_is_silent

    if schedules < 1 or partitions < 1:
        raise SettingsError("--schedules and --partitions must be at least 1")
    if jobs < 0:
        raise SettingsError("--jobs must be a number of processes, or 0 for one for each processor")
    loaded = load_strategy(strategy)
    loaded.validate()
    with garbage_is_silent():
        simulator = Simulator(loaded, _read(records), topic=topic, partitions=partitions)
        if replay is not None:
            return _replay(simulator, replay, trace)
        processes = min(jobs or processor_limit(), -(-schedules // _SHARE))
        if processes == 1:
            done = simulator.search(schedules, seed, _SearchProgress(schedules).count)
        else:
            load = _SimulatorArguments(strategy, _read(records), topic, partitions)
            done = _search_in_processes(simulator, load, schedules, seed, processes)
        if done.failing is None:
            _say(
                f"{done.schedules} schedules of up to {sum(simulator.sizes)} records, "
                f"{done.seconds:,.0f} s of virtual time: no rule was broken."
            )
            return 0
        short = simulator.shrink(done.failing)
    _say(describe(short, done.failing.schedule.seed))
    write_replay(save, short.schedule)
    _say(f"Written to {save}. To see what happens: --replay {save} --trace text")
    if trace is not None:
        _draw(short.outcome, trace)
    return 1


class _SimulatorArguments(NamedTuple):
    """What a process needs to make the same `Simulator`."""

    strategy: str
    records: list[bytes]
    topic: str
    partitions: int


_simulator: list[Simulator] = []  # one, in each process that searches


def _begin(load: _SimulatorArguments) -> None:
    from ..simulation.simulate import Simulator

    _simulator.append(
        Simulator(
            load_strategy(load.strategy), load.records, topic=load.topic, partitions=load.partitions
        )
    )


def _search_share(schedules: int, seed: int) -> tuple[int, float, str]:
    """Search in this process; return how many schedules ran, their seconds, and what the last one broke."""
    done = _simulator[0].search(schedules, seed)
    problem = None if done.failing is None else done.failing.outcome.problems[0]
    return (
        done.schedules,
        done.seconds,
        "" if problem is None else f"{problem.rule}: {problem.text}",
    )


def _search_in_processes(
    simulator: Simulator, load: _SimulatorArguments, schedules: int, seed: int, processes: int
) -> Simulated:
    """Do what `simulator.search` does, in shares; the schedule that fails is the one of the lowest seed."""
    from ..simulation.simulate import Failing, Simulated

    firsts = range(0, schedules, _SHARE)
    progress, ran, seconds = _SearchProgress(schedules), 0, 0.0
    with ProcessPoolExecutor(processes, get_context("spawn"), _begin, (load,)) as pool:
        sizes = [min(_SHARE, schedules - first) for first in firsts]
        for share, virtual, broken in pool.map(_search_share, sizes, [seed + n for n in firsts]):
            ran, seconds = ran + share, seconds + virtual
            progress.show(ran)
            if broken:
                pool.shutdown(wait=False, cancel_futures=True)
                schedule = simulator.generate(seed + ran - 1)
                outcome = simulator.run(schedule)
                if not outcome.problems:
                    raise StrategyError(
                        f"{broken} (seed {schedule.seed}); but not in another process: the strategy keeps "
                        "state from one run to the next, such as an attribute of a class or of a module"
                    )
                return Simulated(ran, seconds, Failing(schedule, outcome))
    return Simulated(ran, seconds, None)


def _replay(simulator: Simulator, path: Path, trace: Literal["text", "mermaid"] | None) -> int:
    outcome = simulator.run(_schedule_in(path, simulator))
    if trace is not None:
        _draw(outcome, trace)
    for problem in outcome.problems:
        _say(f"{problem.rule}: {problem.text}")
    if not outcome.problems:
        _say(f"{path}: no rule was broken in {outcome.seconds:.1f} s of virtual time.")
    return 1 if outcome.problems else 0


def _schedule_in(path: Path, simulator: Simulator) -> Schedule:
    from ..simulation.schedule import read_replay

    try:
        schedule = read_replay(path)
    except (OSError, msgspec.MsgspecError) as error:
        raise SettingsError(f"--replay {path}: {error}") from error
    appended = [e.number for e in schedule.events if e.what == "append"]
    if max(appended, default=0) >= len(simulator.sizes):
        raise SettingsError(
            f"--replay {path}: it appends to partition {max(appended)}, but there are "
            f"{len(simulator.sizes)}; give the same --records and --partitions as when it was found"
        )
    return schedule


def _draw(outcome: SimulationOutcome, form: Literal["text", "mermaid"]) -> None:
    from ..simulation.trace import draw_mermaid, draw_text

    for line in (draw_text if form == "text" else draw_mermaid)(outcome.steps):
        _say(line)


def _read(records: str) -> list[bytes]:
    if records == "generated":
        return generated()
    from ..chaos.records import read_lines

    return read_lines(Path(records))


def generated() -> list[bytes]:
    """Return the records of `--records generated`: JSON objects, and some bytes that are none."""
    rng = random.Random(1)  # noqa: S311  the same every time
    return [
        b"\xff not JSON"
        if number % 8 == 5
        else json.dumps({"id": number, "value": rng.randrange(100)}).encode()
        for number in range(32)
    ]


class _SearchProgress:
    """Shows the progress of the search in a terminal."""

    def __init__(self, schedules: int) -> None:
        self._schedules = schedules
        self._done = 0

    def count(self, _outcome: SimulationOutcome) -> None:
        self._done += 1
        if self._done % 100 == 0:
            self.show(self._done)

    def show(self, done: int) -> None:
        self._done = done
        if sys.stderr.isatty():
            print(f"\r{self._done} of {self._schedules} ", end="", file=sys.stderr)  # noqa: T201


def _say(line: str) -> None:
    print(line)  # noqa: T201  the command's output
