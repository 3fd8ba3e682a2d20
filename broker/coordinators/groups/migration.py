"""A group changes its protocol while it has members: from classic to KIP-848, and back.

The first member with `group.protocol=consumer` upgrades a classic group, whose members go on as classic
members of the new one. When the last such member is gone, the group is a classic one again. Members keep
what they hold until the next rebalance takes it from them, and offsets stay. Source: KIP-848, "Supporting
Online Consumer Group Upgrade".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...protocol.cursor import MalformedRequest
from .consumer_types import ClassicProtocol, ConsumerMember
from .embedded_protocol import (
    CONSUMER_PROTOCOL,
    read_assignment,
    read_subscription,
    write_assignment,
)
from .group_types import GroupSnapshot, MemberSnapshot, ProtocolChoice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...settings import BrokerSettings
    from .consumer_group import ConsumerGroup
    from .group import Group

__all__ = ["MigrationRefused", "downgrade", "may_downgrade", "upgrade"]

_UPGRADES: Final = ("bidirectional", "upgrade")
_DOWNGRADES: Final = ("bidirectional", "downgrade")


class MigrationRefused(Exception):
    """The reason why a group cannot change its protocol now."""


def upgrade(old: Group, new: ConsumerGroup, settings: BrokerSettings) -> None:
    """Let the members of `old` be classic members of `new`; `old` stays as it is.

    Members that wait for their first generation without an id are left out: they join again.

    Raises:
        MigrationRefused: the policy does not allow it, there are too many members, or their assignments
            cannot be read or have data that the broker could not give to them again.
    """
    known = [each for each in old.members if not each.is_new]
    if not old.is_idle:
        if settings.group_consumer_migration_policy not in _UPGRADES:
            raise MigrationRefused("online upgrade is disabled (group.consumer.migration.policy)")
        if old.size and old.protocol_type != CONSUMER_PROTOCOL:
            raise MigrationRefused("the group does not use the protocol of consumers")
        if old.size > settings.group_consumer_max_size:
            raise MigrationRefused("it has more members than a group of KIP-848 may have")
    members = []
    for each in known:
        try:
            subscription = read_subscription(each.protocols[0].metadata)
            partitions, data = read_assignment(each.assignment)
        except MalformedRequest as error:
            raise MigrationRefused(
                f"the subscription or assignment of {each.id} cannot be read: {error}"
            ) from error
        if data:
            raise MigrationRefused("the data that its assignor adds to assignments would be lost")
        members.append(
            ConsumerMember(
                each.id,
                each.instance_id,
                subscription.rack_id,
                each.client_id,
                each.client_host,
                each.rebalance_timeout,
                tuple(sorted(set(subscription.topics))),
                assigned=new.partitions_named(partitions),
                classic=ClassicProtocol(each.session_timeout, each.protocols),
            )
        )
    new.adopt(old.generation, members)


def may_downgrade(group: ConsumerGroup, settings: BrokerSettings) -> bool:
    """Whether only classic members are left, and the policy allows a classic group of them."""
    return (
        0 < group.size <= settings.group_max_size
        and all(each.classic is not None for each in group.members.values())
        and settings.group_consumer_migration_policy in _DOWNGRADES
    )


def downgrade(
    group: ConsumerGroup,
) -> tuple[GroupSnapshot, Mapping[str, tuple[ProtocolChoice, ...]]]:
    """Return the classic generation that a group goes on with, and the assignors of each member.

    The generation is the epoch of the last target: what members have reached, or are about to.
    """
    protocols = {
        each.id: each.classic.protocols
        for each in group.members.values()
        if each.classic is not None
    }
    shared = set.intersection(*({choice.name for choice in each} for each in protocols.values()))
    first = next(iter(protocols.values()))
    chosen = next(choice.name for choice in first if choice.name in shared)
    members = []
    for each in group.members.values():
        if each.classic is None:
            continue
        metadata = next(m.metadata for m in each.classic.protocols if m.name == chosen)
        version = read_subscription(metadata).version
        members.append(
            MemberSnapshot(
                each.id,
                each.instance_id,
                each.client_id,
                each.client_host,
                each.classic.session_timeout,
                each.rebalance_timeout,
                metadata,
                write_assignment(version, group.names_of(each.assigned)),
            )
        )
    snapshot = GroupSnapshot(
        generation=group.assignment_epoch,
        protocol_type=CONSUMER_PROTOCOL,
        protocol_name=chosen,
        leader_id=members[0].member_id,
        members=tuple(members),
    )
    return snapshot, protocols
