import asyncio
import time

from kio.schema.list_offsets.v11.request import ListOffsetsPartition, ListOffsetsTopic
from kio.schema.list_offsets.v11.response import (
    ListOffsetsPartitionResponse,
    ListOffsetsTopicResponse,
)

from kmr.broker.apis.slices import SLICE_SECONDS, answer_each, answer_partitions
from kmr.broker.protocol.messages import default_message


async def test_other_tasks_run_between_two_slices() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def slow(number: int) -> int:
        time.sleep(SLICE_SECONDS)
        return -number

    task = asyncio.create_task(other())
    assert await answer_each(slow, range(5)) == (0, -1, -2, -3, -4)
    assert turns == 5
    task.cancel()


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
