"""The coordinator: groups and their offsets together, over restarts; timers run by hand."""

import asyncio
import errno
import itertools
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from msgspec import structs

from kmr.broker.coordinators.group_coordinator import GroupCoordinator
from kmr.broker.coordinators.groups.consumer_group import ConsumerGroup
from kmr.broker.coordinators.groups.consumer_types import ConsumerHeartbeat
from kmr.broker.coordinators.groups.group_types import (
    GroupError,
    GroupState,
    JoinRequest,
    JoinResult,
    MemberIdentity,
    ProtocolChoice,
    SyncRequest,
)
from kmr.broker.coordinators.offset_store import OffsetStore
from kmr.broker.coordinators.state_log import StateLog
from kmr.broker.log.log_config import LogConfig
from kmr.broker.log.producers import Marker, ProducerIdentity
from kmr.broker.log.results import LogFailed
from kmr.broker.settings import BrokerSettings
from kmr.broker.supervision import Supervision
from kmr.broker.topics.topic import TopicPartition

NOBODY = MemberIdentity("")
SETTINGS = BrokerSettings(data_dir=Path("unused"), offsets_retention_seconds=100.0)


class Timer:
    def __init__(self, due: float, callback: Callable[[], object]) -> None:
        self.due = due
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class ManualClock:
    """Monotonic and wall-clock time in one; timers run in `advance`."""

    seconds: float = 0.0
    timers: list[Timer] = field(default_factory=list)

    def now(self) -> float:
        return self.seconds

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer:
        self.timers.append(Timer(self.seconds + delay, callback))
        return self.timers[-1]

    def advance(self, seconds: float) -> None:
        self.seconds += seconds
        due = [timer for timer in self.timers if timer.due <= self.seconds]
        self.timers = [timer for timer in self.timers if timer.due > self.seconds]
        for timer in sorted(due, key=lambda timer: timer.due):
            if not timer.cancelled:
                timer.callback()


