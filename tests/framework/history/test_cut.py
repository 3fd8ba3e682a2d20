"""The commit of the cut: against members, commits, late members and a crash between its two requests."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from kmr import Text
from kmr.delivery.announcement import BackfillRange, Generation, LookBack, history_group
from kmr.errors import ConsumerError
from kmr.history.backfill import WantedRange, begin_reading, hand_over, offsets_left, prepare
from kmr.history.plan import BackfillPlan
from kmr.kafka.admin import Admin, connect_admin
from kmr.kafka.connection import connection_config, consumer_config
from kmr.kafka.consumer import CommitOffset
from kmr.kafka.kafka_consumer import KafkaConsumer
from kmr.record import TopicPartition
from kmr.reducers.collect import Collect
from kmr.settings import Settings
from kmr.strategy import Strategy
from kmr.worker import Worker

if TYPE_CHECKING:
    from kmr.broker import Broker
    from tests.framework.conftest import CreateTopic, Produce

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
WANTED = WantedRange("start", "end", "worker")


@pytest.fixture
async def settings(broker: Broker, create_topic: CreateTopic, produce: Produce) -> Settings:
    """A topic with ten records in each of two partitions."""
    await create_topic("t", 2)
    for partition in range(2):
        await produce("t", [b"x"] * 10, partition)
    return Settings(
        topics=("t",),
        group="g",
        bootstrap_servers=broker.bootstrap_servers,
        heartbeat_interval=0.2,
        session_timeout=6,
    )


async def committed(settings: Settings, group: str) -> dict[TopicPartition, CommitOffset]:
    async with connect_admin(connection_config(settings)) as admin:
        return await admin.list_group_offsets(group)


async def reset(settings: Settings, group: str, *offsets: CommitOffset) -> None:
    async with connect_admin(connection_config(settings)) as admin:
        await admin.reset_offsets(group, dict(zip((P0, P1), offsets, strict=True)))


class Member:
    """A member of the group that notes the committed offsets that it finds when it is assigned."""

    def __init__(self, settings: Settings) -> None:
        self.consumer = KafkaConsumer(consumer_config(settings))
        self.found: list[dict[TopicPartition, CommitOffset | None]] = []

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None: ...

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        if partitions:
            self.found.append(await self.consumer.committed(partitions))


async def test_both_groups_have_the_plan_and_no_member_is_left(settings: Settings) -> None:
    prepared = await prepare(settings, WANTED)
    assert prepared.is_new
    plan = await begin_reading(settings, prepared)
    generation = Generation(plan.generation)
    assert await committed(settings, "g") == {
        P0: CommitOffset(10, generation.metadata),
        P1: CommitOffset(10, generation.metadata),
    }
    history = Generation(plan.generation, history=BackfillRange(0, 10))
    assert await committed(settings, "g.backfill") == {
        P0: CommitOffset(0, history.metadata),
        P1: CommitOffset(0, history.metadata),
    }
    async with connect_admin(connection_config(settings)) as admin:
        assert not (await admin.group("g")).members
    again = await prepare(settings, WANTED)
    assert (again.is_new, again.is_cut, again.plan.histories) == (False, True, plan.histories)
    assert await begin_reading(settings, again) == again.plan


async def test_a_member_is_in_the_way_and_nothing_changes(settings: Settings) -> None:
    prepared = await prepare(settings, WANTED)
    member = Member(settings)
    await member.consumer.start(member)
    while not member.found:  # noqa: ASYNC110  filled by the client
        await anyio.sleep(0.01)
    for refused in (prepare(settings, WANTED), begin_reading(settings, prepared)):
        with pytest.raises(ConsumerError, match=r"group g has 1 member \(kmr at .*stop them"):
            await refused
    await member.consumer.stop()
    assert await committed(settings, "g") == await committed(settings, "g.backfill") == {}


async def test_a_commit_that_came_after_the_look_is_noticed_by_the_member_that_we_are(
    settings: Settings,
) -> None:
    prepared = await prepare(settings, WANTED)
    await reset(settings, "g", CommitOffset(3), CommitOffset(0))
    with pytest.raises(ConsumerError, match=r"the cut would pass: t-0: 3 \(the cut would be 10\)"):
        await begin_reading(settings, prepared)
    assert {at: entry.offset for at, entry in (await committed(settings, "g")).items()} == {
        P0: 3,
        P1: 0,
    }
    assert await committed(settings, "g.backfill") == {}


@pytest.mark.parametrize("moment", ["read", "plan"])
async def test_a_member_that_comes_while_the_cut_is_committed_begins_at_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """It joins before our commit: the group waits for us, and has the cut when it is assigned."""
    prepared = await prepare(settings, WANTED)
    late = Member(settings)
    joined = anyio.Event()

    async def join() -> None:
        await late.consumer.start(late)
        joined.set()
        await anyio.sleep(0.5)  # JoinGroup is at the broker

    owner: Any = KafkaConsumer if moment == "read" else Admin
    name = "committed" if moment == "read" else "reset_offsets"
    original = getattr(owner, name)

    async def slow(self: Any, *arguments: Any, **options: Any) -> Any:
        found = await original(self, *arguments, **options)
        if self is not late.consumer and not joined.is_set():
            await join()
        return found

    monkeypatch.setattr(owner, name, slow)
    try:
        await begin_reading(settings, prepared)
    except ConsumerError as refused:
        assert "another member joined while the cut was committed" in str(refused)  # noqa: PT017
    with anyio.fail_after(60):
        while not late.found:  # noqa: ASYNC110  filled by the client
            await anyio.sleep(0.02)
    offsets = await committed(settings, "g")
    await late.consumer.stop()
    # Either it begins at the cut, or there is none: never at another place below a cut.
    for found in late.found:
        assert {at: entry for at, entry in found.items() if entry is not None} in ({}, offsets)
    if offsets:
        assert all(None not in found.values() for found in late.found)
        assert offsets == prepared.plan.cut


@pytest.mark.parametrize("moment", ["before the cut", "after it"])
async def test_a_member_that_was_put_out_and_comes_back_late_commits_nothing_over_the_cut(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Its commit, of the generation that it knows, arrives before ours, or when the cut is committed."""
    silent = Member(settings)
    await silent.consumer.start(silent)
    with anyio.fail_after(60):
        while not silent.found:  # noqa: ASYNC110  filled by the client
            await anyio.sleep(0.01)
    client: Any = silent.consumer
    coordinator, over = client._consumer._coordinator, anyio.Event()

    async def join_later(*_: object) -> None:
        await over.wait()

    monkeypatch.setattr(coordinator, "ensure_active_group", join_later)
    await coordinator._stop_heartbeat_task()
    await coordinator._maybe_leave_group()  # as the broker puts it out
    late = {P0: CommitOffset(4), P1: CommitOffset(4)}

    async def commit_late() -> None:
        with pytest.raises(ConsumerError):
            await silent.consumer.commit(late)

    original = KafkaConsumer.commit

    async def after_the_late_one(self: KafkaConsumer, offsets: Any) -> None:
        if self is not silent.consumer:
            await commit_late()
        await original(self, offsets)

    if moment == "before the cut":
        monkeypatch.setattr(KafkaConsumer, "commit", after_the_late_one)
    try:
        plan = await begin_reading(settings, await prepare(settings, WANTED))
        await commit_late()
    finally:
        over.set()
        await silent.consumer.stop()
    assert await committed(settings, "g") == plan.cut


