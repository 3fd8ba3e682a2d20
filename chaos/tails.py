"""The power fails, and logs lose their last batches, which workers have read and written."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from chaos import tables
from chaos.site import Site
from kmr.chaos.faults import StormFault, own
from kmr.chaos.services import ServiceFailed
from kmr.delivery.announcement import read_announcement
from kmr.kafka.admin import connect_admin
from kmr.kafka.connection import ConnectionConfig
from kmr.record import TopicPartition

if TYPE_CHECKING:
    from random import Random

    from chaos.shape import GroupSpec
    from kmr.chaos.services import Service

_HEADER: Final = struct.Struct(">qi9xh20xq")  # base offset, bytes that follow, attributes, producer
_LENGTH_ENDS: Final = 12
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_MOST_CUT: Final = 3  # batches of a log
_ADVICE: Final = re.compile(r"kmr offsets reset .*--topic (\S+) --partition (\d+) (.*)")
_RANGE: Final = re.compile(r"range (\d+)\.\.(\d+), which was announced")
_TO_OFFSET: Final = re.compile(r"--to-offset (\d+)")


class LoseTail(StormFault[Site]):
    """The power fails: logs lose their last batches, of which the rows and the committed offsets are there.

    New records would get the offsets of those. A worker ends instead, and says which commands begin anew.
    """

    name = "lose-tail"
    needs = frozenset({"broker"})

    async def strike(self, site: Site, random: Random) -> str:
        broker = own(site.broker)
        lost, resets = 0, 0
        async with site.load.held():
            await anyio.sleep(random.uniform(0, max(g.workload.max_age for g in site.groups)))
            await self._kill(site, broker)
            logs = 0
            for at, directory in site.logs.items():
                end = cut_tail(directory, random.randint(0, _MOST_CUT))
                if end is not None:
                    logs += 1
                    lost += site.recorder.lose(*at, end)
            await broker.start()
            await site.view.until_seen()
            for spec in site.groups:
                site.recorder.forget("commits", spec.name)  # they go back
                resets += await self._begin(site, spec)
        return f"{lost:,} records of {logs} logs; {resets} partitions had to be reset"

    async def _kill(self, site: Site, broker: Service) -> None:
        async with anyio.create_task_group() as tasks:
            for service in (broker, *(worker.service for worker in site.workers)):
                tasks.start_soon(service.kill)

    async def _begin(self, site: Site, spec: GroupSpec) -> int:
        """Start a worker as often as it has to end, and do what it says; then start all of them."""
        workers = [worker for worker in site.workers if worker.group == spec.name]
        resets = 0
        while partitions := await _beyond(site, spec):
            await self._reset(site, spec, partitions, await workers[0].refusal())
            resets += 1
        for worker in workers:
            await worker.service.start()
        return resets

    async def _reset(
        self, site: Site, spec: GroupSpec, partitions: set[TopicPartition], message: str
    ) -> None:
        """Run the command that a message names."""
        found = _ADVICE.search(message)
        at = TopicPartition(found[1], int(found[2])) if found is not None else None
        if found is None or at not in partitions:
            raise ServiceFailed(f"a worker does not say how to go on in {partitions}: {message}")
        to = ["--to-latest"]  # records were lost
        if announced := _RANGE.search(message):
            end, *begin = map(int, _TO_OFFSET.findall(found[3]))
            ids = site.recorder.acknowledged_ids(*at, int(announced[1]), end)
            is_there = await tables.has_ids(site.places, spec.workload, ids)
            to = ["--to-offset", str(end if is_there or not begin else begin[0])]
        await anyio.run_process(
            [
                *(str(Path(sys.executable).with_name("kmr")), "offsets", "reset"),
                *("--group", spec.name, "--topic", at.topic, "--partition", str(at.partition)),
                *(*to, "--bootstrap-servers", site.bootstrap_servers),
            ],
            stderr=subprocess.STDOUT,
        )


async def _beyond(site: Site, spec: GroupSpec) -> set[TopicPartition]:
    """Return the partitions whose log ends before what their group has committed or announced."""
    async with connect_admin(ConnectionConfig(bootstrap_servers=site.bootstrap_servers)) as admin:
        committed = await admin.list_group_offsets(spec.name)
        ends = await admin.end_offsets(committed)
    beyond = set()
    for at, entry in committed.items():
        announced = read_announcement(at, entry)
        last = -1 if announced is None else announced.last
        if entry.offset > ends[at] or last >= ends[at]:
            beyond.add(at)
    return beyond


def cut_tail(directory: Path, count: int) -> int | None:
    """Cut the last batches of a log off, but not the first one of its last segment.

    More are cut where a transaction would stay open: the broker aborts what has lost its marker.

    Returns:
        The offset where the log ends; None if nothing was cut.
    """
    file = max(directory.glob("*.log"))
    data, position = file.read_bytes(), 0
    batches: list[tuple[int, int]] = []
    whole: list[bool] = []  # whether no transaction is open after the batch
    under_way: set[int] = set()
    while position < len(data):
        offset, length, attributes, producer = _HEADER.unpack_from(data, position)
        batches.append((position, offset))
        if attributes & _CONTROL:
            under_way.discard(producer)
        elif attributes & _TRANSACTIONAL:
            under_way.add(producer)
        whole.append(not under_way)
        position += _LENGTH_ENDS + length
    keep = max(1, len(batches) - count)
    while keep > 1 and keep < len(batches) and not whole[keep - 1]:
        keep -= 1
    if keep >= len(batches):
        return None
    position, end = batches[keep]
    with file.open("r+b") as log:
        log.truncate(position)
    return end
