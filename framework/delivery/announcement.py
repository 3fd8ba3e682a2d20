"""Announcements: the metadata that is committed with an offset before a range is written.

*Announce, write, acknowledge*: the committed offset of a partition stays at the first record of a range
until the range is written, and its metadata says where the range ends. After a crash, the next owner of
the partition reads exactly that range again and writes it with the same token, by which the sink
recognises rows that it already has.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

import msgspec

from ..errors import ConsumerError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..kafka.consumer import CommitOffset
    from ..record import Range, TopicPartition

__all__ = ["Announcement", "read_announcement", "token_of"]

_MARK: Final = '{"kmr":'
_LONGEST_TOKEN: Final = 200


class Announcement(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kmr", tag=1):
    """One range of one partition that is about to be written. As text: JSON with its version in `kmr`.

    Attributes:
        first: first offset of the range, and the committed offset.
        last: last offset of the range, inclusive.
        token: the deduplication token of the write.
        writer: the process that announced the range; distinguishes two that announce the same one.
        rows: number of rows that the range became.
        chunk: rows of each block, if the range is written in several; 0 if in one.
    """

    first: int
    last: int
    token: str
    writer: str
    rows: int = 0
    chunk: int = 0

    @property
    def metadata(self) -> str:
        """The text that is committed with the offset `first`."""
        return msgspec.json.encode(self).decode()


def read_announcement(
    partition: TopicPartition, committed: CommitOffset | None
) -> Announcement | None:
    """Read the announcement in a committed offset; None if its metadata is empty or not ours.

    Raises:
        ConsumerError: a newer version of kmr wrote it.
    """
    if committed is None or not committed.metadata.startswith(_MARK):
        return None
    try:
        return msgspec.json.decode(committed.metadata, type=Announcement)
    except msgspec.MsgspecError as error:
        raise ConsumerError(
            f"{partition}: cannot read the metadata of the committed offset {committed.offset} ({error}): "
            f"{committed.metadata!r}. If a newer kmr committed it, run that one until it has drained; "
            "otherwise reset the group's offsets"
        ) from error


def token_of(group: str, ranges: Iterable[Range]) -> str:
    """Return the deduplication token of rows: `group:topic:partition:first-last`, for each partition.

    It covers all offsets from the first to the last of a partition. The same offsets have the same token
    in every process. A long token is replaced by its SHA-256.
    """
    spans: dict[TopicPartition, tuple[int, int]] = {}
    for r in ranges:
        first, last = spans.get(r.topic_partition, (r.first, r.last))
        spans[r.topic_partition] = (min(first, r.first), max(last, r.last))
    names = (
        f"{topic}:{partition}:{first}-{last}"
        for (topic, partition), (first, last) in sorted(spans.items())
    )
    token = f"{group}:{','.join(names)}"
    if len(token) <= _LONGEST_TOKEN:
        return token
    return f"{group[:64]}:{sha256(token.encode()).hexdigest()}"
