"""A soak: a steady load for a long time, now and then a rebalance, and nothing that breaks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import numpy as np
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from chaos.growth import processes_of
from chaos.history import where
from chaos.scenarios import MIB, Scenario
from chaos.shape import GroupSpec, Shape
from chaos.site import Site
from chaos.timeline import COLOURS, Canvas, Line
from chaos.workload import Workload
from kmr.chaos.faults import StormFault

if TYPE_CHECKING:
    from random import Random

    from chaos.history import History

_RATE: Final = 1_000.0  # records per second: every part works, and none is at its limit
_VISIT_EVERY: Final = 60.0
_VISITOR: Final = "visitor"
_SAMPLES: Final = 720  # in the whole run
_PANELS: Final = (
    ("resident memory, MiB", "rss", MIB),
    ("the same as PSS, MiB", "pss", MIB),
    ("open descriptors", "descriptors", 1),
    ("threads", "threads", 1),
    ("tasks of the event loop", "tasks", 1),
)


class Visit(StormFault[Site]):
    """A member joins each group and leaves: two rebalances, and no process of ours ends."""

    name = "visit"

    async def strike(self, site: Site, random: Random) -> str:
        for spec in site.groups:
            # aiokafka keeps an assignor's state in its class
            assignor: Any = type("Sticky", (StickyPartitionAssignor,), {})
            visitor = AIOKafkaConsumer(
                *site.topics,
                bootstrap_servers=site.bootstrap_servers,
                group_id=spec.name,
                client_id=_VISITOR,
                enable_auto_commit=False,
                partition_assignment_strategy=[assignor],
            )
            await visitor.start()
            try:
                await site.view.until(partial(_has_joined, site, spec.name))
            finally:
                with anyio.CancelScope(shield=True):
                    await visitor.stop()
        return f"{len(site.groups)} group"


def _has_joined(site: Site, group: str) -> bool:
    return site.view.owns(group, _VISITOR) > 0


def soak(seconds: float) -> Scenario:
    """The scenario that lasts so many seconds."""
    between = min(_VISIT_EVERY, seconds / 4)
    workload = Workload("chaos_soak", dead_table="chaos_soak_dead", max_age=1.0)
    return Scenario(
        "soak",
        f"{seconds:,.0f} s of a steady load, with two rebalances a minute, and no restart",
        Shape(
            [GroupSpec("group", workload)],
            rate=_RATE,
            # Old segments are deleted all the time, as in a broker that has run for weeks.
            topic_configs={"segment.bytes": f"{MIB}", "retention.bytes": f"{4 * MIB}"},
            sample_every=max(0.5, seconds / _SAMPLES),
        ),
        (Visit.name,),
        rounds=int(seconds / between) + 1,
        more_faults={Visit.name: Visit()},
        between=int(_RATE * between),
        patience=600,
        lasts=seconds,
    )


def plot(history: History, title: str) -> str:
    """Draw what each process held, as an SVG."""
    times = history.resources["time"].to_numpy().astype(np.int64)
    canvas = Canvas(int(times.min(initial=times[0])), int(times.max(initial=times[0] + 1)))
    canvas.heading(title)
    edges = np.linspace(times.min(), times.max(), 300)
    processes = sorted(processes_of(history))
    events = [each for each in history.events.to_pylist() if each["kind"] == "fault"]
    canvas.shade(events, Canvas.height_of(len(_PANELS)))
    for name, figure, scale in _PANELS:
        lines = []
        for process, colour in zip(processes, COLOURS, strict=False):
            samples = where(history.resources, "process", process)
            samples = samples.filter(samples[figure].is_valid())
            if samples.num_rows:
                values = np.interp(edges, samples["time"], samples[figure].to_numpy() / scale)
                lines.append(Line(process, colour, values))
        canvas.panel(name, lines)
    return canvas.svg()