class Bench:
    """A data directory with a coordinator that starts and stops."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.settings = SETTINGS

    @asynccontextmanager
    async def running(self) -> AsyncIterator[GroupCoordinator]:
        config = LogConfig(fsync="os")
        store = OffsetStore(StateLog(self.directory, config, clean=False, now=self.clock.now))
        async with GroupCoordinator(
            store,
            self.settings,
            clock=self.clock,
            now=self.clock.now,
            supervisor=Supervision(itertools.count(0, 10**9).__next__),  # what fails is due at once
        ) as groups:
            yield groups
        store.close()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "offsets")


def request(member_id: str = "") -> JoinRequest:
    return JoinRequest(
        member=MemberIdentity(member_id),
        protocol_type="consumer",
        protocols=(ProtocolChoice("range", b""),),
        session_timeout=10,
        rebalance_timeout=60,
    )


async def join_alone(groups: GroupCoordinator, group_id: str = "g") -> JoinResult:
    joined = await groups.join(group_id, request())
    assignments = ((joined.member_id, b"all"),)
    member = MemberIdentity(joined.member_id)
    synced = await groups.sync(group_id, SyncRequest(member, joined.generation, assignments))
    assert synced.assignment == b"all"
    return joined


async def test_a_member_waits_for_the_others_of_its_generation(bench: Bench) -> None:
    async with bench.running() as groups:
        first = await join_alone(groups)
        waiting = asyncio.ensure_future(groups.join("g", request()))
        await asyncio.sleep(0)
        assert not waiting.done()
        again = await groups.join("g", request(first.member_id))
        assert len(again.members) == 2
        assert (await waiting).generation == again.generation


@pytest.mark.parametrize("seconds", [5.9, 1800.1])
async def test_a_session_timeout_out_of_bounds_is_refused(bench: Bench, seconds: float) -> None:
    async with bench.running() as groups:
        joined = await groups.join("g", replace(request(), session_timeout=seconds))
        assert joined.error is GroupError.INVALID_SESSION_TIMEOUT


async def test_a_member_whose_connection_drops_stays_until_its_session_ends(bench: Bench) -> None:
    async with bench.running() as groups:
        await join_alone(groups)
        waiting = asyncio.ensure_future(groups.join("g", request()))
        await asyncio.sleep(0)
        waiting.cancel()
        assert len(groups.describe("g").members) == 2
        bench.clock.advance(10)  # the first member is silent, the generation completes without it
        assert len(groups.describe("g").members) == 1
        bench.clock.advance(10)
        assert groups.describe("g").state is GroupState.EMPTY


async def test_a_group_continues_after_a_restart(bench: Bench) -> None:
    async with bench.running() as groups:
        joined = await join_alone(groups)
        member = MemberIdentity(joined.member_id)
        await groups.commit("g", member, joined.generation, {("t", 0): (5, -1, "note")})
    async with bench.running() as groups:
        assert groups.heartbeat("g", member, joined.generation) is None
        assert await groups.commit("g", member, joined.generation, {("t", 1): (6, 0, "")}) is None
        committed = await groups.offsets.fetch("g", None)
        assert {each: what.offset for each, what in committed.items()} == {("t", 0): 5, ("t", 1): 6}
        assert committed["t", 0].metadata == "note"


async def test_generations_do_not_start_over_after_a_restart(bench: Bench) -> None:
    async with bench.running() as groups:
        joined = await join_alone(groups)
        groups.leave("g", MemberIdentity(joined.member_id))
    async with bench.running() as groups:
        assert (await join_alone(groups)).generation > joined.generation


async def test_open_joins_get_coordinator_not_available_when_the_broker_stops(bench: Bench) -> None:
    async with bench.running() as groups:
        await join_alone(groups)
        waiting = asyncio.ensure_future(groups.join("g", request()))
        await asyncio.sleep(0)
    assert (await waiting).error is GroupError.COORDINATOR_NOT_AVAILABLE


async def test_a_commit_of_an_old_generation_changes_nothing(bench: Bench) -> None:
    async with bench.running() as groups:
        old = await join_alone(groups)
        member = MemberIdentity(old.member_id)
        await groups.commit("g", member, old.generation, {("t", 0): (5, -1, "")})
        await groups.join("g", request(old.member_id))
        refused = await groups.commit("g", member, old.generation, {("t", 0): (9, -1, "")})
        assert refused is GroupError.ILLEGAL_GENERATION
        assert (await groups.offsets.fetch("g", None))["t", 0].offset == 5


async def test_offsets_can_be_stored_without_a_group(bench: Bench) -> None:
    async with bench.running() as groups:
        assert await groups.commit("tool", NOBODY, -1, {("t", 0): (5, -1, "")}) is None
        assert groups.describe("tool").state is GroupState.EMPTY
        unknown = await groups.commit("other", NOBODY, 1, {("t", 0): (5, -1, "")})
        assert unknown is GroupError.ILLEGAL_GENERATION
        assert groups.describe("other").state is GroupState.DEAD


async def test_requests_to_a_group_that_does_not_exist_are_refused(bench: Bench) -> None:
    async with bench.running() as groups:
        member = MemberIdentity("m")
        unknown = GroupError.UNKNOWN_MEMBER_ID
        assert groups.heartbeat("g", member, 1) is unknown
        assert groups.leave("g", member) is unknown
        assert (await groups.sync("g", SyncRequest(member, 1))).error is unknown
        assert (await groups.join("g", request("m"))).error is unknown
        assert groups.groups() == []


@pytest.mark.parametrize("group_id", ["", "x" * 32_768])
async def test_a_group_id_that_cannot_be_stored_is_refused(bench: Bench, group_id: str) -> None:
    async with bench.running() as groups:
        invalid = GroupError.INVALID_GROUP_ID
        assert (await groups.join(group_id, request())).error is invalid
        assert groups.heartbeat(group_id, NOBODY, 1) is invalid
        assert await groups.commit(group_id, NOBODY, -1, {}) is invalid
        assert await groups.delete(group_id) is invalid


@pytest.mark.parametrize(
    "wrong",
    [
        JoinRequest(MemberIdentity("", "i" * 250), "consumer", (ProtocolChoice("p", b""),), 10, 60),
        JoinRequest(NOBODY, "consumer", (ProtocolChoice("p" * 32_768, b""),), 10, 60),
    ],
)
async def test_names_that_cannot_be_stored_are_refused(bench: Bench, wrong: JoinRequest) -> None:
    async with bench.running() as groups:
        assert (await groups.join("g", wrong)).error is GroupError.INVALID_REQUEST


async def test_a_group_without_members_is_deleted_with_its_offsets(bench: Bench) -> None:
    async with bench.running() as groups:
        joined = await join_alone(groups)
        member = MemberIdentity(joined.member_id)
        await groups.commit("g", member, joined.generation, {("t", 0): (5, -1, "")})
        assert await groups.delete("g") is GroupError.NON_EMPTY_GROUP
        groups.leave("g", member)
        assert await groups.delete("g") is None
        assert await groups.delete("g") is GroupError.GROUP_ID_NOT_FOUND
        assert await groups.offsets.fetch("g", None) == {}
    async with bench.running() as groups:
        assert groups.groups() == []
        assert await groups.offsets.fetch("g", None) == {}


async def test_offsets_of_deleted_topics_are_removed(bench: Bench) -> None:
    async with bench.running() as groups:
        offsets = {("gone", 0): (5, -1, ""), ("kept", 0): (6, -1, "")}
        await groups.commit("g", NOBODY, -1, offsets)
        await groups.remove_topics(["gone"])
        assert (await groups.offsets.fetch("g", None)).keys() == {("kept", 0)}


async def test_offsets_expire_after_the_last_member_has_left(bench: Bench) -> None:
    async with bench.running() as groups:
        joined = await join_alone(groups)
        member = MemberIdentity(joined.member_id)
        await groups.commit("g", member, joined.generation, {("t", 0): (5, -1, "")})
        for _ in range(30):
            bench.clock.advance(5)
            await groups.expire_offsets()
            assert groups.heartbeat("g", member, joined.generation) is None
        assert await groups.offsets.fetch("g", None), "a group with members keeps its offsets"

        groups.leave("g", member)
        bench.clock.advance(95)
        await groups.expire_offsets()
        assert await groups.offsets.fetch("g", None)
        bench.clock.advance(15)
        await groups.expire_offsets()
        assert await groups.offsets.fetch("g", None) == {}
        assert groups.groups() == []


async def test_offsets_of_topics_that_no_member_reads_expire(bench: Bench) -> None:
    topic = b"\x00\x01t"
    subscription = b"\x00\x00" + b"\x00\x00\x00\x01" + topic + b"\xff\xff\xff\xff"
    async with bench.running() as groups:
        wish = replace(request(), protocols=(ProtocolChoice("range", subscription),))
        joined = await groups.join("g", wish)
        member = MemberIdentity(joined.member_id)
        await groups.sync("g", SyncRequest(member, joined.generation, ((member.member_id, b""),)))
        for name in ("t", "former"):
            await groups.commit("g", member, joined.generation, {(name, 0): (5, -1, "")})
        for _ in range(19):
            bench.clock.advance(5)
            await groups.expire_offsets()
            assert groups.heartbeat("g", member, joined.generation) is None
        assert (await groups.offsets.fetch("g", None)).keys() == {("t", 0), ("former", 0)}
        for _ in range(3):
            bench.clock.advance(5)
            await groups.expire_offsets()
            assert groups.heartbeat("g", member, joined.generation) is None
        assert (await groups.offsets.fetch("g", None)).keys() == {("t", 0)}


async def test_offsets_of_a_client_outside_the_group_expire_one_by_one(bench: Bench) -> None:
    async with bench.running() as groups:
        await groups.commit("tool", NOBODY, -1, {("t", 0): (5, -1, "")})
        bench.clock.advance(50)
        await groups.expire_offsets()
        await groups.commit("tool", NOBODY, -1, {("t", 1): (6, -1, "")})
        bench.clock.advance(60)
        await groups.expire_offsets()
        assert (await groups.offsets.fetch("tool", None)).keys() == {("t", 1)}
        bench.clock.advance(60)
        await groups.expire_offsets()
        assert groups.groups() == []


async def test_a_group_continues_when_its_generation_cannot_be_stored(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(store: OffsetStore, group_id: str, snapshot: object) -> None:
        raise LogFailed("the disk is full")

    async with bench.running() as groups:
        monkeypatch.setattr(OffsetStore, "store_group", failing)
        joined = await join_alone(groups)
        assert groups.heartbeat("g", MemberIdentity(joined.member_id), joined.generation) is None


async def test_a_transaction_may_commit_offsets_during_a_rebalance(
    bench: Bench,
) -> None:
    producer = ProducerIdentity(1, 0)
    async with bench.running() as groups:
        joined = await groups.join("g", request())  # and no leader has sent the assignments
        member = MemberIdentity(joined.member_id)
        offsets = {("t", 0): (5, -1, "")}
        refused = await groups.commit("g", member, joined.generation, offsets)
        assert refused is GroupError.REBALANCE_IN_PROGRESS
        commit = partial(groups.commit_in_transaction, "g", member, joined.generation)
        assert await commit(producer, offsets) is None
        assert groups.offsets.pending("g") == {("t", 0)}
        stale = await groups.commit_in_transaction("g", member, 7, producer, offsets)
        assert stale is GroupError.ILLEGAL_GENERATION


async def test_a_group_with_pending_offsets_is_not_removed(bench: Bench) -> None:
    producer = ProducerIdentity(1, 0)
    async with bench.running() as groups:
        await groups.commit("g", NOBODY, -1, {("t", 0): (5, -1, "")})
        await groups.commit_in_transaction("g", NOBODY, -1, producer, {("t", 0): (6, -1, "")})
        bench.clock.advance(SETTINGS.offsets_retention_seconds + 10)
        await groups.expire_offsets()
        assert (await groups.offsets.fetch("g", None))["t", 0].offset == 5
        await groups.offsets.end_transaction(producer, Marker(committed=False, coordinator_epoch=0))
        bench.clock.advance(10)
        await groups.expire_offsets()
        assert await groups.offsets.fetch("g", None) == {}


async def test_a_group_whose_offsets_cannot_be_removed_does_not_keep_those_of_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = OffsetStore.remove_offsets

    def failing(store: OffsetStore, group_id: str, partitions: Collection[TopicPartition]) -> int:
        if group_id == "bad":
            raise OSError(errno.EIO, "Input/output error")
        return remove(store, group_id, partitions)

    monkeypatch.setattr(OffsetStore, "remove_offsets", failing)
    async with bench.running() as groups:
        for name in ("bad", "good"):
            await groups.commit(name, NOBODY, -1, {("t", 0): (5, -1, "")})
        bench.clock.advance(SETTINGS.offsets_retention_seconds + 10)
        await groups.expire_offsets()
        assert [each.id for each in groups.groups()] == ["bad"]


def heartbeat(member: str, epoch: int = 0) -> ConsumerHeartbeat:
    return ConsumerHeartbeat(
        member, epoch, rebalance_timeout=60.0, topics=("t",), owned=frozenset()
    )


async def test_a_group_with_members_keeps_its_protocol_and_one_without_changes_it(
    bench: Bench,
) -> None:
    async def join_new(member: str, epoch: int = 0) -> GroupError | None:
        beat = heartbeat(member, epoch)
        return (await groups.consumer_heartbeat("g", beat, lambda _: True)).error

    async with bench.running() as groups:
        old = await join_alone(groups)
        await groups.commit("g", MemberIdentity(old.member_id), 1, {("t", 0): (5, -1, "")})
        assert await join_new("new") is GroupError.GROUP_ID_NOT_FOUND
        groups.leave("g", MemberIdentity(old.member_id))
        assert await join_new("new") is None
        assert (await groups.join("g", request())).error is GroupError.INCONSISTENT_GROUP_PROTOCOL
        for refused in (
            groups.heartbeat("g", MemberIdentity("new"), 1),
            groups.leave("g", MemberIdentity("new")),
            (await groups.sync("g", SyncRequest(MemberIdentity("new"), 1))).error,
        ):
            assert refused is GroupError.UNKNOWN_MEMBER_ID
    async with bench.running() as groups:
        assert await join_new("new", -1) is None
        assert (await join_alone(groups)).error is None
        assert (await groups.offsets.fetch("g", None))["t", 0].offset == 5
    async with bench.running() as groups:
        assert groups.describe("g").state is GroupState.STABLE


def subscription(version: int, *topics: str) -> bytes:
    """As clients write it that say a newer version, and write the fields of version 0."""
    names = b"".join(pack(">h", len(each)) + each.encode() for each in topics)
    return pack(">hi", version, len(topics)) + names + pack(">i", -1)


@pytest.mark.parametrize(
    ("protocols", "refused"),
    [
        ([("range", subscription(1, "t"))], {"t"}),
        ([("range", subscription(3, "u")), ("sticky", subscription(3, "t"))], set()),
        ([("range", b"?")], {"t", "gone"}),
        ([("range", subscription(0, "u")), ("sticky", b"?")], set()),
    ],
)
async def test_offsets_are_deleted_of_topics_that_members_do_not_read_by_the_chosen_protocol(
    bench: Bench, protocols: list[tuple[str, bytes]], refused: set[str]
) -> None:
    wanted = {("t", 0), ("gone", 0)}
    async with bench.running() as groups:
        choices = tuple(ProtocolChoice(*each) for each in protocols)
        joined = await groups.join("g", replace(request(), protocols=choices))
        member = MemberIdentity(joined.member_id)
        await groups.sync("g", SyncRequest(member, joined.generation, ((member.member_id, b""),)))
        await groups.commit("g", member, 1, dict.fromkeys(wanted, (5, -1, "")))
        kept = {(topic, 0) for topic in refused}
        assert await groups.delete_offsets("g", wanted) == kept
        assert (await groups.offsets.fetch("g", None)).keys() == kept


async def test_offsets_of_a_group_that_assigns_no_partitions_are_not_deleted_while_it_has_members(
    bench: Bench,
) -> None:
    async with bench.running() as groups:
        await groups.join("g", replace(request(), protocol_type="connect"))
        assert await groups.delete_offsets("g", {("t", 0)}) is GroupError.NON_EMPTY_GROUP


class FullDisk:
    """A log that refuses appends while `full`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        works = StateLog.append

        def append(log: StateLog, *arguments: Any) -> int:
            if self.full:
                raise LogFailed("no space left on device")
            return works(log, *arguments)

        monkeypatch.setattr(StateLog, "append", append)


