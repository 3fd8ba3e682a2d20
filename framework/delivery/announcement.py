"""The metadata that is committed with an offset: announcements of ranges, and the offset's generation.

*Announce, write, acknowledge*: the committed offset of a partition stays at the first record of a range
until the range is written, and its metadata says where the range ends. After a crash, the next owner of
the partition reads exactly that range again and writes it with the same token, by which the sink
recognises rows that it already has.

Where a strategy remembers earlier records (`kmr.memory`), the metadata says from where on they are read
again.
With a `Window`, the committed offset stays at the first record of the lowest open window, and the metadata
says up to where windows are closed (`Closed`), or are about to be (`WindowAnnouncement`).

The *generation* of a partition's offsets is a part of every token. `kmr offsets reset` raises it, so that
records that are read again are written again; every later commit keeps it. Metadata without one, such as
that of earlier versions or of other tools, means generation 0, and tokens without a generation. Where
no range is announced, a generation begins there (`Committer.begin`).
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from ..errors import ConsumerError
from ..kafka.consumer import CommitOffset
from ..service.identity import now_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..record import Range, TopicPartition

_MARK: Final = '{"kmr":'
_LONGEST_TOKEN: Final = 200


class LookBack(NamedTuple):
    """What a worker that begins at a committed offset reads again first, to remember it.

    Attributes:
        offset: the first record.
        within: for how much event time records are remembered, in microseconds.
    """

    offset: int
    within: int


class BackfillRange(msgspec.Struct, frozen=True, array_like=True):
    """The offsets that a group of `kmr backfill` reads of one partition. Every commit of it says which.

    Attributes:
        first: the first offset.
        until: the offset after the last one: the cut, where another group begins.
        engine: `worker` or `spark`.
    """

    first: int
    until: int
    engine: str = "worker"

    @property
    def offsets(self) -> int:
        """How many offsets it has."""
        return self.until - self.first

    def done(self, committed: int) -> int:
        """Return how many offsets are done, by the committed offset of the group that reads it."""
        return max(0, min(committed, self.until) - self.first)


class Announcement(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kmr", tag=1):
    """One range of one partition that is about to be written. As text: JSON with its version in `kmr`.

    Attributes:
        first: first offset of the range, and the committed offset.
        last: last offset of the range, inclusive.
        token: the deduplication token of the write.
        writer: the process that announced the range; distinguishes two that announce the same one.
        rows: number of rows that the range became.
        chunk: rows of each block, if the range is written in several; 0 if in one.
        generation: the generation of the partition's offsets.
        back: what is remembered before `first`; None if nothing is.
        history: where the group ends to read the partition; None: nowhere.
    """

    first: int
    last: int
    token: str
    writer: str
    rows: int = 0
    chunk: int = 0
    generation: int = 0
    back: LookBack | None = None
    history: BackfillRange | None = None

    @property
    def metadata(self) -> str:
        """The text that is committed with the offset `first`."""
        return msgspec.json.encode(self).decode()

    @property
    def closed(self) -> Closed | None:
        """Which windows were closed before these rows; failed records up to `last` are settled."""
        return None


class JoinedAnnouncement(Announcement, frozen=True, omit_defaults=True, tag_field="kmr", tag=5):
    """A range that is about to be written with ranges of other partitions, at once and under one token.

    Attributes:
        joined: that token. No other write has it. Who writes the range alone does so under this token first,
            and under the range's own only if the sink does not have it then (docs/delivery.md).
    """

    joined: str = ""


class WindowAnnouncement(Announcement, frozen=True, omit_defaults=True, tag_field="kmr", tag=4):
    """Rows of windows that are about to be written: those that these offsets close.

    Attributes:
        closed_from: up to which event time windows were closed before, in microseconds since 1970.
        closed_to: up to which they are closed then.
        definition: of the windows, see `Window.definition`.
        level: see `Closed.level`.
        emitted_to: see `Closed.emitted_to`.
    """

    closed_from: int = 0
    closed_to: int = 0
    definition: str = ""
    level: int = 0
    emitted_to: int | None = None

    @property
    def closed(self) -> Closed:
        return Closed(self.last, self.closed_from, self.definition, self.level, self.emitted_to)


class Closed(msgspec.Struct, frozen=True, array_like=True):
    """Which windows are closed. The offset that it is committed with is the first of an open one.

    Attributes:
        read_to: the last offset that was read: failed and late records up to it are settled.
        closed_to: the event time up to which windows are closed, in microseconds since 1970.
        definition: of the windows, see `Window.definition`.
        level: of sessions: the event time before that first record, less the lateness.
        emitted_to: the last offset of the rows in what came out; None: `read_to`.
    """

    read_to: int = -1
    closed_to: int = 0
    definition: str = ""
    level: int = 0
    emitted_to: int | None = None

    def up_to(self, end: int | None) -> Closed:
        """Return the same after offsets without rows, up to and without `end`, were read."""
        if end is None:
            return self
        emitted_to = self.read_to if self.emitted_to is None else self.emitted_to
        return msgspec.structs.replace(self, read_to=end - 1, emitted_to=emitted_to)


NOTHING_CLOSED: Final = Closed()
"""Of a partition that begins."""


class Generation(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kmr", tag=2):
    """The metadata of a commit that announces no range.

    Attributes:
        awaits: no worker may begin here: `kmr backfill` still reads what it must remember.
    """

    generation: int
    back: LookBack | None = None
    history: BackfillRange | None = None
    closed: Closed | None = None
    awaits: bool = False

    @property
    def metadata(self) -> str:
        """The text that is committed with any offset; empty if there is nothing to say."""
        parts = (self.back, self.history, self.closed)
        is_empty = not (self.generation or self.awaits) and parts == (None, None, None)
        return "" if is_empty else msgspec.json.encode(self).decode()


NO_HISTORY: Final = Generation(0, history=BackfillRange(0, 0))
"""Of a partition that is younger than the plan of `kmr backfill`: nothing of it is read."""


_METADATA: Final = Announcement | JoinedAnnouncement | WindowAnnouncement | Generation


def read_metadata(
    partition: TopicPartition, committed: CommitOffset | None
) -> Announcement | Generation:
    """Read the metadata of a committed offset; `Generation(0)` if it is empty or not ours.

    Raises:
        ConsumerError: a newer version of kmr wrote it. The functions below raise it, too.
    """
    if committed is None or not committed.metadata.startswith(_MARK):
        return Generation(0)
    try:
        return msgspec.json.decode(committed.metadata, type=_METADATA)
    except msgspec.MsgspecError as error:
        raise ConsumerError(
            f"{partition}: cannot read the metadata of the committed offset {committed.offset} ({error}): "
            f"{committed.metadata!r}. If a newer kmr committed it, run that one until it has drained; "
            "otherwise reset the group's offsets"
        ) from error


def read_announcement(
    partition: TopicPartition, committed: CommitOffset | None
) -> Announcement | None:
    """Read the announcement in a committed offset; None if there is none."""
    found = read_metadata(partition, committed)
    return found if isinstance(found, Announcement) else None


def awaits_history(partition: TopicPartition, committed: CommitOffset | None) -> bool:
    """Return whether a history must end before a worker may begin there (`awaits`)."""
    found = read_metadata(partition, committed)
    return isinstance(found, Generation) and found.awaits


def read_up_to(partition: TopicPartition, committed: CommitOffset) -> int:
    """Return the offset up to which a group has read, and written what it could.

    It is beyond the committed one where the records of open windows are not settled.
    """
    found = read_metadata(partition, committed)
    closed = found.closed if isinstance(found, Generation) else None
    return max(committed.offset, 0 if closed is None else closed.read_to + 1)


def handed_over(partition: TopicPartition, committed: CommitOffset) -> CommitOffset:
    """Return the last commit of a history as the first one of the group that goes on from there.

    Raises:
        ConsumerError: rows are announced, so the history is not done.
    """
    found = read_metadata(partition, committed)
    if isinstance(found, Announcement):
        raise ConsumerError(f"{partition}: the history has announced rows that are not written")
    return CommitOffset(committed.offset, msgspec.structs.replace(found, history=None).metadata)


def remembering(
    partition: TopicPartition,
    committed: CommitOffset,
    first: int,
    *,
    back: LookBack | None,
    closed: Closed | None,
) -> CommitOffset:
    """Return a commit at `first`, the first record of open windows, with what a worker has to remember."""
    found = read_metadata(partition, committed)
    kept = Generation(found.generation, back, found.history, closed)
    return CommitOffset(first, kept.metadata)


def history_group(group: str) -> str:
    """Return the name of the group that reads the history of a group."""
    return f"{group}.backfill"


def next_generation(before: Iterable[int] = ()) -> int:
    """Return a generation above those before, of all partitions that get it.

    It is the time, in milliseconds since 1970, so that it is new also where another tool has erased the last
    one.
    """
    return max(now_ms(), 1 + max(before, default=0))


def token_of(group: str, ranges: Iterable[Range], generations: Mapping[TopicPartition, int]) -> str:
    """Return the deduplication token of rows: `group:topic:partition:first-last`, for each partition.

    It covers all offsets from the first to the last of a partition, and ends in `@generation` where the
    generation of its offsets is above 0. The same offsets of the same generation have the same token in
    every process. A long token is replaced by its SHA-256.
    """
    spans: dict[TopicPartition, tuple[int, int]] = {}
    for r in ranges:
        first, last = spans.get(r.topic_partition, (r.first, r.last))
        spans[r.topic_partition] = (min(first, r.first), max(last, r.last))
    names = []
    for partition, (first, last) in sorted(spans.items()):
        generation = generations.get(partition, 0)
        at = f"@{generation}" if generation else ""
        names.append(f"{partition.topic}:{partition.partition}:{first}-{last}{at}")
    token = f"{group}:{','.join(names)}"
    if len(token) <= _LONGEST_TOKEN:
        return token
    return f"{group[:64]}:{sha256(token.encode()).hexdigest()}"
