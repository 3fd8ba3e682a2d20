"""Fetch requests of every version, written by kio."""

from __future__ import annotations

from datetime import timedelta
from io import BytesIO
from typing import Any
from uuid import NAMESPACE_DNS, uuid5

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema
from kio.serial import entity_writer

from kmr.broker.protocol.cursor import MalformedRequest, TooManyElements
from kmr.broker.protocol.fetch_request import FetchFrame, FetchPartition, FetchReader
from tests.broker.raw_client import build

FETCH = 1
OFFSETS = st.integers(-1, 2**63 - 1)
SMALL = st.integers(-1, 2**31 - 1)
topics = st.lists(
    st.tuples(st.text(max_size=20), st.lists(st.tuples(SMALL, SMALL, OFFSETS, SMALL), max_size=4)),
    max_size=4,
)
forgotten = st.lists(st.tuples(st.text(max_size=20), st.lists(SMALL, max_size=4)), max_size=3)


def key(version: int, name: str) -> Any:
    return uuid5(NAMESPACE_DNS, name) if version >= 13 else name


def written(version: int, fields: dict[str, Any]) -> memoryview:
    schema: Any = load_request_schema(FETCH, version)
    out = BytesIO()
    entity_writer(schema)(out, build(schema, fields))
    return memoryview(out.getvalue())


@given(st.integers(4, 18), topics, forgotten, st.tuples(SMALL, SMALL), st.booleans())
def test_requests_of_every_version_are_read(
    version: int,
    topics: list[tuple[str, list[tuple[int, int, int, int]]]],
    forgotten: list[tuple[str, list[int]]],
    session: tuple[int, int],
    committed: bool,
) -> None:
    name = "topic_id" if version >= 13 else "topic"
    fields: dict[str, Any] = {
        "max_wait": timedelta(milliseconds=1500),
        "min_bytes": 2,
        "max_bytes": 3,
        "isolation_level": int(committed),
        "topics": [
            {
                name: key(version, topic),
                "partitions": [
                    {"partition": index, "fetch_offset": offset, "partition_max_bytes": most}
                    | ({"current_leader_epoch": epoch} if version >= 9 else {})
                    for index, epoch, offset, most in partitions
                ],
            }
            for topic, partitions in topics
        ],
    }
    if version >= 7:
        fields |= {"session_id": session[0], "session_epoch": session[1]}
        fields["forgotten_topics_data"] = [
            {name: key(version, topic), "partitions": indexes} for topic, indexes in forgotten
        ]
    if version >= 11:
        fields["rack_id"] = "rack"
    frame = FetchReader(version).read(written(version, fields))
    assert frame == FetchFrame(
        1500,
        2,
        3,
        int(committed),
        *(session if version >= 7 else (0, -1)),
        [
            (
                key(version, topic),
                [
                    FetchPartition(index, epoch if version >= 9 else -1, offset, most)
                    for index, epoch, offset, most in partitions
                ],
            )
            for topic, partitions in topics
        ],
        [(key(version, topic), indexes) for topic, indexes in forgotten] if version >= 7 else [],
    )


@given(
    st.integers(4, 18),
    st.lists(
        st.tuples(st.sampled_from("ab"), st.lists(st.tuples(SMALL, OFFSETS), max_size=2)),
        min_size=2,
        max_size=5,
    ),
    st.booleans(),
)
def test_a_request_is_read_as_if_there_had_been_no_other(
    version: int, requests: list[tuple[str, list[tuple[int, int]]]], tagged: bool
) -> None:
    name = "topic_id" if version >= 13 else "topic"
    reader = FetchReader(version)
    for topic, offsets in requests:
        partitions = [
            {"partition": index, "fetch_offset": offset, "partition_max_bytes": 6}
            | ({"high_watermark": 7} if tagged and version >= 18 else {})
            for index, offset in offsets
        ]
        body = written(version, {"topics": [{name: key(version, topic), "partitions": partitions}]})
        assert reader.read(body) == FetchReader(version).read(body)


def test_tagged_fields_of_partitions_are_passed_over() -> None:
    partition = {"fetch_offset": 5, "partition_max_bytes": 6, "high_watermark": 7}
    partitions = [{"partition": index, **partition} for index in range(3)]
    topic = {"topic_id": key(18, "t"), "partitions": partitions}
    body = written(18, {"topics": [topic, topic], "rack_id": "r"})
    found = [(index, -1, 5, 6) for index in range(3)]
    assert FetchReader(18).read(body).topics == [(key(18, "t"), found)] * 2


@given(st.integers(4, 18), st.data())
def test_a_request_that_ends_too_early_is_malformed(version: int, data: st.DataObject) -> None:
    name = "topic_id" if version >= 13 else "topic"
    partition = {"partition": 1, "fetch_offset": 5, "partition_max_bytes": 6}
    topic = {name: key(version, "t"), "partitions": [partition] * 2}
    body = written(version, {"topics": [topic]})
    needed = len(body) - (1 if version >= 12 else 0)  # the last tagged fields are not read
    with pytest.raises(MalformedRequest):
        FetchReader(version).read(body[: data.draw(st.integers(0, needed - 1))])


@pytest.mark.parametrize("version", [4, 11, 12, 18])
def test_a_request_with_too_many_partitions_is_refused(version: int) -> None:
    name = "topic_id" if version >= 13 else "topic"
    topic = {name: key(version, "t"), "partitions": [{"partition": 1}] * 9}
    with pytest.raises(TooManyElements):
        FetchReader(version, 9).read(written(version, {"topics": [topic]}))
