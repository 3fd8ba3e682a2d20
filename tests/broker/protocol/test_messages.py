"""Messages: read, written, converted between versions, and the error codes in them."""

from datetime import timedelta
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.join_group.v7.response import JoinGroupResponse as NewJoined
from kio.schema.metadata.v12.response import MetadataResponse

from kmr.broker.protocol.cursor import MalformedRequest
from kmr.broker.protocol.messages import (
    default_message,
    entity_in,
    error_codes,
    has_field,
    read_message,
    recast,
    write_message,
)

JOIN_GROUP, METADATA, OFFSET_COMMIT = 11, 3, 8


def test_a_field_that_the_older_version_lacks_gets_its_default() -> None:
    old: Any = default_message(load_request_schema(METADATA, 1), topics=None)
    new: Any = recast(old, load_request_schema(METADATA, 12))
    assert new.topics is None
    assert new.allow_auto_topic_creation is True
    assert new.include_topic_authorized_operations is False


def test_nested_messages_are_recast_too() -> None:
    request = load_request_schema(OFFSET_COMMIT, 2)
    old: Any = default_message(request, group_id="g")
    schema: Any = load_request_schema(OFFSET_COMMIT, 8)
    new: Any = recast(old, schema)
    assert type(new).__version__ == 8
    assert (new.group_id, new.topics, new.group_instance_id) == ("g", (), None)


def test_null_becomes_empty_where_the_older_version_has_no_null() -> None:
    new = default_message(NewJoined, protocol_name=None)
    old = recast(new, load_response_schema(JOIN_GROUP, 6))
    assert old.protocol_name == ""


def test_a_message_of_the_same_version_is_the_same_message() -> None:
    message = default_message(MetadataResponse)
    assert recast(message, MetadataResponse) is message


def test_a_default_message_has_the_values_that_were_given() -> None:
    message = default_message(NewJoined, error_code=ErrorCode.unknown_server_error, nonsense=1)
    assert message.error_code is ErrorCode.unknown_server_error
    assert message.throttle_time == timedelta(0)
    assert message.members == ()


def test_fields_are_found_by_name() -> None:
    assert has_field(NewJoined, "error_code")
    assert not has_field(MetadataResponse, "error_code")


def test_a_message_survives_writing_and_reading() -> None:
    message = default_message(NewJoined, member_id="m", generation_id=3)
    assert read_message(NewJoined, memoryview(write_message(message))) == message


@pytest.mark.parametrize("data", [b"", b"\x7f\xff\xff\xff" + bytes(20), b"\xff" * 40])
def test_bytes_that_are_not_a_message_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedRequest, match="CreateTopicsRequest"):
        read_message(load_request_schema(19, 7), memoryview(bytearray(data)))


METADATA, HEARTBEAT, OFFSET_FETCH = 3, 12, 9


def part(entity: Any, field: str, *elements: dict[str, Any]) -> tuple[Any, ...]:
    """Elements of the list `field` of an entity."""
    kind = entity_in(next(each.type for each in _fields(entity) if each.name == field))
    return tuple(default_message(kind, **values) for values in elements)


def _fields(entity: Any) -> Any:
    return tuple(entity.__dataclass_fields__.values())


def test_a_code_of_the_whole_response_is_found() -> None:
    response = load_response_schema(HEARTBEAT, 4)
    refused = default_message(response, error_code=ErrorCode.unknown_member_id)
    assert list(error_codes(refused)) == [ErrorCode.unknown_member_id]
    assert list(error_codes(default_message(response))) == []


def test_codes_are_found_in_lists_of_lists() -> None:
    response = load_response_schema(METADATA, 12)
    topic = entity_in(next(f.type for f in _fields(response) if f.name == "topics"))
    partitions = part(
        topic,
        "partitions",
        {"error_code": ErrorCode.leader_not_available},
        {"error_code": ErrorCode.none},
    )
    topics = part(
        response,
        "topics",
        {"error_code": ErrorCode.none, "partitions": partitions},
        {"error_code": ErrorCode.unknown_topic_or_partition},
    )
    found = list(error_codes(default_message(response, topics=topics)))
    assert found == [ErrorCode.leader_not_available, ErrorCode.unknown_topic_or_partition]


def test_a_list_that_is_null_has_none() -> None:
    groups = part(load_response_schema(OFFSET_FETCH, 8), "groups", {"topics": None})
    response = default_message(load_response_schema(OFFSET_FETCH, 8), groups=groups)
    assert list(error_codes(response)) == []
