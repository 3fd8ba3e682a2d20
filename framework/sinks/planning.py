"""Divide a flush into ranges, one per partition, each with a token made of its offsets."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

from ..delivery.announcement import JoinedAnnouncement, WindowAnnouncement, token_of
from ..delivery.ranges import merge_ranges
from ..record import Rows, TopicPartition
from ..reducers.collect import one_table
from ..reducers.sink import NEW, Refusal, Write, refusals_among

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    import pyarrow as pa

    from ..delivery.announcement import Announcement
    from ..record import Range

MAX_BLOCK_ROWS = 1_000_000
"""ClickHouse divides larger inserts into several blocks, which it does not write atomically."""

_SMALL_ROWS = 1_000
_MANY_RANGES = 8  # fewer are written as they are
_MOST_JOINED = 64  # so that a table that is partitioned as the topic takes them: 100 by default

_SEPARATOR = "~"  # not allowed in topic names, and not special in a URI or to Spark
_LONGEST_NAME = 200  # a file name has at most 255 bytes; ours get a prefix and a suffix
_SPAN = re.compile(r"([^~]+)~([^~]+)~(\d+)~(\d+)-(\d+)(?:~(\d+))?")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True)
class Section:
    """Rows `[start, stop)` of the range with the token `of`, sent together.

    Attributes:
        whole: the token of all.
        there: names the rows that the table has and that are not sent; empty if it has none.
    """

    of: str
    start: int
    stop: int
    whole: str = ""
    there: str = ""

    @property
    def token(self) -> str:
        """The deduplication token."""
        token = self.whole or f"{self.of}/{self.start}-{self.stop}"
        return f"{token}/without-{self.there}" if self.there else token

    def halves(self) -> tuple[Section, Section]:
        """Bisect a refused section of two rows or more."""
        middle = (self.start + self.stop) // 2
        return Section(self.of, self.start, middle), Section(self.of, middle, self.stop)


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets `[first, last]`, both inclusive, of one topic partition, written by one consumer group.

    `str` is a name for a file, without its suffix. The generation of the offsets is a part of it, so that
    records that are read again after a reset are written again.
    """

    group: str
    topic: str
    partition: int
    first: int
    last: int
    generation: int = 0

    def __str__(self) -> str:
        # 19 digits hold every offset, so names sort by offset.
        offsets = f"{self.first:019d}-{self.last:019d}"
        parts = [safe_name(self.group), self.topic, str(self.partition), offsets]
        if self.generation:
            parts.append(str(self.generation))
        return _SEPARATOR.join(parts)

    @classmethod
    def parse(cls, name: str) -> Span | None:
        """Parse the name of a file, without its suffix; return None for a foreign file."""
        found = _SPAN.fullmatch(name)
        if found is None:
            return None
        group, topic, *numbers = found.groups(default="0")
        return cls(group, topic, *map(int, numbers))

    def through(self, other: Span) -> Span:
        """Return the span from the lowest to the highest offset of both."""
        return replace(self, first=min(self.first, other.first), last=max(self.last, other.last))

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the offsets."""
        return TopicPartition(self.topic, self.partition)


def safe_name(text: str) -> str:
    """Return a text as a safe and unique part of a file name."""
    if text and not _UNSAFE.search(text):
        return text
    return f"{_UNSAFE.sub('_', text)}_{sha256(text.encode()).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True)
class RangeRows:
    """The rows of one range: those of one partition in a flush, or of several partitions at once.

    Attributes:
        token: the name of the range. The same offsets of the same generation have the same token in
            every process.
        parts: the rows, as they were added.
        span: the offsets of the range; None for rows of several partitions, such as aggregates, and for
            rows without offsets.
        repeated: the range may have been written before.
        block_rows: the most rows that are written at once.
        write: as the engine passed it to `flush`.
        joined: the tokens of the ranges that were joined to this one.
        shared: the token under which the rows are written first, because others may have been written with
            them under it; empty: `token`.
        piece: which rows of the range these are, where it is not written at once: `0-128`.
        divides_later: an answer "later" is taken for one about some of the rows (`answers.Patience`).
    """

    token: str
    parts: tuple[Rows, ...]
    span: Span | None = None
    repeated: bool = False
    block_rows: int = MAX_BLOCK_ROWS
    write: Write = NEW
    joined: tuple[str, ...] = ()
    shared: str = ""
    piece: str = ""
    divides_later: bool = False

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def ranges(self) -> tuple[Range, ...]:
        """The offsets that the rows came from."""
        return merge_ranges(r for rows in self.parts for r in rows.ranges)

    @property
    def table(self) -> pa.Table:
        """All rows in one table; see `one_table` for errors."""
        return one_table(self.parts)

    def table_with(self, coordinates: Sequence[str]) -> pa.Table:
        """Return all rows with those of the named columns of `kmr.record.COORDINATES` that they lack."""
        return one_table(
            [replace(rows, table=rows.with_coordinates(coordinates)) for rows in self.parts]
        )

    @property
    def file_name(self) -> str:
        """The token as the name of a file, without a suffix; at most 200 characters."""
        piece = _SEPARATOR + self.piece if self.piece else ""
        if self.span is not None and len(name := f"{self.span}{piece}") <= _LONGEST_NAME:
            return name
        digest = sha256(self.token.encode()).hexdigest()[:32]
        return f"{safe_name(self.token.partition(':')[0][:64])}{_SEPARATOR}{digest}{piece}"

    def sections(self) -> list[Section]:
        """Return the whole, or as many parts as needed to stay below the largest block."""
        rows = len(self)
        size = self.block_rows
        if rows <= size:
            return [Section(self.token, 0, rows, whole=self.shared or self.token)]
        return [
            Section(self.token, start, min(start + size, rows)) for start in range(0, rows, size)
        ]

    def refusals(self, refused: Mapping[int, str]) -> list[Refusal]:
        """Return the refused rows, given by row number, as parts of the `Rows` that were added."""
        return refusals_among(self.parts, refused)


def plan_ranges(
    added: Sequence[Rows],
    group: str,
    generations: Mapping[TopicPartition, int],
    write: Write = NEW,
    *,
    repeated: bool = False,
    otherwise: int = 0,
) -> list[RangeRows]:
    """Divide a flush into ranges, one per partition; ranges without a row are left out.

    Rows that came from several partitions at once, such as aggregates, make one range together. A token
    is `group:topic:partition:first-last`, over all offsets of the partition in the flush, so that any
    process that writes the same offsets of the same generation again uses the same token. If failed records
    are missing in between, a hash of the offsets follows.

    Args:
        write: if it has an announcement, all rows are of one partition: its token and offsets are used.
        repeated: an earlier attempt of this process may have written the rows.
        otherwise: the generation of partitions that have none, of ranges that are not announced.
    """
    repeated = repeated or write.repeated
    if write.announcement is not None:
        planned = [_announced(added, group, write.announcement, write, repeated=repeated)]
    else:
        partitions: dict[TopicPartition | None, list[Rows]] = defaultdict(list)
        for rows in added:
            owners = {r.topic_partition for r in rows.ranges}
            if len(owners) == 1:
                partitions[owners.pop()].append(rows)
            else:
                partitions[None].append(replace(rows, offsets=None))
        planned = []
        if otherwise:
            owners = {r.topic_partition for rows in added for r in rows.ranges}
            generations = {owner: generations.get(owner) or otherwise for owner in owners}
        for owner, parts in partitions.items():
            ranges = [r for rows in parts for r in rows.ranges]
            span = None
            if owner is not None:
                first, last = min(r.first for r in ranges), max(r.last for r in ranges)
                span = Span(group, *owner, first, last, generations.get(owner, 0))
            token = _token(group, parts, ranges, generations)
            closes = [rows.closes for rows in parts if rows.closes is not None]
            if closes and span is not None:
                span, suffix = _of_windows(span, closes[0][0], closes[-1][1])
                token += suffix
            planned.append(RangeRows(token, tuple(parts), span, repeated, write=write))
    return [rows for rows in planned if len(rows)]


def join_ranges(planned: Sequence[RangeRows], written: Container[str] = ()) -> list[RangeRows]:
    """Join ranges with few rows of many partitions, so that they are written at once.

    The same ranges have the same token in every order. Only where nothing is announced: another process
    divides the partitions in another way, and does not recognise the token.

    Args:
        written: tokens of ranges that are left out.
    """
    groups: dict[tuple[str, int], list[RangeRows]] = defaultdict(list)
    for rows in planned:
        if len(rows) < _SMALL_ROWS and rows.span is not None:
            groups[rows.span.topic, rows.span.partition // _MOST_JOINED].append(rows)
    few = sum(map(len, groups.values())) <= _MANY_RANGES
    alone = [rows for rows in planned if few or len(rows) >= _SMALL_ROWS or rows.span is None]
    joined = [rows for rows in alone if rows.token not in written]
    for some in [] if few else groups.values():
        left = sorted(
            (rows for rows in some if rows.token not in written), key=lambda rows: rows.token
        )
        joined += left if len(left) < 2 else [_joined(left)]
    return joined


def together(ranges: Sequence[RangeRows]) -> RangeRows:
    """Return ranges that were announced with one token as one write under it."""
    return replace(
        ranges[0],
        parts=tuple(part for rows in ranges for part in rows.parts),
        span=None,
        joined=tuple(rows.token for rows in ranges),
    )


def divided(ranges: Sequence[RangeRows], refused: Mapping[int, str]) -> list[dict[int, str]]:
    """Return what each of some ranges refused, of what they refused together."""
    ends = np.cumsum([len(rows) for rows in ranges])
    outcomes: list[dict[int, str]] = [{} for _ in ranges]
    for row, reason in refused.items():
        number = int(np.searchsorted(ends, row, side="right"))
        outcomes[number][row - int(ends[number]) + len(ranges[number])] = reason
    return outcomes


def _joined(ranges: Sequence[RangeRows]) -> RangeRows:
    first, tokens = ranges[0], [rows.token for rows in ranges]
    group = first.span.group if first.span is not None else ""
    token = f"{group[:64]}:{sha256(' '.join(tokens).encode()).hexdigest()}"
    return replace(together(ranges), token=token)


def _announced(
    added: Sequence[Rows],
    group: str,
    announcement: Announcement,
    write: Write,
    *,
    repeated: bool,
) -> RangeRows:
    owner = next((r.topic_partition for rows in added for r in rows.ranges), None)
    span = None
    if owner is not None:
        first, last = announcement.first, announcement.last
        span = Span(group, *owner, first, last, announcement.generation)
        if isinstance(announcement, WindowAnnouncement):
            span, _ = _of_windows(span, announcement.closed_from, announcement.closed_to)
    block_rows = announcement.chunk or MAX_BLOCK_ROWS
    shared = ""
    if isinstance(announcement, JoinedAnnouncement):
        shared = f"{group[:64]}:{announcement.joined}"
    return RangeRows(
        announcement.token, tuple(added), span, repeated, block_rows, write, shared=shared
    )


def _of_windows(span: Span, closed_from: int, closed_to: int) -> tuple[Span, str]:
    """Return the span, and the end of the token, of rows of windows.

    Later windows may have the same offsets, or overlap with them; the times up to which windows close are in
    order. The group has another name in the span: ranges of offsets and of times are not compared.
    """
    times = replace(span, group=f"{span.group}:windows", first=closed_from + 1, last=closed_to)
    return times, f"/{closed_from}-{closed_to}"


def _token(
    group: str,
    parts: Sequence[Rows],
    ranges: Sequence[Range],
    generations: Mapping[TopicPartition, int],
) -> str:
    if ranges:
        token = token_of(group, ranges, generations)
        pieces = merge_ranges(r._replace(generation=0) for r in ranges)
        if len(pieces) == len({r.topic_partition for r in pieces}):
            return token
        # Without an announcement, other records may come between the same first and last one.
        return f"{token}~{sha256(' '.join(map(str, pieces)).encode()).hexdigest()[:16]}"
    digest = sha256()  # of the content, for rows without offsets
    for rows in parts:
        for batch in rows.table.to_batches():
            digest.update(batch.serialize())
    return f"{group[:64]}:{digest.hexdigest()}"
