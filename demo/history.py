"""The demo's history: `kmr backfill` commits the cut, and Spark reads the records below it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import aiohttp
import anyio

from demo.outcome import GROUP, STRATEGY, Outcome, fetch_status, history_flags
from demo.processes import STALL, Child, ChildFailed, Children, give_up_after
from demo.services import PARTITIONS, TOPIC
from kmr.chaos.services import free_port
from kmr.delivery.announcement import history_group
from kmr.kafka.admin import connect_admin

if TYPE_CHECKING:
    from pathlib import Path

    from demo.display import Display
    from demo.outcome import Cut, Standing
    from demo.services import Services

__all__ = ["CHECKPOINT", "History"]

CHECKPOINT: Final = "checkpoint"
"""The checkpoint's directory, below the demo's."""

_PATIENCE: Final = 10.0  # seconds; a session that is still starting takes longer to stop
# This JVM lives for seconds, beside other processes: so it starts with half the CPU time.
_JVM_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_POLL: Final = 0.1
_COUNT: Final = " offsets of the history: "
"""In the line that `kmr backfill` prints when it has counted."""


class History:
    """Reads what the topic has at the beginning, while workers follow the present.

    Args:
        directory: for the checkpoint and Spark's temporary files.
        services: started, with the records of the history in the topic.
        spark: whether Spark reads it, or workers of a group of its own.
    """

    def __init__(
        self,
        directory: Path,
        services: Services,
        standing: Standing,
        display: Display,
        children: Children,
        *,
        spark: bool,
    ) -> None:
        self._directory = directory.resolve()
        self._services = services
        self._standing = standing
        self._display = display
        self._children = children
        self._spark = spark
        self._engine = "Spark" if spark else "worker"
        self._total = standing.produced
        self._port = free_port()
        self._begun = 0.0
        self._started: float | None = None

    async def begin(self) -> Cut:
        """Start `kmr backfill`; return when it has committed the cut.

        Raises:
            ChildFailed: it ended with an error.
        """
        self._begun = anyio.current_time()
        self._standing.phase = "committing the cut"
        self._child = await self._start()
        with give_up_after(STALL, "kmr backfill does not commit the cut"):
            async with connect_admin({"bootstrap_servers": self._services.broker}) as admin:
                while len(committed := await admin.list_group_offsets(GROUP)) < PARTITIONS:
                    self._child.check()
                    await anyio.sleep(_POLL)
        self._display.event(
            f"kmr backfill has committed the cut, and reads the {self._total:,} records below it"
        )
        self._standing.phase = "session starting" if self._spark else "reading"
        return {at.partition: entry.offset for at, entry in committed.items()}

    async def run(self) -> Outcome:
        """Wait until the history is read and counted."""
        ended = anyio.current_time()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as http:
            while self._child.running:
                await self._look(http)
                if self._standing.history < self._total:
                    ended = anyio.current_time()
                await anyio.sleep(_POLL)
        problem = None
        try:
            self._child.check()
        except ChildFailed as error:
            problem = f"The history is not complete: {error}"
        counted = [line for line in self._child.tail().splitlines() if _COUNT in line]
        self._display.event(counted[-1] if counted else "the history is not complete")
        self._standing.phase = "ended"
        started = self._started or ended
        return Outcome(
            *("history", self._engine, history_group(GROUP)),
            start=started - self._begun,
            seconds=ended - started,
            problem=problem,
        )

    async def _look(self, http: aiohttp.ClientSession) -> None:
        status = await fetch_status(http, f"http://127.0.0.1:{self._port}")
        if self._standing.history >= self._total:
            self._standing.phase = "counting"
        elif status is None:
            return
        elif status.state == "starting":
            self._standing.phase = "planning the query" if self._spark else "joining its group"
        else:
            self._standing.phase = "reading"
            if self._started is None:
                self._started = anyio.current_time()

    async def _start(self) -> Child:
        spark = (
            # Ctrl-C need not wait: an abandoned micro-batch is repeated from the checkpoint.
            *("--on-stop", "abandon"),
            *("--spark-conf", f"spark.local.dir={self._directory / 'spark'}"),
            *("--spark-conf", f"spark.driver.extraJavaOptions={_JVM_OPTIONS}"),
        )
        return await self._children.start(
            "history",
            *("backfill", STRATEGY),
            *history_flags(self._directory / CHECKPOINT, spark=self._spark),
            *(spark if self._spark else ()),
            *("--topic", TOPIC, "--group", GROUP),
            *("--bootstrap-servers", self._services.broker, "--http-port", str(self._port)),
            patience=_PATIENCE,
            watched=False,
            KMR_CLICKHOUSE_URL=self._services.clickhouse_url,
        )
