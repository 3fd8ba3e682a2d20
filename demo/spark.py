"""The demo's second half: the same strategy on the same topic, as a query of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import aiohttp
import anyio

from demo.outcome import STRATEGY, Engine, Outcome, fetch_status
from demo.processes import STALL, ChildFailed, free_port, give_up_after
from demo.services import TOPIC, row_counter

if TYPE_CHECKING:
    from pathlib import Path

    from demo.display import Display
    from demo.processes import Child, Children
    from demo.services import Services
    from framework.status import WorkerStatus

__all__ = ["CHECKPOINT", "SPARK", "SparkHalf"]

SPARK: Final = Engine("Spark", group="demo-spark", database="spark")
CHECKPOINT: Final = "checkpoint"
"""The directory of the checkpoint, in that of the demo."""

_PATIENCE: Final = 10.0  # seconds; a session that is only starting would be slower to end itself
_POLL: Final = 0.2


class SparkHalf:
    """Runs the engine until it has delivered what is in the topic.

    Args:
        directory: the checkpoint, and what Spark needs for a while, are below it.
        services: started, with the tables in the database of `SPARK`, and all records in the topic.
        total: how many.
    """

    def __init__(
        self,
        directory: Path,
        services: Services,
        total: int,
        display: Display,
        children: Children,
    ) -> None:
        self._directory = directory.resolve()
        self._services = services
        self._total = total
        self._display = display
        self._children = children
        self._url = services.database_url(SPARK.database)

    async def run(self) -> Outcome:
        """The whole course.

        Raises:
            ChildFailed: a process ended with an error, or nothing moved for `STALL` seconds.
        """
        self._display.event("Spark's session is starting; the same strategy, a group of its own")
        begun = anyio.current_time()
        port = free_port()
        child = await self._start(port)
        delivered, last, since = 0, "", begun
        ready: float | None = None
        status: WorkerStatus | None = None
        timeout = aiohttp.ClientTimeout(total=2)
        async with (
            row_counter(self._url) as count,
            aiohttp.ClientSession(timeout=timeout) as session,
        ):
            while child.running and delivered < self._total:
                await anyio.sleep(_POLL)
                status = await fetch_status(session, f"http://127.0.0.1:{port}") or status
                delivered = await count()
                self._children.check()
                now = anyio.current_time()
                if ready is None and (delivered or (status and status.ready)):
                    ready = now
                    self._display.event("Spark reads the topic from its beginning")
                self._display.spark(_phase(status), delivered)
                if (progress := f"{status and status.state} {delivered}") != last:
                    last, since = progress, now
                elif now - since > STALL:
                    raise ChildFailed(
                        f"Spark has not moved for {STALL:.0f} s ({_phase(status)}, {delivered:,} "
                        f"records delivered):\n{child.tail()}"
                    )
            ended = anyio.current_time()
        await self._until_ended(child, delivered)
        ready = ended if ready is None else ready
        return Outcome(SPARK, self._url, start=ready - begun, seconds=ended - ready)

    async def _start(self, port: int) -> Child:
        return await self._children.start(
            "spark",
            *("run", STRATEGY, "--engine", "spark", "--master", "local[2]"),
            *("--checkpoint", str(self._directory / CHECKPOINT), "--trigger", "available-now"),
            *("--topic", TOPIC, "--group", SPARK.group),
            *("--bootstrap-servers", self._services.broker, "--http-port", str(port)),
            # A micro-batch that is abandoned is repeated from the checkpoint: Ctrl-C need not wait.
            *("--on-stop", "abandon"),
            *("--spark-conf", f"spark.local.dir={self._directory / 'spark'}"),
            patience=_PATIENCE,
            KMR_CLICKHOUSE_URL=self._url,
        )

    async def _until_ended(self, child: Child, delivered: int) -> None:
        """The checkpoint and the group's offsets say so too, and the session has ended."""
        self._display.spark("ending", delivered)
        with give_up_after(STALL, "Spark has delivered all and does not end"):
            await child.wait()
        child.check()
        self._display.event(f"Spark has delivered {delivered:,} records and ended")


def _phase(status: WorkerStatus | None) -> str:
    """What Spark does, in a few words."""
    if status is None:
        return "session starting"
    if status.state == "starting":
        return "planning the query"
    return ", ".join(stage.name for stage in status.stages)
