"""A topic and its partitions as handlers see them; the rules for topic names."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self, TypeAlias
from uuid import UUID, uuid5

from kio.schema.errors import ErrorCode

from ..errors import RequestError
from .topic_config import log_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ..coordinators.state_log import StateLog
    from ..log.log_config import LogConfig
    from ..log.partition import PartitionLog

TopicPartition: TypeAlias = tuple[str, int]
"""Name of a topic and index of one of its partitions."""

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
"""Names that belong to the broker: clients cannot create, delete or produce to these topics."""
_INTERNAL_IDS: Final = UUID("5f0a4c2e-6f0b-4c36-9a52-0f1d2f8f3b7a")
_INTERNAL_SETTINGS: Final = {"cleanup.policy": "compact"}
_MAX_NAME: Final = 249
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


class Watch:
    """Calls back once when its partitions have grown by enough bytes, or when one of them is closed.

    It watches from `begin` to `end`, or within a `with` block.
    """

    def __init__(
        self, partitions: Sequence[Partition], missing_bytes: int, on_due: Callable[[], object]
    ) -> None:
        self._partitions = partitions
        self._missing = missing_bytes
        self._on_due = on_due
        self._is_due = False

    def begin(self) -> None:
        for partition in self._partitions:
            partition.watches.add(self)

    def end(self) -> None:
        for partition in self._partitions:
            partition.watches.discard(self)

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def grown(self, size: int) -> None:
        """Count `size` bytes more."""
        self._missing -= size
        if self._missing <= 0:
            self.wake()

    def wake(self) -> None:
        """Call back now, if that has not happened yet."""
        if not self._is_due:
            self._is_due = True
            self._on_due()


@dataclass(slots=True, eq=False)
class Partition:
    """A partition of a topic.

    Attributes:
        high_watermark: consumers may read the offsets below. These records are in the file, and under
            fsync "always" on disk: a consumer sees only records that can be acknowledged.
        produced_bytes, produced_records, fetched_bytes, fetched_records: counted since the broker's
            start; `fetched_records` counts offsets, including those that compaction removed.
        watches: the long polls that wait for this partition.
        closed: True once the topic is deleted.
        reported_unreadable: why records could not be read, as it was last logged.
        reported_failure: True while a failed write has been logged.
    """

    topic: str
    index: int
    log: PartitionLog
    high_watermark: int = field(init=False)
    watches: set[Watch] = field(init=False, default_factory=set)
    closed: bool = False
    reported_unreadable: str = ""
    reported_failure: bool = False
    produced_bytes: int = 0
    produced_records: int = 0
    fetched_bytes: int = 0
    fetched_records: int = 0

    def __post_init__(self) -> None:
        self.high_watermark = self.log.next_offset

    @property
    def last_stable_offset(self) -> int:
        """A read_committed consumer may read the offsets below."""
        return min(self.high_watermark, self.log.last_stable_offset)

    def offsets(self) -> tuple[int, int, int]:
        """Return high watermark, last stable offset and log start offset."""
        high_watermark, log = self.high_watermark, self.log
        start, first_open = log.log_start_offset, log.producers.first_open_offset
        stable = high_watermark if first_open is None else max(first_open, start)
        return high_watermark, min(high_watermark, stable), start

    def advance(self, high_watermark: int, size: int) -> None:
        """Show consumers the records below `high_watermark`, which are `size` bytes more."""
        if high_watermark <= self.high_watermark:
            return
        self.produced_bytes += size
        self.produced_records += high_watermark - self.high_watermark
        self.high_watermark = high_watermark
        for watch in tuple(self.watches):
            watch.grown(size)

    def wake(self) -> None:
        """End the long polls that wait for this partition."""
        for watch in tuple(self.watches):
            watch.wake()

    def close(self) -> None:
        """Refuse appends and reads from now on, because the topic is being deleted."""
        self.closed = True
        self.wake()


@dataclass(frozen=True, slots=True, eq=False)
class Topic:
    """A topic; `settings` are its own, `config` is the complete configuration of its logs."""

    name: str
    topic_id: UUID
    partitions: Sequence[Partition]
    config: LogConfig
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


def internal_topic(name: str, log: StateLog, defaults: LogConfig) -> Topic:
    """Return a coordinator's log as a topic that clients can list and read, but not change.

    It has one partition and is compacted. Its records become readable when they are written, or
    synced (see `StateLog`). Its id is the same on every broker.
    """
    partition = Partition(name, 0, log.log)
    log.on_readable = partition.advance
    return Topic(
        name=name,
        topic_id=uuid5(_INTERNAL_IDS, name),
        partitions=(partition,),
        config=log_config(defaults, _INTERNAL_SETTINGS.items()),
        settings=_INTERNAL_SETTINGS,
    )


def check_topic_name(name: str) -> None:
    """Raise RequestError (INVALID_TOPIC_EXCEPTION) unless clients may create a topic of this name."""
    if not name:
        problem = "is empty"
    elif name in {".", ".."}:
        problem = "must not be . or .."
    elif len(name) > _MAX_NAME:
        problem = f"has {len(name)} characters, more than {_MAX_NAME}"
    elif not _NAME.fullmatch(name):
        problem = "has characters other than letters, digits, . _ -"
    elif name in INTERNAL_TOPICS:
        problem = "belongs to the broker"
    else:
        return
    shown = name if len(name) <= _MAX_NAME else f"{name[:32]}..."
    raise _invalid(f"the topic name {shown!r} {problem}")


def check_collision(name: str, others: Iterable[str]) -> None:
    """Raise RequestError (INVALID_TOPIC_EXCEPTION) if another name differs only in . and _.

    Kafka refuses such a name too: metric names cannot tell the two characters apart.
    """
    if "." not in name and "_" not in name:
        return
    plain = name.replace(".", "_")
    for other in others:
        if other != name and other.replace(".", "_") == plain:
            raise _invalid(f"the topic name {name!r} differs from {other!r} only in . and _")


def _invalid(message: str) -> RequestError:
    return RequestError(ErrorCode.invalid_topic_exception, message)
