"""Commit the cut as the start of a group, so that no other member can begin before it.

Kafka has no "commit if nothing is committed". So we join the group for a moment, as its only member: what we
read of its offsets in our generation stays true until the generation ends, and the broker refuses our commit
when another member has joined since.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import anyio

from ..config.schema import show_count
from ..delivery.announcement import history_group
from ..errors import CommitFenced, ConsumerError
from ..kafka.connection import consumer_config
from ..kafka.kafka_consumer import KafkaConsumer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..kafka.admin import Admin
    from ..kafka.consumer import CommitOffset, Consumer
    from ..record import TopicPartition
    from ..settings import Settings
    from .plan import BackfillPlan


class GroupCommits(Protocol):
    """Reads and sets the commits of groups that this process is no member of; `Admin` does."""

    async def list_group_offsets(self, group: str) -> dict[TopicPartition, CommitOffset]: ...

    async def reset_offsets(
        self, group: str, offsets: Mapping[TopicPartition, CommitOffset], *, before_log: bool
    ) -> object:
        """See `Admin.reset_offsets`."""


_PATIENCE = 5.0  # seconds, beyond those that the group needs to begin


async def refuse_members(admin: Admin, group: str) -> None:
    """Raise ConsumerError if a group has members."""
    members = (await admin.group(group)).members
    if members:
        names = ", ".join(f"{member.client_id} at {member.host}" for member in members[:3])
        raise ConsumerError(
            f"group {group} has {show_count(len(members), 'member')} ({names}): stop them until "
            "the cut is committed, which takes a moment; then they begin at it"
        )


async def commit_cut(admin: Admin, settings: Settings, plan: BackfillPlan) -> None:
    """Commit the plan for the history's group, then the cut for the group of the present.

    Both commits are one request each. If the process ends between them, a plan is found whose cut is not
    committed, and the next call commits it.

    Args:
        settings: with the connection and the topics.

    Raises:
        ConsumerError: the group has members or commits, or got a member meanwhile: it stays as it is.
    """
    await refuse_members(admin, plan.group)
    config = replace(
        consumer_config(settings),
        group=plan.group,
        group_instance_id=None,
        auto_offset_reset="earliest",
    )
    await commit_as_member(KafkaConsumer(config), admin, plan, config.rebalance_timeout + _PATIENCE)


async def commit_as_member(
    consumer: Consumer, admin: GroupCommits, plan: BackfillPlan, within: float
) -> None:
    """Join the group for a moment, and commit as its only member.

    Args:
        consumer: not started; it is stopped at the end.
        within: seconds.

    Raises:
        ConsumerError: as `commit_cut`.
    """
    listener = _CutListener(consumer, admin, plan)
    try:
        with anyio.fail_after(within):
            await consumer.start(listener)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_raise_errors, consumer)
                await listener.done.wait()
                tasks.cancel_scope.cancel()
    except TimeoutError:
        raise ConsumerError(f"group {plan.group}: could not join it in {within:g} s") from None
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    finally:
        with anyio.CancelScope(shield=True):
            await consumer.stop(leave=True)


async def _raise_errors(consumer: Consumer) -> None:
    while True:
        await consumer.poll(1)


class _CutListener:
    """A `Listener` that does everything in its first assignment.

    Attributes:
        done: set when both commits are acknowledged.
    """

    def __init__(self, consumer: Consumer, admin: GroupCommits, plan: BackfillPlan) -> None:
        self._consumer = consumer
        self._admin = admin
        self._plan = plan
        self.done = anyio.Event()

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Nothing to do: a commit of the generation that ends is refused."""

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        plan = self._plan
        consumer = self._consumer
        consumer.pause(partitions)
        if self.done.is_set():
            return
        if set(plan.histories) - partitions:
            raise ConsumerError(_OTHER.format(group=plan.group))
        committed = await consumer.committed(plan.histories)
        plan.refuse_commits({at: entry for at, entry in committed.items() if entry is not None})
        group = history_group(plan.group)
        known = await self._admin.list_group_offsets(group)
        other = plan.of_commits(plan.group, known, {at.topic for at in plan.histories})
        if other is None:
            await self._admin.reset_offsets(group, plan.beginning, before_log=True)
        elif (other.histories, other.generation) != (plan.histories, plan.generation):
            raise ConsumerError(
                f"another backfill of group {plan.group} has begun meanwhile; run the command again"
            )
        try:
            await consumer.commit(plan.cut)
        except CommitFenced:
            raise ConsumerError(_OTHER.format(group=plan.group)) from None
        self.done.set()


_OTHER = (
    "group {group}: another member joined while the cut was committed, so it was not. Stop the group's "
    "members until the backfill has begun"
)
