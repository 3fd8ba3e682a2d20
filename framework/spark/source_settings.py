"""What the source of a query reads, from where, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..kafka.connection import ConnectionConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

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
