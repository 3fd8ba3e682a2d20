"""The raw requests of the workload's clients, and everything that they can read from a broker.

`client` is a connection: `await client.call(api_key, version, **fields)` sends a request of these fields and
returns the response, in the types of kio.
"""

# ruff: noqa: S101  these assertions are the tests'
from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from kmr.broker.log.producers import read_marker
from kmr.broker.log.records import parse_header, read_records

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kmr.broker.log.records import StoredRecord

PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH = 0, 1, 2, 3, 8, 9
INIT, DESCRIBE_CONFIGS, DELETE_GROUPS, OFFSET_DELETE = 22, 32, 42, 47
UNCOMMITTED, COMMITTED = 0, 1
OWN_SETTING = 1
EARLIEST = -2
MINUTE = timedelta(minutes=1)
OK = ErrorCode.none


async def produce(client: Any, partition: tuple[str, int], batch: bytes) -> tuple[ErrorCode, int]:
    """Send a batch; the error and the offset of its first record."""
    topic, index = partition
    answer = await client.call(
        PRODUCE,
        9,
        acks=-1,
        topic_data=[{"name": topic, "partition_data": [{"index": index, "records": batch}]}],
    )
    found = answer.responses[0].partition_responses[0]
    return ErrorCode(found.error_code), found.base_offset


@dataclass
class Found:
    """What clients see of a broker.

    Attributes:
        topics: partitions and own settings of each.
        records: for each partition, (offset, value) of every record.
        committed: the same of what consumers of committed records see.
        keys: of each record by partition and offset.
        starts: where each partition starts.
        offsets: what groups committed.
    """

    topics: dict[str, tuple[int, frozenset[tuple[str, str]]]] = field(default_factory=dict)
    records: dict[tuple[str, int], list[tuple[int, bytes | None]]] = field(default_factory=dict)
    committed: dict[tuple[str, int], list[tuple[int, bytes | None]]] = field(default_factory=dict)
    keys: dict[tuple[str, int, int], bytes | None] = field(default_factory=dict)
    starts: dict[tuple[str, int], int] = field(default_factory=dict)
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)


async def look(client: Any) -> Found:
    """Read everything that clients can see. Raises LookupError if the broker reports damage."""
    found = Found()
    answer = await client.call(METADATA, 12, topics=None)
    partitions: list[tuple[str, int]] = []
    for topic in answer.topics:
        assert topic.error_code is OK
        if not topic.is_internal:
            partitions += ((topic.name, index) for index in range(len(topic.partitions)))
    names = sorted({topic for topic, _ in partitions})
    resources = [{"resource_type": 2, "resource_name": name} for name in names]
    answer = await client.call(DESCRIBE_CONFIGS, 4, resources=resources)
    for name, result in zip(names, answer.results, strict=True):
        own = {(c.name, c.value) for c in result.configs if c.config_source == OWN_SETTING}
        count = sum(topic == name for topic, _ in partitions)
        found.topics[name] = (count, frozenset(own))
    wanted = {each: {"partition_index": each[1], "timestamp": EARLIEST} for each in partitions}
    answer = await client.call(LIST_OFFSETS, 7, topics=_by_topic(wanted))
    for topic in answer.topics:
        for each in topic.partitions:
            found.starts[topic.name, each.partition_index] = each.offset
    for isolation, into in ((UNCOMMITTED, found.records), (COMMITTED, found.committed)):
        for partition, records in (await _read(client, found.starts, isolation)).items():
            into[partition] = [(record.offset, record.value) for record in records]
            found.keys |= {(*partition, record.offset): record.key for record in records}
    groups = [{"group_id": group, "topics": None} for group in ("auditors", "readers", "leavers")]
    answer = await client.call(OFFSET_FETCH, 8, groups=groups)
    for group in answer.groups:
        assert group.error_code is OK
        for topic in group.topics:
            for each in topic.partitions:
                where = (group.group_id, topic.name, each.partition_index)
                found.offsets[where] = each.committed_offset
    return found


async def _read(
    client: Any, starts: Mapping[tuple[str, int], int], isolation: int
) -> dict[tuple[str, int], list[StoredRecord]]:
    """All records that a consumer hands to its user."""
    seen: dict[tuple[str, int], list[StoredRecord]] = {each: [] for each in starts}
    aborted: set[tuple[tuple[str, int], int]] = set()
    offsets = dict(starts)
    while offsets:
        wanted = {
            each: {"partition": each[1], "fetch_offset": offset, "partition_max_bytes": 2**20}
            for each, offset in offsets.items()
        }
        answer = await client.call(
            FETCH, 11, max_bytes=2**24, isolation_level=isolation, topics=_by_topic(wanted, "topic")
        )
        for topic in answer.responses:
            for fetched in topic.partitions:
                partition = (topic.topic, fetched.partition_index)
                if fetched.error_code is not OK:
                    raise LookupError(f"{partition} at {offsets[partition]}: {fetched.error_code}")
                begins = [
                    (a.first_offset, a.producer_id) for a in fetched.aborted_transactions or ()
                ]
                begins.sort()
                data, at = fetched.records, 0
                while at < len(data):
                    header = parse_header(data, at)
                    at, offsets[partition] = header.end, header.next_offset
                    while begins and begins[0][0] <= header.last_offset:
                        aborted.add((partition, begins.pop(0)[1]))
                    producer = (partition, header.producer_id)
                    if header.is_control:
                        if not read_marker(data, header).committed:
                            aborted.discard(producer)
                    elif not (header.is_transactional and producer in aborted):
                        records = read_records(data, header)
                        seen[partition] += (r for r in records if r.offset >= starts[partition])
                end = fetched.last_stable_offset if isolation else fetched.high_watermark
                if not data or offsets[partition] >= end:
                    del offsets[partition]
    return seen


def _by_topic(
    partitions: Mapping[tuple[str, int], dict[str, int]], field_name: str = "name"
) -> list[dict[str, Any]]:
    """Partitions of a request, by their topics."""
    topics: dict[str, list[dict[str, int]]] = defaultdict(list)
    for (topic, _), each in partitions.items():
        topics[topic].append(each)
    return [{field_name: topic, "partitions": each} for topic, each in topics.items()]
