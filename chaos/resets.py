"""A fault of the operator: a group reads everything again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from chaos import tables
from chaos.site import Site
from kmr.chaos.faults import Fault

if TYPE_CHECKING:
    from random import Random


class ResetOffsets(Fault[Site]):
    """The rows are deleted, and the group's offsets reset: a second run writes every row again."""

    name = "reset-offsets"

    async def strike(self, site: Site, random: Random) -> str:
        spec = random.choice(site.groups)
        workers = [worker for worker in site.workers if worker.group == spec.name]
        async with anyio.create_task_group() as tasks:
            for worker in workers:
                tasks.start_soon(worker.service.stop)
        await tables.forget_rows(site.clickhouse_url, spec.workload)
        await anyio.run_process(
            [
                *(str(Path(sys.executable).with_name("kmr")), "offsets", "reset", "--to-earliest"),
                *("--group", spec.name, "--topic", site.topic),
                *("--bootstrap-servers", site.bootstrap_servers),
            ],
            stderr=subprocess.STDOUT,
        )
        await site.view.until_seen()
        site.recorder.forget("commits", spec.name)  # they go back, and the rows below them are gone
        async with anyio.create_task_group() as tasks:
            for worker in workers:
                tasks.start_soon(worker.service.start)
        return f"{spec.name}, after {site.load.acknowledged:,} records"
