"""Fetch responses of every version."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_DNS, uuid5

from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_response_schema
from kio.serial import entity_reader

from kmr.broker import Broker
from kmr.broker.protocol.fetch_response import (
    ABORTED_TRANSACTION_BYTES,
    FETCH_HEADROOM,
    FetchResponseWriter,
    fetch_response_overhead,
)

if TYPE_CHECKING:
    from kmr.broker.protocol.produce_frames import TopicKey

FETCH = 1
OFFSETS = st.integers(0, 2**63 - 1)
partitions = st.lists(
    st.tuples(
        st.integers(0, 99),
        st.binary(max_size=300),
        st.integers(0, 300),
        st.lists(st.tuples(OFFSETS, OFFSETS), max_size=150),
    ),
    max_size=4,
)
Partitions = list[tuple[int, bytes, int, list[tuple[int, int]]]]


@given(st.integers(4, 18), st.lists(st.tuples(st.text(max_size=20), partitions)), st.booleans())
def test_responses_of_every_version_are_understood(
    version: int, topics: list[tuple[str, Partitions]], committed: bool
) -> None:
    names: list[TopicKey] = [
        uuid5(NAMESPACE_DNS, name) if version >= 13 else name for name, _ in topics
    ]
    records = [data for _, parts in topics for _, data, _, _ in parts]
    spare = [more for _, parts in topics for _, _, more, _ in parts]
    lists = [len(aborted) + 1 for _, parts in topics for *_, aborted in parts]
    size = fetch_response_overhead([(name, ()) for name in names], len(records))
    size += sum(map(len, records)) + max([0, *spare])
    size += sum(lists) * ABORTED_TRANSACTION_BYTES
    writer = FetchResponseWriter(memoryview(bytearray(size)), version, len(topics))
    for name, (_, parts) in zip(names, topics, strict=True):
        writer.topic(name, len(parts))
        for index, data, more, aborted in parts:
            writer.partition(index, (2**40, 2**39, 7), read_committed=committed)
            # More room than needed: the length may then take fewer bytes than reserved.
            room = writer.begin_records(len(data) + more)
            room[: len(data)] = data
            writer.end_records(len(data), aborted if committed else ())
        writer.end_topic()
    body = bytes(writer.end()[FETCH_HEADROOM:])

    response: Any
    response, end = entity_reader(load_response_schema(FETCH, version))(body, 0)
    assert end == len(body)
    field = "topic_id" if version >= 13 else "topic"
    assert [getattr(topic, field) for topic in response.responses] == names
    for topic, (_, parts) in zip(response.responses, topics, strict=True):
        for read, (index, data, _, aborted) in zip(topic.partitions, parts, strict=True):
            assert (read.partition_index, read.error_code, read.records) == (index, 0, data)
            assert (read.high_watermark, read.last_stable_offset) == (2**40, 2**39)
            if committed:
                listed = [
                    (each.producer_id, each.first_offset) for each in read.aborted_transactions
                ]
                assert listed == aborted
            else:
                assert read.aborted_transactions is None
            if version >= 5:
                assert read.log_start_offset == 7


def test_an_error_can_replace_a_partition_that_was_begun() -> None:
    writer = FetchResponseWriter(memoryview(bytearray(500)), 12, 1)
    writer.topic("t", 1)
    start = writer.position
    writer.partition(3, (9, 9, 0))
    writer.begin_records(100)
    writer.position = start
    writer.empty_partition(3, error=56)
    writer.end_topic()
    body = bytes(writer.end()[FETCH_HEADROOM:])
    response: Any
    response, end = entity_reader(load_response_schema(FETCH, 12))(body, 0)
    (partition,) = response.responses[0].partitions
    assert end == len(body)
    assert (partition.error_code, partition.high_watermark, partition.records) == (56, -1, b"")


@given(st.integers(4, 18), st.booleans(), st.tuples(OFFSETS, OFFSETS, OFFSETS))
def test_a_partition_without_records_says_the_same_as_one_with_no_bytes_of_them(
    version: int, committed: bool, shown: tuple[int, int, int]
) -> None:
    written = []
    for is_empty in (True, False):
        writer = FetchResponseWriter(memoryview(bytearray(200)), version, 1)
        if is_empty:
            writer.empty_partition(3, shown, read_committed=committed)
        else:
            writer.partition(3, shown, read_committed=committed)
            writer.begin_records(0)
            writer.end_records(0)
        written.append(bytes(writer.end()))
    assert written[0] == written[1]


Start = Callable[..., Awaitable[Broker]]
Connect = Callable[[Broker], Awaitable[Any]]
Batch = Callable[..., bytes]

PRODUCE, FETCH, VERSIONS = 0, 1, 18
KIB = 1024
