"""Error codes are found wherever a response has places for them."""

from typing import Any

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from broker.wire.error_codes import error_codes
from broker.wire.messages import default_message, entity_in

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
