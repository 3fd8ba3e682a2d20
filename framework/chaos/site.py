"""The system under test: broker, sinks and workers as processes, and what faults wait for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import anyio

from ..errors import KmrError
from ..kafka.admin import GroupListing, connect_admin
from ..kafka.connection import ConnectionConfig
from ..service.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ..kafka.admin import Admin
    from .services import Recorder, Service


@dataclass(eq=False)
class WorkerUnderTest:
    """A worker's process, or that of the supervisor of several.

    Attributes:
        joins: whether it becomes a member of its group.
    """

    service: Service
    group: str
    joins: bool = True
    _lock: anyio.Lock = field(default_factory=anyio.Lock)

    @property
    def name(self) -> str:
        """Its name, the same for all of its processes."""
        return self.service.name

    @property
    def client_id(self) -> str:
        """The member id of its current process in the group."""
        return f"{self.service.name}.{self.service.starts}"

    async def restart(self, *, kill: bool) -> None:
        """SIGKILL or SIGTERM, and a new process."""
        async with self._lock:
            await (self.service.kill() if kill else self.service.stop())
            await self.service.start()

    async def restart_late(self) -> float:
        """SIGTERM for a process that cannot drain, and a new one; returns the seconds until it ended."""
        async with self._lock:
            began = anyio.current_time()
            await self.service.stop(late=True)
            seconds = anyio.current_time() - began
            await self.service.start()
        return seconds

    async def revive(self) -> None:
        """Start it again if it ended without a signal of ours."""
        async with self._lock:
            if self.service.wanted and not self.service.running:
                await self.service.start()


class SystemUnderTest(ABC):
    """What faults strike; a subclass starts it.

    Attributes:
        broker, clickhouse: None: it is not ours to harm, or there is none.
    """

    view: GroupsView
    workers: Sequence[WorkerUnderTest]
    broker: Service | None = None
    clickhouse: Service | None = None

    @property
    @abstractmethod
    def acknowledged(self) -> Mapping[tuple[str, int], int]:
        """By topic and partition: the offset after the last record that the broker has acknowledged."""

    async def until_shared(self) -> None:
        """Wait until exactly the workers that should run share the partitions."""
        groups = {worker.group for worker in self.workers if worker.joins}
        await self.view.until(lambda: all(map(self._is_shared, groups)))

    async def until_settled(self, *groups: str) -> None:
        """Wait until these groups, or all, have committed every record that is acknowledged by now."""
        ends = dict(self.acknowledged)
        names = groups or tuple(self.view.offsets)
        await self.view.until(
            lambda: all(
                self.view.offsets[group].get(partition, 0) >= end
                for group in names
                for partition, end in ends.items()
            )
        )

    async def until_expelled(self, worker: WorkerUnderTest) -> None:
        """Wait until a worker that is not heard of is no longer a member of its group."""
        client_id = worker.client_id
        await self.view.until(lambda: client_id not in self.view.members(worker.group))

    async def until_joined(self, worker: WorkerUnderTest) -> None:
        """Wait until a worker is a member and has partitions; an engine of Spark never is."""
        if worker.joins:
            await self.view.until(lambda: self.view.owns(worker.group, worker.client_id) > 0)

    async def stop_workers(self) -> None:
        """SIGTERM for every worker; they drain, commit and leave."""
        async with anyio.create_task_group() as tasks:
            for worker in self.workers:
                tasks.start_soon(worker.service.stop)

    async def supervise(self) -> None:
        """Restart a worker that ended without a signal of ours, as a supervisor would."""
        while True:
            for worker in self.workers:
                await worker.revive()
            await anyio.sleep(0.5)

    def _is_shared(self, group: str) -> bool:
        known = self.view.groups.get(group)
        wanted = {
            worker.client_id
            for worker in self.workers
            if worker.group == group and worker.service.wanted
        }
        return known is not None and known.state == "Stable" and self.view.members(group) == wanted


_INTERVAL: Final = 0.2
_PATIENCE: Final = 20.0


class GroupsView:
    """The consumer groups, as the broker shows them again and again; each change of an offset is kept."""

    def __init__(self, bootstrap_servers: str, groups: Iterable[str], recorder: Recorder) -> None:
        self._config = ConnectionConfig(
            bootstrap_servers=bootstrap_servers, client_id="chaos-view", request_timeout=5.0
        )
        self._recorder = recorder
        self._changed = Wakeup()
        self.offsets: dict[str, dict[tuple[str, int], int]] = {group: {} for group in groups}
        """The committed offsets of each group, by topic and partition."""
        self.groups: dict[str, GroupListing] = {}

    async def watch(self) -> None:
        """Look until cancelled; a broker that does not answer is asked again."""
        while True:
            async with AsyncExitStack() as stack:
                try:
                    admin = await stack.enter_async_context(connect_admin(self._config))
                    while True:
                        await self._look(admin)
                        await anyio.sleep(_INTERVAL)
                except (KmrError, OSError):
                    pass
            await anyio.sleep(_INTERVAL)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; it is looked at whenever the broker was."""
        while not condition():
            await self._changed.wait()

    async def until_seen(self) -> None:
        """Wait until the broker was asked after this call; in vain for no longer than 20 s."""
        with anyio.move_on_after(_PATIENCE):
            for _ in range(2):  # the answer that comes first may be older
                await self._changed.wait()

    def members(self, group: str) -> frozenset[str]:
        """The client ids of a group's members."""
        found = self.groups.get(group)
        return frozenset(member.client_id for member in found.members) if found else frozenset()

    def owns(self, group: str, client_id: str) -> int:
        """How many partitions a member has."""
        found = self.groups.get(group)
        members = found.members if found else ()
        return sum(len(m.partitions) for m in members if m.client_id == client_id)

    async def _look(self, admin: Admin) -> None:
        for group, known in self.offsets.items():
            self.groups[group] = await admin.group(group)
            for partition, committed in (await admin.list_group_offsets(group)).items():
                key = (partition.topic, partition.partition)
                if known.get(key) != committed.offset:
                    known[key] = committed.offset
                    self._recorder.line(
                        "commits",
                        group=group,
                        topic=partition.topic,
                        partition=partition.partition,
                        offset=committed.offset,
                    )
        self._changed.notify()
