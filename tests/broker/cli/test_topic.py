"""kmr broker topic."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
