"""kmr broker group."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import confluent_kafka as ck
from kio.schema.errors import ErrorCode

from kmr.broker.apis.groups import groups

if TYPE_CHECKING:
    import pytest

    from tests.broker.cli.conftest import Kmr


def test_a_group_shows_its_committed_offsets_and_lag(kmr: Kmr) -> None:
    kmr("topic", "create", "lagging")
    kmr("produce", "lagging", stdin=b"1\n2\n3\n")
    kmr("consume", "lagging", "--group", "slow", "--from-beginning", "--max-records", "1")

    assert "slow" in kmr("group", "list").lines
    shown = kmr("group", "describe", "slow").lines
    assert shown[0] == "slow: Empty, 0 members"
    assert shown[-1].split() == ["lagging", "0", "1", "3", "2"]
    (group,) = json.loads(kmr("group", "describe", "slow", "--json").out)
    assert group["offsets"] == [{"topic": "lagging", "partition": 0, "committed": 1, "end": 3}]
    missing = kmr("group", "describe", "unknown")
    assert (missing.code, missing.err) == (1, b"kmr broker: group unknown: does not exist\n")


def test_a_cluster_that_has_no_coordinator_yet_is_asked_again(
    kmr: Kmr, monkeypatch: pytest.MonkeyPatch
) -> None:
    kmr("topic", "create", "awaited", "--partitions", "1")
    kmr("produce", "awaited", stdin=b"a\n")
    kmr("consume", "awaited", "--group", "awaiting", "--from-beginning", "--max-records", "1")
    coordinator, describe = groups._coordinator, groups._describe
    created, loaded = [ErrorCode.coordinator_not_available] * 2, [ErrorCode.not_coordinator]

    # As a new Apache Kafka: first it creates the topic of offsets, then the node takes it over.
    def find(context: Any, key: str, key_type: int) -> Any:
        code = created.pop() if created else ErrorCode.none
        return replace(coordinator(context, key, key_type), error_code=code)

    async def look(context: Any, group: Any, **asked: Any) -> Any:
        code = loaded.pop() if loaded else ErrorCode.none
        return replace(await describe(context, group, **asked), error_code=code)

    monkeypatch.setattr(groups, "_coordinator", find)
    monkeypatch.setattr(groups, "_describe", look)
    described = kmr("group", "describe", "awaiting")
    assert described.code == 0, described.err
    assert not created
    assert not loaded
    assert "awaited" in described.out.decode()


def test_a_group_of_the_new_protocol_has_its_members_and_partitions(kmr: Kmr, servers: str) -> None:
    kmr("topic", "create", "assigned", "--partitions", "3")
    consumer = ck.Consumer(
        {"bootstrap.servers": servers, "group.id": "new", "group.protocol": "consumer"}
    )
    try:
        consumer.subscribe(["assigned"])
        deadline = time.monotonic() + 60
        while len(consumer.assignment()) < 3:
            assert time.monotonic() < deadline
            consumer.poll(0.05)
        head, member, _, *partitions = kmr("group", "describe", "new").lines
    finally:
        consumer.close()
    assert head == "new: Stable, 1 members"
    assert member.endswith("3 partitions")
    assert [line.split()[1] for line in partitions] == ["0", "1", "2"]
