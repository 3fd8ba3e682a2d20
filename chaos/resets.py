"""A fault of the operator: a group reads everything again."""

from __future__ import annotations

import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from chaos import tables
from chaos.site import Site
from kmr.chaos.faults import StormFault

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from random import Random

    from chaos.shape import GroupSpec
    from chaos.site import Worker


class ResetOffsets(StormFault[Site]):
    """The rows are deleted, and the group's offsets reset: a second run writes every row again."""

    name = "reset-offsets"

    async def strike(self, site: Site, random: Random) -> str:
        spec = random.choice(site.groups)
        workers = [worker for worker in site.workers if worker.group == spec.name]
        async with self.one_of(site, workers, random) as stopped:
            await self._reset(site, spec, stopped)
        return f"{spec.name}, after {site.load.acknowledged:,} records"

    @asynccontextmanager
    async def one_of(
        self, site: Site, workers: list[Worker], random: Random
    ) -> AsyncIterator[list[Worker]]:
        """Return the workers that are stopped meanwhile; the others must be no members."""
        yield workers

    async def _reset(self, site: Site, spec: GroupSpec, workers: list[Worker]) -> None:
        async with anyio.create_task_group() as tasks:
            for worker in workers:
                tasks.start_soon(worker.service.stop)
        await tables.forget_rows(site.clickhouse_url, spec.workload)
        await anyio.run_process(
            [
                *(str(Path(sys.executable).with_name("kmr")), "offsets", "reset", "--to-earliest"),
                *("--group", spec.name),
                *("--bootstrap-servers", site.bootstrap_servers),
            ],
            stderr=subprocess.STDOUT,
        )
        await site.view.until_seen()
        site.recorder.forget("commits", spec.name)  # they go back, and the rows below them are gone
        async with anyio.create_task_group() as tasks:
            for worker in workers:
                tasks.start_soon(worker.service.start)


class ResetPastSuspended(ResetOffsets):
    """The same while a worker is suspended: it wakes up when others have written the rows again."""

    name = "reset-past-suspended"
    needs = frozenset({"peers"})

    @asynccontextmanager
    async def one_of(
        self, site: Site, workers: list[Worker], random: Random
    ) -> AsyncIterator[list[Worker]]:
        """Suspend one of them until the others have gone on."""
        suspended = random.choice(workers)
        await site.until_joined(suspended)
        suspended.service.pause()
        try:
            await site.until_expelled(suspended)
            yield [worker for worker in workers if worker is not suspended]
            await site.until_settled(suspended.group)
        finally:
            suspended.service.resume()