async def test_a_crash_between_the_two_commits_is_repaired_with_the_same_plan(
    settings: Settings, produce: Produce
) -> None:
    first = await prepare(settings, WANTED)
    async with connect_admin(connection_config(settings)) as admin:
        await admin.reset_offsets(history_group("g"), first.plan.beginning)
    await produce("t", [b"x"] * 5, 0)
    again = await prepare(settings, WANTED)
    assert (again.is_new, again.is_cut) == (False, False)
    await begin_reading(settings, again)
    assert await committed(settings, "g") == first.plan.cut


async def test_another_backfill_that_was_faster_is_named(settings: Settings) -> None:
    mine = await prepare(settings, WANTED)
    other = BackfillPlan("g", mine.plan.generation + 1, mine.plan.histories)
    async with connect_admin(connection_config(settings)) as admin:
        await admin.reset_offsets(history_group("g"), other.beginning)
    with pytest.raises(ConsumerError, match="another backfill of group g has begun meanwhile"):
        await begin_reading(settings, mine)
    assert await committed(settings, "g") == {}


async def test_a_group_that_was_reset_below_its_cut_is_refused(settings: Settings) -> None:
    plan = await begin_reading(settings, await prepare(settings, WANTED))
    later = Generation(plan.generation + 5).metadata
    await reset(settings, "g", CommitOffset(4, later), CommitOffset(10, later))
    with pytest.raises(
        ConsumerError, match=r"does not begin at the cut .* t-0: 4 \(the cut is 10\)\."
    ):
        await prepare(settings, WANTED)
    await reset(settings, "g", CommitOffset(10, later), CommitOffset(10))
    with pytest.raises(ConsumerError, match=r"has committed t-1: 10 \(the cut is 10\)\. Stop"):
        await prepare(settings, WANTED)


async def test_a_worker_waits_for_what_a_history_hands_over(settings: Settings) -> None:
    wanted = replace(WANTED, remembers=True)
    plan = await begin_reading(settings, await prepare(settings, wanted))
    worker = Worker(Strategy(value=Text(), reduce=Collect(len)), settings)
    with pytest.raises(ConsumerError, match=r"t-\d: kmr backfill still reads the history of this"):
        await worker.run()
    assert await committed(settings, "g") == plan.cut
    done = CommitOffset(10, Generation(plan.generation, LookBack(3, 5)).metadata)
    async with connect_admin(connection_config(settings)) as admin:
        history = {
            at: CommitOffset(10, Generation(plan.generation, LookBack(3, 5), each).metadata)
            for at, each in plan.histories.items()
        }
        await admin.reset_offsets(history_group("g"), history)
    assert await offsets_left(settings, plan) == 0
    await hand_over(settings, plan)
    assert await committed(settings, "g") == {P0: done, P1: done}
    assert (await prepare(settings, wanted)).is_cut
