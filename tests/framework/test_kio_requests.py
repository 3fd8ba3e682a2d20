"""Messages of kio as requests of aiokafka."""

from __future__ import annotations

from io import BytesIO

import pytest
from kio.schema.metadata.v8 import MetadataRequest, MetadataResponse
from kio.serial import entity_reader, entity_writer

from kmr.kio_requests import KioRequest

MESSAGE = MetadataRequest(
    topics=(),
    include_cluster_authorized_operations=False,
    include_topic_authorized_operations=False,
)


def test_a_request_goes_out_only_in_the_version_of_its_message() -> None:
    request = KioRequest(MESSAGE)
    assert request.prepare({3: (0, 8)}) is request
    for versions in ({3: (0, 7)}, {3: (9, 12)}, {}):
        with pytest.raises(NotImplementedError, match="MetadataRequest: the broker has versions"):
            request.prepare(versions)


def test_the_message_is_what_is_sent() -> None:
    encoded = KioRequest(MESSAGE).encode()
    assert entity_reader(MetadataRequest)(memoryview(encoded), 0)[0] == MESSAGE


def test_the_answer_is_a_message_of_the_same_version() -> None:
    buffer = BytesIO()
    fields = b"\0\0\0\0" + b"\0\0\0\0" + b"\0\3abc" + b"\0\0\0\1" + b"\0\0\0\0" + b"\0\0\0\0"
    answer = KioRequest(MESSAGE).decode(BytesIO(fields))
    assert isinstance(answer, MetadataResponse)
    assert answer.cluster_id == "abc"
    entity_writer(MetadataResponse)(buffer, answer)
    assert buffer.getvalue() == fields
