"""The check of a request before kio reads it."""

from struct import pack
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.describe_topic_partitions.v0 import DescribeTopicPartitionsRequest
from kio.schema.describe_topic_partitions.v0.request import Cursor
from kio.schema.fetch.v12 import FetchRequest
from kio.schema.list_offsets.v1 import ListOffsetsRequest as LegacyListOffsets
from kio.schema.list_offsets.v7 import ListOffsetsRequest
from kio.schema.list_offsets.v7.request import ListOffsetsPartition, ListOffsetsTopic
from kio.schema.types import TopicName
from kio.static.primitive import i32

from kmr.broker.apis.catalogue import SERVED
from kmr.broker.protocol.cursor import MAX_ELEMENTS, MalformedRequest
from kmr.broker.protocol.messages import default_message, read_message, write_message
from kmr.broker.protocol.structure import check_structure

LIST_OFFSETS = default_message(
    ListOffsetsRequest,
    topics=(
        default_message(
            ListOffsetsTopic,
            name="t",
            partitions=(default_message(ListOffsetsPartition, partition_index=7),),
        ),
    ),
)
UNKNOWN_TAGS = b"\x02\x05\x03abc\x63\x00"
"""Two tagged fields: number 5 with three bytes, and number 99 without any."""


def writable(data: bytes) -> memoryview:
    return memoryview(bytearray(data))


@pytest.mark.parametrize(
    ("key", "version"),
    [
        (api.key, version)
        for api in SERVED
        for version in range(api.min_version, api.max_version + 1)
        if api.key
    ],
)
def test_a_valid_request_is_not_changed(key: int, version: int) -> None:
    schema: Any = load_request_schema(key, version)
    body = writable(write_message(default_message(schema)))
    assert check_structure(schema, body) is body


def test_an_absurd_length_reserves_no_memory() -> None:
    with pytest.raises(MalformedRequest, match="array of 2147483647 elements does not fit"):
        read_message(LegacyListOffsets, writable(pack(">ii", -1, 2**31 - 1) + bytes(20)))
    with pytest.raises(MalformedRequest, match="does not fit"):
        read_message(ListOffsetsRequest, writable(pack(">ib", -1, 0) + b"\xff\xff\xff\xff\x07"))


def test_null_is_refused_for_an_array_that_must_not_be_null() -> None:
    with pytest.raises(MalformedRequest, match="an array is null that must not be"):
        read_message(LegacyListOffsets, writable(pack(">ii", -1, -1)))


def test_unknown_tagged_fields_are_ignored_at_every_level() -> None:
    body = write_message(LIST_OFFSETS)
    assert body.endswith(
        b"\x00\x00\x00"
    )  # no tagged fields of the partition, the topic, the request
    tagged = body[:-3] + UNKNOWN_TAGS * 3
    assert read_message(ListOffsetsRequest, writable(tagged)) == LIST_OFFSETS


def test_known_tagged_fields_are_kept_beside_unknown_ones() -> None:
    request = default_message(FetchRequest, cluster_id="here")
    body = write_message(request)
    known = b"\x01\x00\x05\x05here"
    assert body.endswith(known)
    tagged = body[: -len(known)] + b"\x03" + known[1:] + UNKNOWN_TAGS[1:]
    assert read_message(FetchRequest, writable(tagged)) == request


def test_a_known_tagged_field_must_have_the_size_that_it_says() -> None:
    body = write_message(default_message(FetchRequest, cluster_id="here"))
    wrong = body[:-7] + b"\x00\x04" + body[-5:]
    with pytest.raises(MalformedRequest, match="4 bytes that it says"):
        read_message(FetchRequest, writable(wrong))


def test_too_many_elements_are_refused() -> None:
    names = b"\x00\x00" * (MAX_ELEMENTS + 1)  # of topics, each empty
    body = writable(pack(">i", MAX_ELEMENTS + 1) + names)
    with pytest.raises(MalformedRequest, match=f"more than {MAX_ELEMENTS} elements"):
        read_message(load_request_schema(3, 1), body)


@pytest.mark.parametrize(
    "cursor", [None, Cursor(topic_name=TopicName("t"), partition_index=i32(3))]
)
def test_an_entity_may_be_null_where_its_schema_allows_it(cursor: Cursor | None) -> None:
    request = DescribeTopicPartitionsRequest(topics=(), cursor=cursor)
    body = write_message(request)
    assert read_message(DescribeTopicPartitionsRequest, memoryview(body)) == request
    with pytest.raises(MalformedRequest):
        read_message(DescribeTopicPartitionsRequest, memoryview(body[:-2]))
