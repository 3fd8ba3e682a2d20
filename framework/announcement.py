"""What a worker announces before it writes: the text that is committed with an offset.

*Announce, write, acknowledge*: the committed offset of a partition stays at the first record of a range
until the range is written, and its metadata says where the range ends. Whoever is assigned the partition
after a crash reads just that range again and writes it with the same token, so that the sink knows
whether it has it already.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

import msgspec

from framework.errors import ConsumerError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from framework.consumer import CommitOffset
    from framework.record import Range, TopicPartition

__all__ = ["Announcement", "announced", "token_of"]

_MARK: Final = '{"kmr":'
_LONGEST_TOKEN: Final = 200


class Announcement(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kmr", tag=1):
    """One range of one partition that is about to be written. As text: JSON with its version in `kmr`.

    Attributes:
        first: first offset of the range: the offset that it is committed with.
        last: last offset of the range, inclusive.
        token: what the sink recognises a repetition by.
        writer: the process that announced it; two that announce the same range stay distinguishable.
        rows: how many rows the range became.
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


def announced(partition: TopicPartition, committed: CommitOffset | None) -> Announcement | None:
    """What is announced in a committed offset; None for no text, or somebody else's.

    Raises:
        ConsumerError: it was written by a version of kmr that this one does not understand.
    """
    if committed is None or not committed.metadata.startswith(_MARK):
        return None
    try:
        return msgspec.json.decode(committed.metadata, type=Announcement)
    except msgspec.MsgspecError as error:
        raise ConsumerError(
            f"{partition}: the metadata of the committed offset {committed.offset} is not understood "
            f"({error}): {committed.metadata!r}. Was it committed by a newer kmr? Run that one until it "
            "has drained, or reset the group's offsets"
        ) from error


def token_of(group: str, ranges: Iterable[Range]) -> str:
    """The token of rows: `group:topic:partition:first-last`, over all offsets that they have of a partition.

    The same offsets have the same token in whichever process they are written again.
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
