"""The request for committed offsets, which waits for those that are not certain yet.

Without `require_stable` (OffsetFetch 7, KIP-447) a coordinator may answer with less than was committed: with
what came before a transaction that is about to end, and, just after another broker has taken over the group,
with what came before the newest commits. aiokafka knows OffsetFetch up to version 3.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.commit import OffsetFetchRequest_v3
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

from framework.consumer import CommitOffset
from framework.kafka.codes import check_code
from framework.record import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["OffsetFetch", "committed_offsets"]

_UNKNOWN_TOPIC = 3


class _Response7(Response):  # type: ignore[misc]
    API_KEY = 9
    API_VERSION = 7
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("metadata", CompactString("utf-8")),
                        ("error_code", Int16),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("error_code", Int16),
        ("tags", TaggedFields),
    )


class _Request7(RequestStruct):  # type: ignore[misc]
    API_KEY = 9
    API_VERSION = 7
    RESPONSE_TYPE = _Response7
    FLEXIBLE_VERSION = True
    SCHEMA = Schema(
        ("consumer_group", CompactString("utf-8")),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                ("partitions", CompactArray(Int32)),
                ("tags", TaggedFields),
            ),
        ),
        ("require_stable", Boolean),
        ("tags", TaggedFields),
    )


class OffsetFetch(Request[OffsetFetchRequest_v3 | _Request7]):  # type: ignore[misc]
    """What a group has committed for these partitions; None: for all that it has.

    Brokers before Kafka 2.5 are asked by version 3, which cannot wait.
    """

    API_KEY = 9

    def __init__(self, group: str, partitions: Iterable[TopicPartition] | None) -> None:
        self._group = group
        self._topics: dict[str, list[int]] | None = None
        if partitions is not None:
            self._topics = defaultdict(list)
            for topic, partition in partitions:
                self._topics[topic].append(partition)

    def build(self, request_struct_class: Any) -> Any:
        """The request in the version that the broker has."""
        topics = None if self._topics is None else list(self._topics.items())
        if request_struct_class is _Request7:
            tags: dict[int, bytes] = {}
            tagged = None if topics is None else [(*topic, tags) for topic in topics]
            return _Request7(self._group, tagged, True, tags)  # noqa: FBT003
        return request_struct_class(self._group, topics)


def committed_offsets(response: Any) -> dict[TopicPartition, CommitOffset]:
    """What a response says is committed; partitions without anything are left out.

    Raises KafkaError for an error of the group, which has no partitions with it, or of a partition.
    """
    answer = response.to_object()
    check_code(answer["error_code"], "the group")
    found = {}
    for topic in answer["topics"]:
        for entry in topic["partitions"]:
            partition = TopicPartition(topic["topic"], entry["partition"])
            if entry["error_code"] == _UNKNOWN_TOPIC:  # deleted, and its offsets with it
                continue
            check_code(entry["error_code"], partition)
            if entry["offset"] >= 0:
                found[partition] = CommitOffset(entry["offset"], entry["metadata"] or "")
    return found
