"""A group changes its protocol while it has members: no partition has two holders, and all are read."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from kmr.broker.coordinators.group_coordinator import GroupCoordinator
from kmr.broker.coordinators.groups.consumer_group import ConsumerGroup
from kmr.broker.coordinators.groups.consumer_types import ConsumerHeartbeat
from kmr.broker.coordinators.groups.embedded_protocol import (
    read_assignment,
    read_subscription,
    write_assignment,
)
from kmr.broker.coordinators.groups.group import Group
from kmr.broker.coordinators.groups.group_types import (
    GroupError,
    JoinRequest,
    JoinResult,
    MemberIdentity,
    ProtocolChoice,
    SyncRequest,
)
from kmr.broker.coordinators.offset_store import OffsetStore
from kmr.broker.coordinators.state_log import StateLog
from kmr.broker.log.log_config import LogConfig
from kmr.broker.settings import BrokerSettings, MigrationPolicy
from tests.broker.coordinators.conftest import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

T = TypeVar("T")
TOPIC, COUNT = UUID(int=7), 6
EVERYTHING = frozenset(range(COUNT))
SESSION = 10.0


def subscription(owned: frozenset[int], topic: str = "t") -> bytes:
    """Version 1: the topic, no user data, the partitions that the member owns."""
    name = len(topic).to_bytes(2, "big") + topic.encode()
    indexes = b"".join(each.to_bytes(4, "big") for each in sorted(owned))
    parts = b"\0\0\0\1" + name + len(owned).to_bytes(4, "big") + indexes
    return b"\0\1" + b"\0\0\0\1" + name + b"\xff\xff\xff\xff" + (parts if owned else b"\0\0\0\0")


class Site:
    """A coordinator on a data directory and a virtual clock; `run` lets its event loop go on."""

    def __init__(
        self, directory: Path, policy: MigrationPolicy = "bidirectional", **settings: Any
    ) -> None:
        self.settings = BrokerSettings(
            data_dir=Path("unused"),
            group_consumer_session_timeout=SESSION,
            group_consumer_migration_policy=policy,
            **settings,
        )
        self.directory = directory
        self.clock = VirtualClock()
        self.runner = asyncio.Runner()
        self.start()

    def start(self) -> None:
        log = StateLog(self.directory, LogConfig(fsync="os"), clean=False, now=lambda: 0.0)
        self.store = OffsetStore(log)
        topics: Any = {"t": SimpleNamespace(topic_id=TOPIC, partitions=range(COUNT))}
        self.groups = GroupCoordinator(self.store, self.settings, clock=self.clock, topics=topics)
        self.stopping = asyncio.Event()
        self.serving = self.begin(self._serve())

    async def _serve(self) -> None:
        async with self.groups:
            await self.stopping.wait()

    def stop(self) -> None:
        async def ended() -> None:
            self.stopping.set()
            await self.serving

        self.run(ended())
        self.store.close()

    def close(self) -> None:
        self.stop()
        self.runner.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start work that may have to wait for other members."""

        async def start() -> asyncio.Task[T]:
            return asyncio.get_running_loop().create_task(work)

        task = self.run(start())
        self.tick()
        return task

    def tick(self) -> None:
        async def turns() -> None:
            for _ in range(4):
                await asyncio.sleep(0)

        self.run(turns())

    @property
    def group(self) -> Group | ConsumerGroup:
        found = self.groups.find("g")
        assert found is not None
        return found


class Client:
    """A member as an application sees it: one step at a time, in any order with those of others."""

    held: frozenset[int] = frozenset()

    def step(self) -> None:
        raise NotImplementedError

    def leave(self) -> None:
        raise NotImplementedError