async def test_what_a_full_disk_kept_from_being_stored_of_a_group_is_stored_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)

    async def beat(member: str, epoch: int = 0) -> int:
        result = await groups.consumer_heartbeat("g", heartbeat(member, epoch), lambda _: True)
        assert result.error is None
        return result.epoch

    async with bench.running() as groups:
        epoch = await beat("a")
        disk.full = True
        with pytest.raises(LogFailed):
            await beat("b")
        disk.full = False
        await beat("a", epoch)
        group = groups.find("g")
        assert isinstance(group, ConsumerGroup)
        before = group.records()
    async with bench.running() as groups:
        group = groups.find("g")
        assert isinstance(group, ConsumerGroup)
        assert group.records() == before
        assert group.epoch >= max(each.epoch for each in group.members.values())


async def test_a_generation_that_a_full_disk_kept_from_being_stored_is_stored_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)
    async with bench.running() as groups:
        disk.full = True
        joined = await join_alone(groups)
        disk.full = False
        await groups.maintain()
    async with bench.running() as groups:
        assert groups.heartbeat("g", MemberIdentity(joined.member_id), joined.generation) is None


async def test_what_clients_make_groups_keep_has_a_budget_and_members_go_on(bench: Bench) -> None:
    bench.settings = structs.replace(SETTINGS, group_memory_bytes=100_000)
    protocols = (ProtocolChoice("range", bytes(10_000)),)
    async with bench.running() as groups:
        first = await join_alone(groups, "honest")
        member, offset = MemberIdentity(first.member_id), {("t", 0): (5, -1, "")}
        assert await groups.commit("honest", member, 1, offset) is None

        refused = 0
        for at in range(50):
            large = replace(request(), protocols=protocols, require_known_member_id=False)
            group_id = f"g{at}"
            joining = asyncio.ensure_future(groups.join(group_id, large))
            await asyncio.sleep(0)
            refused += (
                joining.done() and joining.result().error is GroupError.GROUP_MAX_SIZE_REACHED
            )
        assert 40 <= refused < 50
        many = {(f"t{at}", 0): (5, -1, "x" * 100) for at in range(1000)}
        assert await groups.commit("tool", NOBODY, -1, many) is (
            GroupError.INVALID_COMMIT_OFFSET_SIZE
        )
        beat = replace(heartbeat("m"), topics=tuple(f"{'t' * 200}{at}" for at in range(1000)))
        result = await groups.consumer_heartbeat("new", beat, lambda _: True)
        assert result.error is GroupError.GROUP_MAX_SIZE_REACHED

        assert groups.heartbeat("honest", member, 1) is None
        assert await groups.commit("honest", member, 1, offset) is None
        assert (await groups.join("honest", request(first.member_id))).error is None
        await groups.maintain()
        assert sum(each.kept_bytes for each in groups.groups()) <= 100_000


