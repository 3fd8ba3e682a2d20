"""The topic `_schemas`: the registry writes its changes there, and learns them by reading it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import anyio
import structlog
from anyio import to_thread

from ..errors import BrokerError, RequestError
from ..log.records import NewRecord, build_batch, parse_header, read_records
from ..log.results import LogError
from .error_codes import STORE_FAILED, RegistryError
from .records import UnknownRecord, decode_record, encode_record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..storage.group_commit import GroupCommit
    from ..topics.topic import Partition, Topic
    from ..topics.topics import Topics
    from .records import Key, Value
    from .state import RegistryState

__all__ = ["SCHEMAS_TOPIC", "SchemasTopic"]

logger = structlog.get_logger(__name__)

SCHEMAS_TOPIC: Final = "_schemas"
"""Name of the topic, Confluent's default."""
_SETTINGS: Final = {"cleanup.policy": "compact"}


class SchemasTopic:
    """The one partition of `_schemas`, and the state that its records add up to.

    Calls: `open` once; then `catch_up` before the state is read, and `append`. An appended record, as any
    other that a client produces, changes the state when consumers can read it, so with --fsync always it
    is on disk.
    """

    def __init__(self, topics: Topics, group_commit: GroupCommit, state: RegistryState) -> None:
        self._topics = topics
        self._group_commit = group_commit
        self._state = state
        self._read_to = 0
        self._partition: Partition

    async def open(self) -> None:
        """Find or create the topic, and read it. Raises BrokerError if it cannot be used."""
        try:
            topic = self._topics.get(SCHEMAS_TOPIC) or await self._topics.create(
                SCHEMAS_TOPIC, 1, _SETTINGS
            )
            self._partition = _only_partition(topic)
            await to_thread.run_sync(self._read, self._partition.high_watermark)
        except (RequestError, LogError, OSError) as error:
            raise BrokerError(
                f"the topic {SCHEMAS_TOPIC} of the schema registry cannot be opened: {error}"
            ) from error

    def catch_up(self) -> None:
        """Apply the records written since the last call. Raises RegistryError if one cannot be read."""
        if self._partition.closed:
            raise RegistryError(
                STORE_FAILED,
                f"the topic {SCHEMAS_TOPIC} was deleted; restart the broker to begin with an empty one",
            )
        end = self._partition.high_watermark
        if self._read_to < end:
            try:
                self._read(end)
            except (LogError, OSError) as error:
                raise RegistryError(STORE_FAILED, str(error)) from error

    async def append(self, records: Iterable[tuple[Key, Value]]) -> None:
        """Append these records as one batch, then catch up. Raises RegistryError: nothing has changed."""
        now_ms = int(time.time() * 1000)
        encoded = [NewRecord(*encode_record(*each), (), now_ms) for each in records]
        partition = self._partition
        batch = build_batch(encoded)
        if len(batch) > partition.log.config.max_message_bytes:
            raise RegistryError(
                STORE_FAILED,
                f"{len(batch)} bytes are more than the topic {SCHEMAS_TOPIC} accepts"
                f" ({partition.log.config.max_message_bytes}); raise its max.message.bytes",
            )
        self.catch_up()
        try:
            partition.log.append(batch, [parse_header(batch)], now_ms=now_ms)
        except LogError as error:
            raise RegistryError(STORE_FAILED, str(error)) from error
        flush = self._group_commit.add(partition, len(batch))
        written = anyio.Event()
        flush.then(written.set)
        with anyio.CancelScope(shield=True):
            await written.wait()
        if partition in flush.failed:
            raise RegistryError(STORE_FAILED, str(flush.failed[partition]))
        self.catch_up()

    def _read(self, end: int) -> None:
        """Apply the records before the offset `end`."""
        ignored = 0
        for header, data in self._partition.log.batches(self._read_to):
            if header.base_offset >= end:
                break
            for record in () if header.is_control else read_records(data, header):
                if record.offset < self._read_to:
                    continue
                try:
                    self._state.apply(*decode_record(record.key, record.value))
                except UnknownRecord:
                    ignored += 1
        self._read_to = end
        if ignored:
            logger.warning(
                "ignored records of an unknown kind", topic=SCHEMAS_TOPIC, records=ignored
            )


def _only_partition(topic: Topic) -> Partition:
    """Return the partition. Raises BrokerError if the topic has several, or may delete schemas."""
    if len(topic.partitions) != 1:
        raise BrokerError(
            f"the topic {topic.name} of the schema registry has {len(topic.partitions)} partitions,"
            " but schemas need the order of one; delete it"
        )
    if topic.settings.get("cleanup.policy") != "compact":
        raise BrokerError(
            f"the topic {topic.name} of the schema registry is not compacted, so that retention would"
            " delete schemas; set its cleanup.policy to compact (kmr broker topic configure)"
        )
    return topic.partitions[0]