class ConsumerClient(Client):
    """Speaks the protocol of KIP-848."""

    def __init__(self, site: Site, name: str, instance_id: str | None = None) -> None:
        self.site, self.name, self.instance_id = site, name, instance_id
        self.epoch = 0
        self.target: frozenset[int] = frozenset()
        self.step()

    def _send(self, epoch: int) -> Any:
        joins = epoch == 0
        beat = ConsumerHeartbeat(
            self.name,
            epoch,
            self.instance_id,
            rebalance_timeout=60.0 if joins else None,
            topics=("t",) if joins else None,
            owned=frozenset((TOPIC, index) for index in self.held),
        )
        return self.site.run(self.site.groups.consumer_heartbeat("g", beat, lambda _: True))

    def step(self) -> None:
        self.held &= self.target
        result = self._send(self.epoch)
        if result.error in (GroupError.UNKNOWN_MEMBER_ID, GroupError.FENCED_MEMBER_EPOCH):
            self.epoch, self.held, self.target = 0, frozenset(), frozenset()
            return
        assert result.error is None, result
        self.epoch = result.epoch
        if result.assignment is not None:
            self.target = frozenset(index for _, index in result.assignment)
            self.held |= self.target

    def leave(self) -> None:
        assert self._send(-1).error is None


class ClassicClient(Client):
    """Speaks the classic protocol, and gives up all partitions before it joins, or keeps them (KIP-429)."""

    def __init__(self, site: Site, *, keeps: bool, instance_id: str | None = None) -> None:
        self.site, self.keeps, self.instance_id = site, keeps, instance_id
        self.id = ""
        self.generation = -1
        self.joining: asyncio.Task[JoinResult] | None = None
        self.joined: JoinResult | None = None
        self.syncing: asyncio.Task[Any] | None = None
        self.is_member = False
        self.step()

    @property
    def identity(self) -> MemberIdentity:
        return MemberIdentity(self.id, self.instance_id)

    def step(self) -> None:
        if self.joining is not None or self.syncing is not None:
            self.site.tick()
        if self.joining is not None:
            self._after_join()
        elif self.syncing is not None:
            self._after_sync()
        elif self.joined is not None:
            self._sync(self.joined)
        elif not self.is_member:
            self._join()
        else:
            error = self.site.groups.heartbeat("g", self.identity, self.generation)
            self._refused(error)

    def _refused(self, error: GroupError | None) -> None:
        if error is None:
            return
        self.is_member = False
        self.joined = None
        if error is GroupError.UNKNOWN_MEMBER_ID:
            self.id = ""
        if error not in (GroupError.REBALANCE_IN_PROGRESS, GroupError.COORDINATOR_NOT_AVAILABLE):
            self.held = frozenset()  # lost

    def _join(self) -> None:
        if not self.keeps:
            self.held = frozenset()
        request = JoinRequest(
            self.identity,
            "consumer",
            (ProtocolChoice("sticky", subscription(self.held)),),
            session_timeout=SESSION,
            rebalance_timeout=60.0,
            client_id="classic",
            require_known_member_id=True,
        )
        self.joining = self.site.begin(self.site.groups.join("g", request))

    def _after_join(self) -> None:
        assert self.joining is not None
        if not self.joining.done():
            return
        result, self.joining = self.joining.result(), None
        if result.error is GroupError.MEMBER_ID_REQUIRED:
            self.id = result.member_id
        elif result.error is not None:
            self._refused(result.error)
        else:
            self.id, self.generation, self.joined = result.member_id, result.generation, result

    def _sync(self, joined: JoinResult) -> None:
        leads = joined.leader_id == self.id
        assignments = self._assign(joined) if leads else ()
        request = SyncRequest(self.identity, self.generation, assignments, "consumer", "sticky")
        self.syncing = self.site.begin(self.site.groups.sync("g", request))
        self.joined = None

    def _after_sync(self) -> None:
        assert self.syncing is not None
        if not self.syncing.done():
            return
        result, self.syncing = self.syncing.result(), None
        if result.error is not None:
            self._refused(result.error)
            return
        partitions, _ = read_assignment(result.assignment)
        given = frozenset(index for _, index in partitions)
        # A member that gives up partitions joins again, so that others get them.
        self.is_member = not (self.held - given)
        self.held = given

    def _assign(self, joined: JoinResult) -> tuple[tuple[str, bytes], ...]:
        """Deal the partitions; what a member owns goes to another one only when it is given up."""
        owners = {
            index: member.member_id
            for member in joined.members
            for _, index in read_subscription(member.metadata).owned
        }
        members = sorted(each.member_id for each in joined.members)
        given: dict[str, set[tuple[str, int]]] = {each: set() for each in members}
        for index in range(COUNT):
            member = members[index % len(members)]
            if owners.get(index, member) == member:
                given[member].add(("t", index))
        return tuple((member, write_assignment(1, each)) for member, each in given.items())

    def leave(self) -> None:
        if self.id:
            assert self.site.groups.leave("g", self.identity) in (
                None,
                GroupError.UNKNOWN_MEMBER_ID,
            )
        self.site.begin(self._forget())

    async def _forget(self) -> None:
        for task in (self.joining, self.syncing):
            if task is not None:
                task.cancel()


