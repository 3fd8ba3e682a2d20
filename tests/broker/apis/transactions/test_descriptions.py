"""What administrators are told of transactions."""

from __future__ import annotations

from datetime import timedelta
from struct import pack
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from broker.producers.identity import ProducerIdentity

if TYPE_CHECKING:
    from broker import Broker

Wire = Any  # of conftest.py, which nobody can import

FIND_COORDINATOR, DESCRIBE_PRODUCERS, DESCRIBE, LIST = 10, 61, 65, 66
MINUTE = timedelta(minutes=1)
OK = ErrorCode.none


async def test_this_node_coordinates_every_transaction(wire: Wire, broker: Broker) -> None:
    answer = await wire.client.call(FIND_COORDINATOR, 3, key="x", key_type=1)
    assert (answer.error_code, answer.node_id) == (OK, 0)
    assert broker.bootstrap_servers == f"{answer.host}:{answer.port}"


async def test_what_is_open_is_described(wire: Wire) -> None:
    producer = await wire.begin()
    await wire.begin("idle")
    await wire.add(producer, [0, 1])
    await wire.produce(producer, 0)
    partitions = {"name": "t", "partition_indexes": [0, 9]}
    answer = await wire.client.call(DESCRIBE_PRODUCERS, 0, topics=[partitions])
    found, unknown = answer.topics[0].partitions
    (state,) = found.active_producers
    assert ProducerIdentity(state.producer_id, state.producer_epoch) == producer
    assert (state.last_sequence, state.current_txn_start_offset) == (0, 0)
    assert unknown.error_code is ErrorCode.unknown_topic_or_partition

    answer = await wire.client.call(DESCRIBE, 0, transactional_ids=["x", "nope"])
    ongoing, nothing = answer.transaction_states
    assert (ongoing.error_code, ongoing.transaction_state) == (OK, "Ongoing")
    assert ongoing.transaction_timeout == MINUTE
    assert [(topic.topic, topic.partitions) for topic in ongoing.topics] == [("t", (0, 1))]
    assert nothing.error_code is ErrorCode.transactional_id_not_found
    await wire.client.send(wire.client.message(DESCRIBE, 0, transactional_ids=["idle"]))
    frame = await wire.client.receive_frame()
    assert b"idle\x06Empty" + pack(">iq", 60_000, -1) in frame, "kio cannot read that time"

    async def listed(version: int, **filters: Any) -> dict[str, str]:
        answer = await wire.client.call(LIST, version, **filters)
        assert answer.error_code is OK
        return {each.transactional_id: each.transaction_state for each in answer.transaction_states}

    for version in (0, 1, 2):
        assert await listed(version) == {"x": "Ongoing", "idle": "Empty"}
        assert await listed(version, state_filters=["Ongoing"]) == {"x": "Ongoing"}
        mine = [producer.producer_id]
        assert await listed(version, producer_id_filters=mine) == {"x": "Ongoing"}
    assert await listed(1, duration_filter=3_600_000, state_filters=["Ongoing"]) == {}
    answer = await wire.client.call(LIST, 1, state_filters=["Odd"])
    assert (answer.unknown_state_filters, answer.transaction_states) == (("Odd",), ())


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("order-.*", {"order-1", "order-2"}),
        ("order", set()),
        (".*-1|x", {"order-1", "x"}),
        ("", {"order-1", "order-2", "x"}),
        (None, {"order-1", "order-2", "x"}),
    ],
)
async def test_transactions_are_listed_by_a_pattern_of_their_whole_names(
    wire: Wire, pattern: str | None, names: set[str]
) -> None:
    for each in ("order-1", "order-2", "x"):
        await wire.begin(each)
    answer = await wire.client.call(LIST, 2, transactional_id_pattern=pattern)
    assert answer.error_code is OK
    assert {each.transactional_id for each in answer.transaction_states} == names


@pytest.mark.parametrize("pattern", ["(", "a)|(b"])
async def test_a_pattern_that_cannot_be_read_is_refused(wire: Wire, pattern: str) -> None:
    await wire.begin("x")
    answer = await wire.client.call(LIST, 2, transactional_id_pattern=pattern)
    assert answer.error_code is ErrorCode.invalid_regular_expression
    assert answer.transaction_states == ()
