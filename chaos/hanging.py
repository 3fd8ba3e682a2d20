"""Faults that leave a worker unable to drain: it has to end at its deadline all the same."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, ClassVar, Final

import anyio

from chaos.faults import way
from chaos.site import Site
from kmr.chaos.faults import StormFault

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from random import Random

    from chaos.site import Worker

DEADLINE: Final = 3.0  # seconds, `--shutdown-deadline` of the scenario
_LEEWAY: Final = 7.0  # seconds, on a machine that has much else to do
_INTERVAL: Final = 0.05


class _PastDeadline(StormFault[Site]):
    """SIGTERM for a worker that hangs; it ends at its deadline with the exit code for that."""

    deadline: ClassVar[float] = DEADLINE

    async def strike(self, site: Site, random: Random) -> str:
        """Raise TimeoutError if the worker ends too late."""
        worker = random.choice(site.workers)
        await site.until_joined(worker)
        async with self.hanging(worker):
            seconds = await worker.restart_late()
        if seconds > self.deadline + _LEEWAY:
            raise TimeoutError(
                f"{self.name}: {worker.name} ended {seconds:.1f} s after SIGTERM "
                f"(shutdown deadline: {self.deadline:g} s)"
            )
        return f"{worker.name}, ended {seconds:.1f} s after SIGTERM (deadline: {self.deadline:g} s)"

    @abstractmethod
    def hanging(self, worker: Worker) -> AbstractAsyncContextManager[None]:
        """Enter when the worker hangs; let it go on leaving."""


class HangingMap(_PastDeadline):
    """A map never returns; its worker is stopped, and ends at its deadline."""

    name = "hanging-map"

    @asynccontextmanager
    async def hanging(self, worker: Worker) -> AsyncIterator[None]:
        worker.hang.touch()
        while worker.hang.exists():  # noqa: ASYNC110  a file has no event
            await anyio.sleep(_INTERVAL)
        yield


class SinkPastDeadline(_PastDeadline):
    """ClickHouse answers no INSERT of a worker; it is stopped, and ends at its deadline."""

    name = "sink-past-deadline"
    needs = frozenset({"links"})

    @asynccontextmanager
    async def hanging(self, worker: Worker) -> AsyncIterator[None]:
        link = way(worker.clickhouse)
        link.hold_inserts()
        try:
            await link.until_held()
            yield
        finally:
            link.release_inserts()
