"""Passes over a topic of letters: which letters are open, and which ones a replay or a drop settles.

Kafka's log only grows: a letter cannot be marked or deleted. So each replay and each drop is written to the
topic too, as a record that says which letters it covers: those that were open, match its filter and lie
before its end. A letter is open while no pass covers it. What a pass covers follows from the topic alone (the
order of passes is that of their offsets):
a replay that was killed covers the same letters when it is resumed, and its consumer group knows how far
it had come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..columns.kinds import mask_where
from .letters import CONTROL_HEADER, header_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .letters import Letters

_TEXTS: Final = ("topic", "group", "strategy", "stage")


class Filter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which letters; every condition that is given must hold.

    Attributes:
        reason: text that the reason contains.
        topic: topic of the record.
        partition: its partition.
        first: the lowest of its offsets, inclusive.
        last: the highest of its offsets, inclusive.
        since: letters written at this time or later, in milliseconds since 1970.
        until: letters written before this time.
    """

    reason: str | None = None
    topic: str | None = None
    group: str | None = None
    strategy: str | None = None
    stage: str | None = None
    partition: int | None = None
    first: int | None = None
    last: int | None = None
    since: int | None = None
    until: int | None = None

    def matches(self, letters: Letters) -> NDArray[np.bool_]:
        """Return a mask of the letters."""
        mask = np.ones(len(letters), np.bool_)
        for name in _TEXTS:
            if (text := getattr(self, name)) is not None:
                mask &= mask_where(pc.equal(letters.texts[name], text))
        if self.reason is not None:
            mask &= mask_where(pc.match_substring(letters.texts["reason"], self.reason))
        offsets = letters.numbers["offset"]
        if self.partition is not None:
            mask &= letters.numbers["partition"] == self.partition
        if self.first is not None:
            mask &= offsets >= self.first
        if self.last is not None:
            mask &= offsets <= self.last
        if self.since is not None:
            mask &= letters.written >= self.since
        if self.until is not None:
            mask &= letters.written < self.until
        return mask


class Pass(msgspec.Struct, frozen=True, kw_only=True):
    """A replay or a drop.

    Attributes:
        name: unique in the topic.
        action: `replay` into the sinks of a strategy, `resend` to a topic, or `drop`.
        to: the strategy or the topic.
        begun: in milliseconds since 1970.
        ends: for each partition of the topic, the offset before which letters are covered.
        limit: the most letters, the oldest first; None is any number.
    """

    name: str
    action: Literal["replay", "resend", "drop"]
    begun: int
    ends: dict[int, int]
    chosen: Filter = Filter()
    to: str = ""
    limit: int | None = None

    def select(self, letters: Letters, open_: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return a mask of the letters that the pass covers, of those that are open before it."""
        mask = open_ & self.chosen.matches(letters)
        if self.action != "drop":
            mask &= ~letters.of_rows  # they have no record that a map could get again
        for partition in np.unique(letters.partition):
            here = letters.partition == partition
            mask &= ~here | (letters.offset < self.ends.get(int(partition), 0))
        if self.limit is not None:
            mask[np.flatnonzero(mask)[self.limit :]] = False
        return mask


def group_of(topic: str, name: str) -> str:
    """Return the consumer group whose committed offsets say how far a pass has come."""
    return f"kmr-dlq.{topic}.{name}"


def passes_among(records: pa.RecordBatch) -> list[Pass]:
    """Return the passes among the records of a topic, in order: all of them are in its partition 0."""
    marked = header_columns(records, (CONTROL_HEADER,))[CONTROL_HEADER].is_valid()
    values = records.column("value").filter(marked).to_pylist()
    return [msgspec.json.decode(value or b"", type=Pass) for value in values]


def covered(
    letters: Letters, passes: Sequence[Pass]
) -> tuple[NDArray[np.bool_], list[NDArray[np.bool_]]]:
    """Return which letters are open after all passes, and which ones each pass covers.

    Args:
        passes: in the order in which they were written.

    A letter that was written twice, because a worker was killed before it had committed, is one letter: the
    copies are never open.
    """
    open_ = _first_copies(letters)
    masks = []
    for each in passes:
        mask = each.select(letters, open_)
        masks.append(mask)
        open_ &= ~mask
    return open_, masks


def _first_copies(letters: Letters) -> NDArray[np.bool_]:
    """Return a mask of the letters, each record or row of a generation and replay once: its oldest letter."""
    if not len(letters):
        return np.empty(0, np.bool_)
    numbers = ("partition", "offset", "generation", "replays")
    texts = ("topic", "group", "stage", "row")
    codes = [letters.texts[name].combine_chunks().dictionary_encode() for name in texts]
    keys = [code.indices.fill_null(pa.scalar(-1, pa.int32())).to_numpy() for code in codes]
    identity = np.stack([*keys, *(letters.numbers[name] for name in numbers)])
    _, firsts = np.unique(identity, axis=1, return_index=True)
    mask = np.zeros(len(letters), np.bool_)
    mask[firsts] = True
    return mask
