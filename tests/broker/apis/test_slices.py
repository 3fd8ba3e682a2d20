import time
from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import Any, get_args

import pytest
from kio.schema.list_offsets.v11.request import ListOffsetsPartition, ListOffsetsTopic
from kio.schema.list_offsets.v11.response import (
    ListOffsetsPartitionResponse,
    ListOffsetsTopicResponse,
)

from kmr.broker import Broker, turns
from kmr.broker.apis.api import Api
from kmr.broker.apis.catalogue import SERVED
from kmr.broker.apis.slices import answer_partitions
from kmr.broker.protocol.messages import default_message, entity_in

Connect = Callable[[Broker], Awaitable[Any]]

ELEMENTS = 30
AT_ONCE = {
    "JoinGroup": "a member joins as a whole",
    "SyncGroup": "the leader's assignment is given as a whole",
    "ListGroups": "its lists are filters, made sets at once",
    "ListConfigResources": "its list is a filter, made a set at once",
}
"""APIs that handle the lists of a request in one step, which takes a few milliseconds at most."""


def with_lists(entity_type: Any, number: int, elements: int) -> Any:
    """An entity whose lists have so many elements, which differ, and these lists of one element each."""
    values: dict[str, Any] = {}
    for field in fields(entity_type):
        kinds = (field.type, *get_args(field.type))
        many = any(Ellipsis in (kind, *get_args(kind)) for kind in kinds)
        nested = entity_in(field.type)
        text = field.metadata.get("kafka_type") == "string"
        if many and nested is not None:
            values[field.name] = tuple(with_lists(nested, each, 1) for each in range(elements))
        elif many:
            values[field.name] = tuple(f"name-{e}" if text else e for e in range(elements))
        elif text:
            values[field.name] = f"name-{number}"
    return default_message(entity_type, **values)


async def test_partitions_are_answered_in_the_order_of_the_request() -> None:
    def topic(name: str, *indexes: int) -> ListOffsetsTopic:
        partitions = [
            default_message(ListOffsetsPartition, partition_index=each) for each in indexes
        ]
        message: ListOffsetsTopic = default_message(
            ListOffsetsTopic, name=name, partitions=tuple(partitions)
        )
        return message

    def answer(name: str, asked: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
        response: ListOffsetsPartitionResponse = default_message(
            ListOffsetsPartitionResponse, partition_index=asked.partition_index, offset=len(name)
        )
        return response

    topics = [topic("a", 2, 1), topic("bb", 0)]
    answers = await answer_partitions(ListOffsetsTopicResponse, topics, answer)
    assert [each.name for each in answers] == ["a", "bb"]
    assert [(p.partition_index, p.offset) for each in answers for p in each.partitions] == [
        (2, 1),
        (1, 1),
        (0, 2),
    ]


@pytest.mark.parametrize(
    "api",
    [each for each in SERVED if isinstance(each, Api) and each.name not in AT_ONCE],
    ids=lambda api: f"{api.name}-{api.max_version}",
)
async def test_each_api_gives_way_between_the_elements_of_its_lists(
    broker: Broker, connect: Connect, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = with_lists(api.request, 0, ELEMENTS)
    lists = [each for f in fields(request) if isinstance(each := getattr(request, f.name), tuple)]
    if not any(map(len, lists)):
        return
    client = await connect(broker)
    asked = 0

    def now() -> float:
        nonlocal asked
        asked += 1
        return time.monotonic()

    monkeypatch.setattr(turns, "monotonic", now)
    await client.ask(request)
    assert asked >= ELEMENTS
