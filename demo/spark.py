"""The demo's second half: the same strategy on the same topic, as a query of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import aiohttp
import anyio

from demo.outcome import STRATEGY, Engine, Outcome, fetch_status
from demo.processes import STALL, ChildFailed, free_port, give_up_after
from demo.services import TOPIC, row_counter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from demo.display import Display
    from demo.processes import Child, Children
    from demo.services import Services
    from kmr.observe.status import WorkerStatus

__all__ = ["CHECKPOINT", "SPARK", "SparkHalf"]

SPARK: Final = Engine("Spark", group="demo-spark", database="spark")
CHECKPOINT: Final = "checkpoint"
"""The checkpoint's directory, below the demo's."""

_PATIENCE: Final = 10.0  # seconds; a session that is still starting takes longer to stop
# This JVM lives for seconds, beside other processes: so it starts with half the CPU time.
_JVM_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_POLL: Final = 0.2


class SparkHalf:
    """Run the engine until it has delivered every record of the topic.

    Args:
        directory: for the checkpoint and Spark's temporary files.
        services: started, with the tables in the database of `SPARK`, and all records in the topic.
        total: the number of records.
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
        self._port = free_port()
        self._status: WorkerStatus | None = None
        self._delivered = 0
        self._seen: tuple[str, int] = "", 0
        self._moved = 0.0

    async def run(self) -> Outcome:
        """The whole course.

        Raises:
            ChildFailed: a process ended with an error, or nothing moved for `STALL` seconds.
        """
        self._display.event("Spark's session is starting; the same strategy, a group of its own")
        begun = started = self._moved = anyio.current_time()
        child = await self._start()
        timeout = aiohttp.ClientTimeout(total=2)
        async with (
            row_counter(self._url) as count,
            aiohttp.ClientSession(timeout=timeout) as http,
        ):
            while child.running and not self._reading:
                started = anyio.current_time()
                await self._look(child, http, count)
            if self._reading:
                self._display.event("Spark reads the topic from its beginning")
            while child.running and self._delivered < self._total:
                await self._look(child, http, count)
            ended = anyio.current_time()
        self._display.spark("ending", self._delivered)
        with give_up_after(STALL, "Spark has delivered all and does not end"):
            await child.wait()
        child.check()
        self._display.event(f"Spark has delivered {self._delivered:,} records and ended")
        return Outcome(SPARK, self._url, start=started - begun, seconds=ended - started)

    @property
    def _reading(self) -> bool:
        return bool(self._delivered or (self._status and self._status.ready))

    @property
    def _phase(self) -> str:
        """Describe Spark's state in a few words."""
        if self._status is None:
            return "session starting"
        if self._status.state == "starting":
            return "planning the query"
        return ", ".join(stage.name for stage in self._status.stages)

    async def _look(
        self, child: Child, http: aiohttp.ClientSession, count: Callable[[], Awaitable[int]]
    ) -> None:
        """See once where it stands, and show it."""
        await anyio.sleep(_POLL)
        self._children.check()
        status = await fetch_status(http, f"http://127.0.0.1:{self._port}")
        self._status = status or self._status
        self._delivered = await count()
        self._display.spark(self._phase, self._delivered)
        if (seen := (self._phase, self._delivered)) != self._seen:
            self._seen, self._moved = seen, anyio.current_time()
        elif anyio.current_time() - self._moved > STALL:
            raise ChildFailed(
                f"Spark has not moved for {STALL:.0f} s ({self._phase}, {self._delivered:,} records "
                f"delivered):\n{child.tail()}"
            )

    async def _start(self) -> Child:
        return await self._children.start(
            "spark",
            *("run", STRATEGY, "--engine", "spark", "--master", "local[2]"),
            *("--checkpoint", str(self._directory / CHECKPOINT), "--trigger", "available-now"),
            *("--topic", TOPIC, "--group", SPARK.group),
            *("--bootstrap-servers", self._services.broker, "--http-port", str(self._port)),
            # Ctrl-C need not wait: an abandoned micro-batch is repeated from the checkpoint.
            *("--on-stop", "abandon"),
            *("--spark-conf", f"spark.local.dir={self._directory / 'spark'}"),
            *("--spark-conf", f"spark.driver.extraJavaOptions={_JVM_OPTIONS}"),
            patience=_PATIENCE,
            KMR_CLICKHOUSE_URL=self._url,
        )
