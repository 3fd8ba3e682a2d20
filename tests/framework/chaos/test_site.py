"""What faults wait for: members that share, partitions that are committed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest

from kmr.chaos.site import GroupsView, SystemUnderTest, WorkerUnderTest
from kmr.kafka.admin import GroupListing, GroupMember
from kmr.record import TopicPartition

if TYPE_CHECKING:
    from kmr.chaos.services import Service

GROUP = "g"


class Notes:
    """Takes down nothing."""

    def line(self, table: str, **values: object) -> dict[str, Any]:
        return values

    def event(self, kind: str, name: str, detail: str = "") -> dict[str, Any]:
        return {}


@dataclass
class Process:
    """A service that is only looked at."""

    name: str
    starts: int = 1
    wanted: bool = True
    running: bool = True
    log: list[str] = field(default_factory=list)

    async def kill(self) -> None:
        self.log.append("kill")

    async def stop(self, *, late: bool = False) -> int:
        self.log.append("stop")
        return 0

    async def start(self) -> None:
        self.log.append("start")
        self.starts += 1
        self.running = True


class Small(SystemUnderTest):
    """Two workers, one partition."""

    def __init__(self) -> None:
        self.view = GroupsView("127.0.0.1:1", [GROUP], Notes())
        self.processes = [Process("one"), Process("two")]
        self.workers = [WorkerUnderTest(cast("Service", each), GROUP) for each in self.processes]

    @property
    def acknowledged(self) -> dict[tuple[str, int], int]:
        return {("t", 0): 5}

    def shows(self, *client_ids: str, state: str = "Stable") -> None:
        members = tuple(
            GroupMember(f"member-{each}", each, "host", (TopicPartition("t", 0),))
            for each in client_ids
        )
        self.view.groups[GROUP] = GroupListing(GROUP, state, members)


@pytest.mark.parametrize(
    ("members", "state", "shared"),
    [
        (("one.1", "two.1"), "Stable", True),
        (("one.1", "two.1"), "PreparingRebalance", False),
        (("one.1",), "Stable", False),
        (("one.0", "one.1", "two.1"), "Stable", False),
    ],
)
async def test_partitions_are_shared_when_exactly_the_wanted_processes_are_members(
    members: tuple[str, ...], state: str, *, shared: bool
) -> None:
    site = Small()
    site.shows(*members, state=state)
    with anyio.move_on_after(0) as patience:
        await site.until_shared()
    assert patience.cancelled_caught is not shared


async def test_a_group_is_settled_when_it_has_committed_what_was_acknowledged() -> None:
    site = Small()
    site.view.offsets[GROUP]["t", 0] = 4
    with anyio.move_on_after(0) as patience:
        await site.until_settled(GROUP)
    assert patience.cancelled_caught
    site.view.offsets[GROUP]["t", 0] = 5
    with anyio.fail_after(60):
        await site.until_settled()


async def test_a_worker_that_is_expelled_has_not_joined() -> None:
    site = Small()
    site.shows("one.1")
    with anyio.fail_after(60):
        await site.until_joined(site.workers[0])
        await site.until_expelled(site.workers[1])


async def test_a_worker_that_ended_by_itself_is_revived_and_one_that_was_stopped_is_not() -> None:
    site = Small()
    one, two = site.processes
    one.running = two.running = two.wanted = False
    for worker in site.workers:
        await worker.revive()
    assert (one.log, two.log) == (["start"], [])
    await site.workers[0].restart(kill=True)
    assert one.log == ["start", "kill", "start"]
    assert site.workers[0].client_id == "one.3"
