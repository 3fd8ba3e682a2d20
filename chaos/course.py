"""The course of a run: set up, load, faults and recovery, verify."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio

from chaos.checkers import check
from chaos.growth import check_growth
from chaos.history import History, Recorder
from chaos.shape import Outside
from chaos.site import Site
from chaos.tables import collect, has_ids
from kmr.chaos.course import ScheduleRun
from kmr.chaos.faults import Strike, plan
from kmr.chaos.services import ServiceFailed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from chaos.scenarios import Scenario
    from chaos.verdicts import Result


_POLL: Final = 1.0  # seconds


@dataclass(frozen=True)
class Run:
    """The outcome of a scenario.

    Attributes:
        schedule: the faults as the seed planned them.
        skipped: faults that could not strike here.
        seconds: from the first process to the last one's end.
    """

    scenario: Scenario
    seed: int
    schedule: list[Strike]
    skipped: list[str]
    seconds: float
    history: History
    results: list[Result]

    @property
    def found(self) -> frozenset[str]:
        """The checkers that found a violation."""
        return frozenset(result.checker for result in self.results if result.verdict == "violated")

    @property
    def verdict(self) -> str:
        """`ok`; `violated`: a guarantee was broken, or a checker missed what it had to find; `unknown`."""
        if self.found != self.scenario.finds:
            return "violated"
        if any(result.verdict == "unknown" for result in self.results):
            return "unknown"
        return "ok"


async def _until_closed(site: Site, recorder: Recorder, patience: float) -> None:
    """Wait until Spark has written the last windows, of which the committed offsets say nothing."""
    storing = [spec.workload for spec in site.groups if spec.stores_windows]
    if not storing:
        return
    ids = recorder.history().last_ids()
    with anyio.move_on_after(patience):
        for workload in storing:
            while not await has_ids(site.places, workload, ids):  # noqa: ASYNC110  of another process
                await anyio.sleep(_POLL)
        return
    raise TimeoutError(f"the last windows: not within {patience:g} s")


async def carry_out(
    scenario: Scenario,
    seed: int,
    directory: Path,
    outside: Outside | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Run:
    """Run a scenario from its setup to its verdict.

    Args:
        directory: takes the data and the logs of the services; new or empty.
        say: called with each event as it happens.

    Raises:
        ServiceFailed: the system did not even come up.
    """
    outside = outside or Outside()
    skipped = scenario.impossible(outside)
    schedule = plan(
        seed, [name for name in scenario.faults if name not in skipped], scenario.rounds
    )
    recorder = Recorder()
    started = time.monotonic()
    setup = recorder.event("phase", "setup")
    say("setting up")
    async with Site(scenario.shape, outside, directory, recorder) as site:
        setup["until"] = time.time_ns()
        promises = scenario.promises(site.groups, site.topics)
        try:
            course = ScheduleRun(
                *(site, site.load, scenario.fault, recorder, say),
                between=scenario.between,
                patience=scenario.patience,
                lasts=scenario.lasts or math.inf,
            )
            await course.run(site.start_load(seed), schedule)
            await _until_closed(site, recorder, scenario.patience)
        except (TimeoutError, ServiceFailed) as error:
            recorder.event("given up", "course", str(error))
            say(f"given up: {error}")
            site.load.stop()
        verify = recorder.event("phase", "verify")
        await site.stop_workers()
        await site.view.until_seen()
        for spec in site.groups:
            await collect(site.places, site.bootstrap_servers, spec, recorder)
        await site.clean_up()
        verify["until"] = time.time_ns()
    history = recorder.history()
    results = check(history, promises, memory_limit=scenario.memory_limit)
    if scenario.lasts:
        results.append(check_growth(history))
    return Run(scenario, seed, schedule, skipped, time.monotonic() - started, history, results)
