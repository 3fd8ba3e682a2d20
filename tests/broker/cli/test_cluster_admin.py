"""Administering a cluster by its protocol, against a broker."""

from __future__ import annotations

import pytest

from kmr.broker.cli.cluster_admin import check_partition, open_admin
from kmr.broker.cli.terminal import CommandError


async def test_a_topic_is_described_as_it_was_created_and_altered(servers: str) -> None:
    async with open_admin({"bootstrap_servers": servers}) as admin:
        await admin.create_topic("orders", partitions=2, config={"retention.ms": "5000"})
        await admin.alter_topic("orders", {"retention.bytes": "100"}, delete=["retention.ms"])
        await admin.add_partitions("orders", 3)
        described = await admin.describe_topic("orders")
        assert (await admin.topics())["orders"] == 3
    assert [each.index for each in described.partitions] == [0, 1, 2]
    assert described.config == {"retention.bytes": "100"}


async def test_what_does_not_exist_is_one_message(servers: str) -> None:
    async with open_admin({"bootstrap_servers": servers}) as admin:
        with pytest.raises(CommandError, match="topic gone: does not exist"):
            await admin.describe_topic("gone")
        with pytest.raises(CommandError, match="group gone: does not exist"):
            await admin.describe_group("gone")


def test_a_partition_that_a_topic_does_not_have_is_named() -> None:
    check_partition("orders", 1, 2)
    for index in (-1, 2):
        with pytest.raises(CommandError, match=f"no partition {index}: it has 2"):
            check_partition("orders", index, 2)