def settle(site: Site, clients: list[Client]) -> None:
    """Let all clients go on until a rebalance would be over."""
    for _ in range(40):
        for client in clients:
            client.step()
            assert_one_holder(clients)
        site.clock.advance(0.1)


def assert_one_holder(clients: list[Client]) -> None:
    held = [index for client in clients for index in client.held]
    assert len(held) == len(set(held)), held


def assert_all_are_read(clients: list[Client]) -> None:
    assert_one_holder(clients)
    assert frozenset().union(*(client.held for client in clients)) == EVERYTHING


KINDS = st.sampled_from(["consumer", "eager", "cooperative"])


class Model(RuleBasedStateMachine):
    """Members of both protocols come, go and vanish in any order, and the broker restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.site = Site(Path(self.directory.name) / "offsets")
        self.clients: list[Client] = []
        self.names = 0

    @initialize(kinds=st.lists(KINDS, min_size=1, max_size=4))
    def begin(self, kinds: list[str]) -> None:
        for kind in kinds:
            self.join(kind)
        settle(self.site, self.clients)

    @rule(kind=KINDS)
    def join(self, kind: str) -> None:
        if len(self.clients) == 5:
            return
        self.names += 1
        if kind == "consumer":
            self.clients.append(ConsumerClient(self.site, f"m{self.names}"))
        else:
            self.clients.append(ClassicClient(self.site, keeps=kind == "cooperative"))

    @rule(order=st.lists(st.integers(0, 4), min_size=1, max_size=8))
    def go_on(self, order: list[int]) -> None:
        for at in order:
            if self.clients:
                self.clients[at % len(self.clients)].step()

    @rule()
    def all_go_on(self) -> None:
        settle(self.site, self.clients)

    @rule(kind=KINDS, at=st.integers(0, 4))
    def replace(self, kind: str, at: int) -> None:
        """As in a rolling upgrade, or its way back."""
        self.leave(at)
        self.join(kind)

    @rule(at=st.integers(0, 4))
    def leave(self, at: int) -> None:
        if self.clients:
            self.clients.pop(at % len(self.clients)).leave()

    @rule(at=st.integers(0, 4))
    def vanish(self, at: int) -> None:
        """Its session ends while the others go on."""
        if self.clients:
            gone = self.clients.pop(at % len(self.clients))
            if isinstance(gone, ClassicClient):
                self.site.begin(gone._forget())
            for _ in range(4):
                settle(self.site, self.clients)

    @rule()
    def restart(self) -> None:
        self.site.stop()
        self.site.start()

    @invariant()
    def one_holder(self) -> None:
        assert_one_holder(self.clients)

    def teardown(self) -> None:
        for _ in range(8):
            settle(self.site, self.clients)
        if self.clients:
            assert_all_are_read(self.clients)
            is_new = any(isinstance(each, ConsumerClient) for each in self.clients)
            assert isinstance(self.site.group, ConsumerGroup if is_new else Group)
        for client in self.clients:
            client.leave()
        self.site.close()
        self.directory.cleanup()


def test_any_order_of_both_protocols_keeps_one_holder_and_reads_everything() -> None:
    run_state_machine_as_test(
        Model, settings=hypothesis_settings(max_examples=40, stateful_step_count=20, deadline=None)
    )


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path / "offsets")
    yield site
    site.close()


def kinds(group: Group | ConsumerGroup) -> list[bool]:
    """Whether each member of a group of KIP-848 uses the classic protocol."""
    assert isinstance(group, ConsumerGroup)
    return sorted(each.classic is not None for each in group.members.values())


@pytest.mark.parametrize("keeps", [False, True])
def test_members_are_upgraded_one_after_the_other_and_back(site: Site, keeps: bool) -> None:
    first, second = (ClassicClient(site, keeps=keeps) for _ in range(2))
    settle(site, [first, second])
    held = first.held
    assert isinstance(site.group, Group)
    third = ConsumerClient(site, "new")
    assert first.held == held
    assert third.held == frozenset()
    settle(site, [first, second, third])
    assert kinds(site.group) == [False, True, True]
    assert [len(each.held) for each in (first, second, third)] == [2, 2, 2]
    first.leave()
    fourth = ConsumerClient(site, "newer")
    settle(site, [second, third, fourth])
    assert_all_are_read([second, third, fourth])
    second.leave()
    settle(site, [third, fourth])
    assert kinds(site.group) == [False, False]
    fifth = ClassicClient(site, keeps=keeps)
    settle(site, [third, fourth, fifth])
    third.leave()
    settle(site, [fourth, fifth])
    generation = site.group.generation
    fourth.leave()
    assert isinstance(site.group, Group)
    assert fifth.generation == generation
    settle(site, [fifth])
    assert fifth.held == EVERYTHING
    assert fifth.generation == generation + 1


def test_members_that_wait_in_a_rebalance_are_asked_to_join_the_upgraded_group(site: Site) -> None:
    first = ClassicClient(site, keeps=False)
    settle(site, [first])
    second = ClassicClient(site, keeps=False)
    second.step()
    second.step()
    assert second.joining is not None  # it waits for the first one
    third = ConsumerClient(site, "new")
    site.tick()
    assert second.joining.done()
    assert second.joining.result().error is GroupError.REBALANCE_IN_PROGRESS
    settle(site, [first, second, third])
    assert_all_are_read([first, second, third])


def test_a_group_that_lives_on_through_a_restart_has_members_of_both_protocols(site: Site) -> None:
    clients = [ClassicClient(site, keeps=True), ConsumerClient(site, "new")]
    settle(site, clients)
    held = [each.held for each in clients]
    site.stop()
    site.start()
    settle(site, clients)
    assert [each.held for each in clients] == held
    assert kinds(site.group) == [False, True]


@pytest.mark.parametrize(
    ("policy", "upgrades", "downgrades"),
    [
        ("bidirectional", True, True),
        ("upgrade", True, False),
        ("downgrade", False, True),
        ("disabled", False, False),
    ],
)
def test_the_policy_allows_each_direction(
    tmp_path: Path, policy: MigrationPolicy, upgrades: bool, downgrades: bool
) -> None:
    site = Site(tmp_path / "up", policy)
    classic = ClassicClient(site, keeps=False)
    settle(site, [classic])
    result = site.run(site.groups.consumer_heartbeat("g", JOIN, lambda _: True))
    assert (result.error is None) is upgrades
    assert upgrades or "group.consumer.migration.policy" in str(result.reason)
    assert isinstance(site.group, ConsumerGroup) is upgrades
    site.close()

    site = Site(tmp_path / "down", policy)
    new = ConsumerClient(site, "new")
    classic = ClassicClient(site, keeps=False)
    settle(site, [new, classic])
    new.leave()
    settle(site, [classic])
    assert isinstance(site.group, Group) is downgrades
    assert classic.held == EVERYTHING
    site.close()


JOIN = ConsumerHeartbeat("new", 0, rebalance_timeout=60.0, topics=("t",), owned=frozenset())


def alone(
    site: Site, metadata: bytes, assignment: bytes = b"", protocol_type: str = "consumer"
) -> MemberIdentity:
    """Make a stable classic group of one member with this subscription and assignment."""
    choices = (ProtocolChoice("own", metadata),)
    request = JoinRequest(MemberIdentity(""), protocol_type, choices, SESSION, 60.0)
    joined = site.run(site.groups.join("g", request))
    identity = MemberIdentity(joined.member_id)
    sync = SyncRequest(identity, joined.generation, ((joined.member_id, assignment),))
    assert site.run(site.groups.sync("g", sync)).error is None
    return identity


@pytest.mark.parametrize(
    ("metadata", "assignment", "protocol_type", "reason"),
    [
        (b"", b"", "connect", "does not use the protocol of consumers"),
        (b"\0", b"", "consumer", "cannot be read"),
        (subscription(frozenset()), b"\0\0\0", "consumer", "cannot be read"),
        (
            subscription(frozenset()),
            b"\0\0\0\0\0\0\0\0\0\1x",
            "consumer",
            "the data that its assignor adds to assignments would be lost",
        ),
    ],
)
def test_a_group_that_cannot_be_upgraded_says_why_and_goes_on(
    site: Site, metadata: bytes, assignment: bytes, protocol_type: str, reason: str
) -> None:
    member = alone(site, metadata, assignment, protocol_type)
    result = site.run(site.groups.consumer_heartbeat("g", JOIN, lambda _: True))
    assert result.error is GroupError.GROUP_ID_NOT_FOUND
    assert reason in str(result.reason)
    assert site.groups.heartbeat("g", member, 1) is None


def test_a_member_that_is_refused_upgrades_no_group(site: Site) -> None:
    member = alone(site, subscription(frozenset()))
    unknown = replace(JOIN, assignor="mine")
    result = site.run(site.groups.consumer_heartbeat("g", unknown, lambda _: True))
    assert result.error is GroupError.UNSUPPORTED_ASSIGNOR
    later = replace(JOIN, epoch=3)
    result = site.run(site.groups.consumer_heartbeat("g", later, lambda _: True))
    assert result.error is GroupError.GROUP_ID_NOT_FOUND
    assert site.groups.heartbeat("g", member, 1) is None


def test_a_group_with_more_members_than_the_other_protocol_allows_keeps_its_own(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path / "offsets", group_consumer_max_size=1, group_max_size=1)
    member = alone(site, subscription(frozenset()))
    result = site.run(site.groups.consumer_heartbeat("g", JOIN, lambda _: True))
    assert result.error is GroupError.GROUP_MAX_SIZE_REACHED
    assert site.groups.heartbeat("g", member, 1) is None
    site.close()


def test_a_static_member_is_replaced_by_one_of_the_other_protocol(site: Site) -> None:
    old = ClassicClient(site, keeps=False, instance_id="i")
    other = ClassicClient(site, keeps=False)
    settle(site, [old, other])
    held = old.held
    new = ConsumerClient(site, "new", instance_id="i")
    assert new.held == held
    old.step()
    assert site.groups.heartbeat("g", old.identity, old.generation) is (
        GroupError.FENCED_INSTANCE_ID
    )
    settle(site, [new, other])
    assert_all_are_read([new, other])
    back = ClassicClient(site, keeps=False, instance_id="i")
    assert isinstance(site.group, Group)  # the only member of KIP-848 is gone
    refused = site.run(
        site.groups.consumer_heartbeat("g", replace(JOIN, epoch=new.epoch), lambda _: True)
    )
    assert refused.error is GroupError.GROUP_ID_NOT_FOUND
    settle(site, [back, other])
    assert_all_are_read([back, other])


def test_offsets_stay_and_late_commits_of_both_kinds_are_refused(site: Site) -> None:
    classic = ClassicClient(site, keeps=False)
    settle(site, [classic])

    def commit(member: MemberIdentity, epoch: int, offset: int, **more: bool) -> Any:
        offsets = {("t", 0): (offset, 0, "")}
        return site.run(site.groups.commit("g", member, epoch, offsets, **more))

    assert commit(classic.identity, classic.generation, 5) is None
    new = ConsumerClient(site, "new")
    generation = classic.generation
    # It does not know yet, and still holds its partitions.
    assert commit(classic.identity, generation, 6, knows_epochs=False) is None
    settle(site, [classic, new])
    assert commit(classic.identity, generation, 7) is GroupError.ILLEGAL_GENERATION
    assert commit(classic.identity, classic.generation, 8) is None
    assert commit(MemberIdentity("new"), new.epoch - 1, 9) is GroupError.STALE_MEMBER_EPOCH
    new.leave()
    settle(site, [classic])
    assert commit(MemberIdentity("new"), new.epoch, 9) is GroupError.UNKNOWN_MEMBER_ID
    assert site.store.committed("g")["t", 0].offset == 8
