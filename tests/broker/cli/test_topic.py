"""kmr broker topic and group."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from kmr.broker.apis import groups

if TYPE_CHECKING:
    import pytest

    from tests.broker.cli.conftest import Kmr


def test_a_topic_is_created_listed_described_and_deleted(kmr: Kmr) -> None:
    created = kmr("topic", "create", "orders", "--partitions", "3", "--config", "retention.ms=5000")
    assert created == (0, b"orders: created\n", b"")

    listed = [line.split() for line in kmr("topic", "list").lines]
    assert ["orders", "3"] in listed

    kmr("produce", "orders", "--partition", "1", stdin=b"a\nb\n")
    described = kmr("topic", "describe", "orders").lines
    assert described[0] == "orders: 3 partitions, 2 offsets in use"
    assert described[1] == "  retention.ms=5000"
    assert [line.split() for line in described[3:]] == [
        ["0", "0", "0", "0", "0"],
        ["1", "0", "0", "2", "2"],
        ["2", "0", "0", "0", "0"],
    ]

    assert kmr("topic", "delete", "orders") == (0, b"orders: deleted\n", b"")
    assert "orders" not in kmr("topic", "list").out.decode()


def test_internal_topics_are_listed_on_request(kmr: Kmr) -> None:
    kmr("topic", "create", "read-by-a-group")
    kmr("produce", "read-by-a-group", stdin=b"a\n")
    kmr(
        *("consume", "read-by-a-group", "--group", "readers", "--from-beginning"),
        "--max-records",
        "1",
    )
    topics = {line.split()[0] for line in kmr("topic", "list").lines}
    internal = {line.split()[0] for line in kmr("topic", "list", "--internal").lines}
    assert "__consumer_offsets" not in topics
    assert internal >= {*topics, "__consumer_offsets"}
    described = kmr("topic", "describe", "__consumer_offsets").lines
    assert described[1] == "  cleanup.policy=compact"


def test_a_topic_is_altered(kmr: Kmr) -> None:
    kmr("topic", "create", "changing", "--config", "retention.ms=5000", "--config", "segment.ms=7")
    altered = kmr(
        *("topic", "alter", "changing", "--partitions", "2"),
        *("--config", "cleanup.policy=compact", "--delete-config", "retention.ms"),
    )
    assert (altered.code, altered.lines[-1]) == (
        0,
        "changing: altered",
    )  # after the broker's own log
    described = kmr("topic", "describe", "changing").lines
    assert described[0].startswith("changing: 2 partitions")
    assert described[1:3] == ["  cleanup.policy=compact", "  segment.ms=7"]


def test_topics_are_described_as_json(kmr: Kmr) -> None:
    kmr("topic", "create", "as-json")
    (topic,) = json.loads(kmr("topic", "describe", "as-json", "--json").out)
    assert topic["name"] == "as-json"
    assert topic["partitions"] == [{"index": 0, "leader": 0, "start": 0, "end": 0}]
    listed = json.loads(kmr("topic", "list", "--json").out)
    assert {"name": "as-json", "partitions": 1} in listed


def test_a_mistake_is_one_line_and_an_exit_code(kmr: Kmr) -> None:
    kmr("topic", "create", "there")
    for arguments, code, message in (
        (("create", "there"), 1, "topic there: already exists"),
        (("create", "not ok"), 1, "topic not ok: "),
        (("create", "there2", "--config", "no.such=1"), 1, "topic there2: "),
        (("create", "there2", "--config", "wrong"), 2, "--config 'wrong'"),
        (("create",), 2, "name at least one topic"),
        (("describe", "missing"), 1, "topic missing: does not exist"),
        (("delete", "missing"), 1, "topic missing: does not exist"),
        (("alter", "there"), 2, "nothing to alter: give --config"),
        (("alter", "there", "--config", "no.such=1"), 1, "topic there: "),
        (("alter", "missing", "--config", "segment.ms=1"), 1, "configuration of topic missing: "),
        (("alter", "there", "--partitions", "1"), 1, "Could not create partitions for there: "),
    ):
        result = kmr("topic", *arguments)
        assert result.code == code
        assert result.out == b""
        assert result.err.decode().startswith(f"kmr broker: {message}")
        assert result.err.count(b"\n") == 1


def test_an_existing_topic_may_be_ignored(kmr: Kmr) -> None:
    kmr("topic", "create", "kept", "--partitions", "2")
    again = kmr("topic", "create", "kept", "--if-not-exists")
    assert again == (0, b"kept: already exists, with 2 partitions\n", b"")


def test_describing_a_topic_does_not_create_it(kmr: Kmr) -> None:
    kmr("topic", "describe", "ghost")
    assert "ghost" not in kmr("topic", "list").out.decode()


def test_a_broker_that_is_not_there_is_one_line(kmr: Kmr) -> None:
    result = kmr("topic", "list", "--bootstrap-servers", "127.0.0.1:1")
    assert result.code == 1
    assert result.err.startswith(b"kmr broker: no Kafka broker answers at 127.0.0.1:1; start one")
    assert result.err.count(b"\n") == 1


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

    def look(context: Any, group: Any, **asked: Any) -> Any:
        code = loaded.pop() if loaded else ErrorCode.none
        return replace(describe(context, group, **asked), error_code=code)

    monkeypatch.setattr(groups, "_coordinator", find)
    monkeypatch.setattr(groups, "_describe", look)
    described = kmr("group", "describe", "awaiting")
    assert described.code == 0, described.err
    assert not created
    assert not loaded
    assert "awaited" in described.out.decode()
