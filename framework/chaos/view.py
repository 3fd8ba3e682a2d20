"""What can be seen from outside while a run goes on: committed offsets and members."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import anyio

from ..errors import KmrError
from ..kafka.admin import GroupListing, connect_admin
from ..kafka.connection import ConnectionConfig
from ..service.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..kafka.admin import Admin
    from .services import Recorder

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
