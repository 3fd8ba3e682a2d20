"""The demo's present: workers begin at the cut, and come and go while records are produced."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import aiohttp
import anyio

from demo.outcome import GROUP, STRATEGY, Outcome, fetch_status
from demo.processes import STALL, Child, ChildFailed, Children, give_up_after
from demo.producing import RECORDS_PER_SECOND, produce
from demo.services import TOPIC
from kmr.chaos.services import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from demo.display import Display
    from demo.outcome import Standing
    from demo.services import Services

__all__ = ["Present"]

_SETTINGS: Final = Path(__file__).with_name("kmr.toml")
_POLL: Final = 0.05


class Present:
    """Produces flights, and lets workers deliver them.

    Args:
        flights: those of the present.
        services: started; the cut is committed.
    """

    def __init__(
        self,
        flights: pa.Table,
        services: Services,
        standing: Standing,
        display: Display,
        children: Children,
    ) -> None:
        self._flights = flights
        self._services = services
        self._standing = standing
        self._display = display
        self._children = children
        self._workers: dict[str, tuple[Child, str]] = {}

    async def run(self) -> Outcome:
        """The whole course.

        Raises:
            ChildFailed: a process ended with an error, or a worker does not get ready.
        """
        begun = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._ask_workers)
            await self._start_worker("worker-1")
            await self._start_worker("worker-2")
            await self._until_ready("worker-1", "worker-2")
            started = anyio.current_time()
            self._display.event("two workers begin at the cut; producing goes on")
            _, page = self._workers["worker-2"]  # it stays to the end
            self._display.event(f"watch worker-2 in a browser while it runs: {page}")
            async with anyio.create_task_group() as changes:
                changes.start_soon(self._come_and_go)
                await produce(
                    self._services.broker, self._flights, self._standing, RECORDS_PER_SECOND
                )
                self._display.event(f"all {self._standing.produced:,} records are produced")
            await self._until(lambda: self._standing.present >= self._flights.num_rows)
            seconds = anyio.current_time() - started
            await self._until_ready(*self._workers)  # SIGTERM would end one that is only starting
            tasks.cancel_scope.cancel()
        for name in list(self._workers):
            await self._stop_worker(name)
        self._display.event(f"the workers have delivered {self._standing.present:,} records")
        return Outcome("present", "workers", GROUP, start=started - begun, seconds=seconds)

    async def _start_worker(self, name: str) -> None:
        port = free_port()
        child = await self._children.start(
            name,
            *("run", STRATEGY),
            *("--topic", TOPIC, "--group", GROUP),
            *("--bootstrap-servers", self._services.broker),
            *("--config", str(_SETTINGS), "--http-port", str(port)),
            KMR_CLICKHOUSE_URL=self._services.clickhouse_url,
        )
        self._workers[name] = child, f"http://127.0.0.1:{port}"
        self._standing.workers[name] = None

    async def _stop_worker(self, name: str) -> None:
        child, _ = self._workers.pop(name)
        code = await child.stop()
        self._standing.workers.pop(name, None)
        if code != 0:
            raise ChildFailed(f"{name} ended with exit code {code} after SIGTERM:\n{child.tail()}")

    async def _until_ready(self, *names: str) -> None:
        statuses = self._standing.workers
        with give_up_after(STALL, f"{' and '.join(names)} are not ready"):
            await self._until(lambda: all((s := statuses.get(n)) and s.ready for n in names))

    async def _come_and_go(self) -> None:
        """The group changes twice while records flow: one worker leaves, another joins."""
        before, total = self._standing.produced, self._flights.num_rows
        await self._until(lambda: self._standing.produced >= before + total // 3)
        self._display.event("worker-1 gets SIGTERM: it drains and leaves; worker-2 takes over")
        await self._stop_worker("worker-1")
        await self._until(lambda: self._standing.produced >= before + total * 3 // 5)
        self._display.event("worker-3 joins: the partitions are shared again")
        await self._start_worker("worker-3")

    async def _until(self, is_reached: Callable[[], object]) -> None:
        while not is_reached():  # noqa: ASYNC110  polls what other tasks count
            await anyio.sleep(_POLL)

    async def _ask_workers(self) -> None:
        """Keep the statuses up to date."""
        timeout = aiohttp.ClientTimeout(total=2)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                for name, (_, url) in list(self._workers.items()):
                    status = await fetch_status(session, url)
                    if status is not None and name in self._workers:
                        self._standing.workers[name] = status
                await anyio.sleep(_POLL)
