"""What Spark calls files and directories, and what we call ours: names that say which offsets they hold."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from framework.sinks.clickhouse.inserts import plan_inserts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from framework.record import Rows
    from framework.sinks.clickhouse.inserts import Insert

__all__ = [
    "NULL_PARTITION",
    "SUFFIX",
    "Part",
    "Span",
    "partition_directory",
    "plan_parts",
    "safe_name",
]

SUFFIX = ".parquet"
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""The directory of rows whose partition column is null, as Hive and Spark call it."""

_SEPARATOR = "~"  # in no topic's name, and not special in a URI or to Spark
_LONGEST = 200  # a file name has at most 255 bytes, and ours get something before and behind
_SPAN = re.compile(r"([^~]+)~([^~]+)~(\d+)~(\d+)-(\d+)")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
# What Spark escapes in the names of partition directories (ExternalCatalogUtils).
_ESCAPED = re.compile(r"[\x00-\x1f\"#%'*/:=?\\{\[\]^\x7f]")


@dataclass(frozen=True, slots=True)
class Span:
    """The offsets `[first, last]` of a topic partition, both inclusive, that a consumer group wrote together.

    `str` is the name of the file that holds them, without its suffix.
    """

    group: str
    topic: str
    partition: int
    first: int
    last: int

    def __str__(self) -> str:
        # 19 digits hold every offset, so that names sort as offsets do.
        parts = (safe_name(self.group), self.topic, str(self.partition))
        return _SEPARATOR.join((*parts, f"{self.first:019d}-{self.last:019d}"))

    @classmethod
    def parse(cls, name: str) -> Span | None:
        """What a file's name says, without its suffix; None if it is none of ours."""
        found = _SPAN.fullmatch(name)
        if found is None:
            return None
        group, topic, *numbers = found.groups()
        return cls(group, topic, *map(int, numbers))

    def through(self, other: Span) -> Span:
        """From the lowest to the highest offset of both."""
        return replace(self, first=min(self.first, other.first), last=max(self.last, other.last))


@dataclass(frozen=True, slots=True)
class Part:
    """What a flush has of one topic partition, or of several at once if its rows belong to no single one.

    Attributes:
        name: the same for the same offsets, in whichever process they are written.
        span: the offsets; None for rows of several partitions, or of none.
        insert: the rows.
    """

    name: str
    span: Span | None
    insert: Insert


def plan_parts(added: Sequence[Rows], group: str) -> list[Part]:
    """Divide a flush into parts, one per topic partition."""
    return [_part(insert, group) for insert in plan_inserts(added, group)]


def _part(insert: Insert, group: str) -> Part:
    ranges = [r for rows in insert.parts for r in rows.ranges]
    digest = sha256(insert.token.encode()).hexdigest()[:32]
    name = f"{safe_name(group[:64])}{_SEPARATOR}{digest}"
    if len({r.topic_partition for r in ranges}) != 1:
        return Part(name, None, insert)
    topic, partition = ranges[0].topic_partition
    first, last = min(r.first for r in ranges), max(r.last for r in ranges)
    span = Span(group, topic, partition, first, last)
    return Part(str(span) if len(str(span)) <= _LONGEST else name, span, insert)


def safe_name(text: str) -> str:
    """A text as a part of a file's name: other texts have other names."""
    if text and not _UNSAFE.search(text):
        return text
    return f"{_UNSAFE.sub('_', text)}_{sha256(text.encode()).hexdigest()[:8]}"


def partition_directory(column: str, value: Any) -> str:
    """The directory of the rows with a value in a partition column: `carrier=AA`."""
    return f"{_escape(column)}={_escape(_text(value))}"


def _text(value: Any) -> str:
    if value is None:
        return NULL_PARTITION
    return str(value).lower() if isinstance(value, bool) else str(value)


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