async def test_the_memory_of_offsets_is_given_back_when_they_are_gone(bench: Bench) -> None:
    producer = ProducerIdentity(1, 0)
    async with bench.running() as groups:
        offsets = {(topic, 0): (5, -1, "note") for topic in ("a", "b", "c")}
        await groups.commit("g", NOBODY, -1, offsets)
        once = groups.offsets.offset_bytes
        await groups.commit("g", NOBODY, -1, offsets)
        assert groups.offsets.offset_bytes == once > 0
        await groups.commit_in_transaction("g", NOBODY, -1, producer, offsets)
        assert groups.offsets.offset_bytes == 2 * once
        await groups.offsets.end_transaction(producer, Marker(committed=True, coordinator_epoch=0))
        assert groups.offsets.offset_bytes == once
    async with bench.running() as groups:
        assert groups.offsets.offset_bytes == once
        await groups.remove_topics(["a"])
        await groups.delete("g")
        assert groups.offsets.offset_bytes == 0


async def test_a_stored_group_that_cannot_be_read_does_not_keep_the_others(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    async with bench.running() as groups:
        joined = await join_alone(groups, "good")
        await groups.commit("bad", NOBODY, -1, {("t", 0): (5, -1, "")})
        groups.offsets.store_consumer_group("bad", {"member": {"epoch": "?"}})
    async with bench.running() as groups:
        assert groups.heartbeat("good", MemberIdentity(joined.member_id), 1) is None
        assert "a stored group cannot be read" in capsys.readouterr().out
        assert (await groups.join("bad", request())).error is None
        assert (await groups.offsets.fetch("bad", None))["t", 0].offset == 5
