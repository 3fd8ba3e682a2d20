"""What the source of a query reads, from where, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..kafka.connection import ConnectionConfig
from ..kafka.consumer import CommitOffset

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..archives.archive import ArchiveSource
    from ..kafka.subscription import Subscription
    from ..record import TopicPartition
    from ..settings import IsolationLevel

_MIB: Final = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class ClientConfig(ConnectionConfig):
    """How the source connects to the brokers and fetches.

    Attributes:
        isolation_level: `read_committed` leaves out records of open or aborted transactions.
        max_partition_fetch_bytes: bytes of one fetch response; more than a consumer's default, because a
            task reads one partition at a time.
        fetch_max_wait: seconds that a broker waits for records before it answers with none.
    """

    isolation_level: IsolationLevel = "read_uncommitted"
    max_partition_fetch_bytes: int = 4 * _MIB
    fetch_max_wait: float = 0.5


@dataclass(frozen=True, kw_only=True)
class SourceBounds:
    """What a query with an end reads: the partitions that it names, and no others.

    Attributes:
        first: the first offset of each partition.
        until: the offset after the last.
        generation: that of the offsets, a part of every token.
        metadata: what is committed beside the offsets of each partition.
        is_begun: offsets were committed, so a checkpoint that is empty has lost the progress.
    """

    first: Mapping[TopicPartition, int]
    until: Mapping[TopicPartition, int]
    generation: int
    metadata: Mapping[TopicPartition, str]
    is_begun: bool = False

    def is_end(self, partition: TopicPartition, offset: int) -> bool:
        """Return whether a partition was read to its end, and had anything."""
        return offset == self.until[partition] > self.first[partition]


@dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """What a query reads.

    Attributes:
        group: the group that offsets are committed to, for lag tools.
        from_end: a query without a checkpoint begins at the end of each partition, not at its beginning.
        max_offsets_per_trigger: most offsets in one micro-batch, all partitions together; None: no limit.
        min_partitions: least number of tasks of a micro-batch, approximately; None: one for each partition.
        fail_on_data_loss: stop when records were deleted before they were read; else log it and go on.
        poll_timeout: seconds that a task waits for records of its range.
        bounds: where the query begins and ends; None: at the end or beginning of each log, and nowhere.
        archive: has records that the topics may not have any more.
    """

    subscription: Subscription
    client: ClientConfig
    group: str
    from_end: bool = False
    max_offsets_per_trigger: int | None = None
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    poll_timeout: float = 120.0
    bounds: SourceBounds | None = None
    archive: ArchiveSource | None = None

    def commits(
        self,
        offsets: Mapping[TopicPartition, int],
        at_end: Callable[[TopicPartition, CommitOffset], CommitOffset] | None,
    ) -> dict[TopicPartition, CommitOffset]:
        """Return the commits of a query that has written all records before these offsets.

        Args:
            at_end: adds to the commit at the end of a history what the worker that goes on there remembers.
        """
        if (bounds := self.bounds) is None:
            return {at: CommitOffset(offset) for at, offset in offsets.items()}
        entries = {at: CommitOffset(n, bounds.metadata.get(at, "")) for at, n in offsets.items()}
        if at_end is None:
            return entries
        return {
            at: at_end(at, entry) if bounds.is_end(at, entry.offset) else entry
            for at, entry in entries.items()
        }
