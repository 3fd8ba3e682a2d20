"""Produce requests and responses of every version."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from io import BytesIO
from struct import pack
from typing import Any
from uuid import NAMESPACE_DNS, UUID, uuid5

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from kmr.broker import Broker
from kmr.broker.protocol.cursor import MalformedRequest
from kmr.broker.protocol.messages import default_message
from kmr.broker.protocol.produce_frames import (
    PartitionResult,
    ResponseTemplate,
    TopicKey,
    read_produce_request,
    records_after,
    records_length_at,
    write_produce_response,
)

PRODUCE = 0
names = st.text(max_size=40)
versions = st.integers(3, 13)


def keys(version: int, names: list[str]) -> list[TopicKey]:
    """Topics as messages of a version name them: from 13 on by id."""
    return [uuid5(NAMESPACE_DNS, name) if version >= 13 else name for name in names]


@given(
    versions,
    st.none() | names,
    st.lists(st.tuples(names, st.lists(st.tuples(st.integers(0, 99), st.none() | st.binary())))),
)
def test_requests_of_every_version_are_read(
    version: int,
    transactional_id: str | None,
    topics: list[tuple[str, list[tuple[int, bytes | None]]]],
) -> None:
    schema: Any = load_request_schema(PRODUCE, version)
    topic_type = schema.__dataclass_fields__["topic_data"].type.__args__[0]
    partition_type = topic_type.__dataclass_fields__["partition_data"].type.__args__[0]
    named = keys(version, [name for name, _ in topics])
    message = default_message(
        schema,
        transactional_id=transactional_id,
        acks=-1,
        timeout=timedelta(milliseconds=1500),
        topic_data=tuple(
            topic_type(
                **({"topic_id": key} if isinstance(key, UUID) else {"name": key}),
                partition_data=tuple(
                    partition_type(index=index, records=records) for index, records in partitions
                ),
            )
            for key, (_, partitions) in zip(named, topics, strict=True)
        ),
    )
    out = BytesIO()
    entity_writer(schema)(out, message)
    body = memoryview(out.getvalue())
    request = read_produce_request(body, version)
    if transactional_id is None and [len(parts) for _, parts in topics] == [1] and named[0]:
        records = topics[0][1][0][1]
        if records:
            at = records_length_at(len(body), len(records), version)
            found = [records_after(body, each, len(body), version) for each in (at, at + 1)]
            assert found[0] == memoryview(records)
            assert found[1] != memoryview(records)
    assert (request.transactional_id, request.acks, request.timeout_ms) == (
        transactional_id,
        -1,
        1500,
    )
    assert request.topics == [(key, parts) for key, (_, parts) in zip(named, topics, strict=True)]


@given(
    versions,
    st.lists(
        st.tuples(
            names,
            st.lists(
                st.builds(
                    PartitionResult,
                    st.integers(0, 99),
                    st.sampled_from([0, 3, 10]),
                    st.integers(-1, 2**40),
                    st.just(-1) | st.integers(0, 2**41),
                    st.integers(-1, 2**40),
                    st.none() | names,
                )
                | st.builds(
                    PartitionResult,
                    st.integers(0, 99),
                    st.just(87),
                    message=names,
                    record_errors=st.lists(st.tuples(st.integers(0, 2**31 - 1), names)),
                )
            ),
        )
    ),
)
def test_responses_of_every_version_are_understood(
    version: int, topics: list[tuple[str, list[PartitionResult]]]
) -> None:
    named = keys(version, [name for name, _ in topics])
    body = bytes(
        write_produce_response(
            [(key, results) for key, (_, results) in zip(named, topics, strict=True)], version
        )
    )
    response: Any
    response, size = entity_reader(load_response_schema(PRODUCE, version))(body, 0)
    assert size == len(body)
    field = "topic_id" if version >= 13 else "name"
    assert [getattr(topic, field) for topic in response.responses] == named
    for topic, (_, results) in zip(response.responses, topics, strict=True):
        for read, result in zip(topic.partition_responses, results, strict=True):
            assert (read.index, read.error_code, read.base_offset) == result[:3]
            assert (read.log_append_time is None) == (result.log_append_time_ms == -1)
            if version >= 5:
                assert read.log_start_offset == result.log_start_offset
            if version >= 8:
                blamed = [
                    (each.batch_index, each.batch_index_error_message)
                    for each in read.record_errors
                ]
                assert (read.error_message, blamed) == (result.message, list(result.record_errors))


@given(st.binary(max_size=200), st.integers(0, 13))
def test_bytes_that_are_not_a_request_are_refused(data: bytes, version: int) -> None:
    with contextlib.suppress(MalformedRequest):
        read_produce_request(memoryview(data), version)


def test_a_request_of_version_0_has_no_transactional_id() -> None:
    body = b"\x00\x01\x00\x00\x05\xdc" + b"\x00\x00\x00\x01\x00\x01t"
    body += b"\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x01r"
    request = read_produce_request(memoryview(body), 0)
    assert (request.transactional_id, request.acks, request.timeout_ms) == (None, 1, 1500)
    assert [(name, [(n, bytes(r or b"")) for n, r in parts]) for name, parts in request.topics] == [
        ("t", [(2, b"r")])
    ]


@pytest.mark.parametrize(("version", "size"), [(0, 25), (1, 29), (2, 37)])
def test_responses_before_version_3_have_their_own_layout(version: int, size: int) -> None:
    assert len(write_produce_response([("t", [PartitionResult(2, 35)])], version)) == size


Start = Callable[..., Awaitable[Broker]]
Connect = Callable[[Broker], Awaitable[Any]]
Batch = Callable[..., bytes]

PRODUCE, FETCH, VERSIONS = 0, 1, 18
KIB = 1024


@given(versions, names, st.tuples(st.integers(0, 99), *[st.integers(-1, 2**63 - 1)] * 3))
def test_responses_about_one_partition_differ_in_their_offsets_only(
    version: int, name: str, numbers: tuple[int, int, int, int]
) -> None:
    index, base_offset, append_time, log_start = numbers
    [key] = keys(version, [name])
    template = ResponseTemplate(key, PartitionResult(index, 0, 1, 2, 3), version)
    result = PartitionResult(index, 0, base_offset, append_time, log_start)
    for correlation_id in (1, 2**31 - 1):
        out = bytearray(b"before")
        template.append_to(out, correlation_id, base_offset, append_time, log_start)
        frame = out.removeprefix(b"before")
        body = write_produce_response([(key, [result])], version)
        header = pack(">ii", len(frame) - 4, correlation_id) + b"\0" * (version >= 9)
        assert frame == header + body
