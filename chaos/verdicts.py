"""Input and output of checkers: promises, offences, results, and records as sorted numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow.compute as pc

from chaos.history import where

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from chaos.history import History

Verdict = Literal["ok", "violated", "unknown"]
Delivery = Literal["exactly-once", "at-least-once", "at-most-once"]

_MOST_OFFENCES = 50
_OFFSET_BITS = 44  # a key is partition and offset in one number


@dataclass(frozen=True, slots=True)
class Promise:
    """The guarantee of a group's strategy for the records of a topic.

    Attributes:
        ordered: records of a partition come to the sink in order, also those of one flush.
        kept: the table keeps its rows; else only what the group has committed is judged.
        windows: the rows are windows, which have the records.
        refuses: the table refuses some rows of windows, which are letters.
        settled: what is committed is settled; open windows are not, where Spark has them in files.
    """

    group: str
    topic: str
    delivery: Delivery
    ordered: bool = True
    kept: bool = True
    windows: bool = False
    refuses: bool = False
    settled: bool = True


@dataclass(frozen=True, slots=True)
class Offence:
    """Records that break a guarantee: offsets `first` to `last` (inclusive) of a partition."""

    topic: str
    partition: int
    first: int
    last: int
    note: str = ""

    def __str__(self) -> str:
        where = f"{self.topic}-{self.partition}[{self.first}..{self.last}]"
        return f"{where} {self.note}".rstrip()


@dataclass(frozen=True, slots=True)
class Result:
    """The findings of a checker.

    Attributes:
        count: how many records (processes, samples) are concerned; also where that is legal.
        offences: the first of them.
    """

    checker: str
    verdict: Verdict
    detail: str
    count: int = 0
    offences: Sequence[Offence] = ()
    group: str = ""


class Case:
    """What one checker has before it: the tables of one group; and the words for its result."""

    def __init__(self, checker: str, history: History, promise: Promise) -> None:
        self._checker, self._history, self._promise = checker, history, promise
        self.rows, self.windows, self.dead, self.commits = (
            self._of_topic(history.group(name, promise.group))
            for name in ("rows", "windows", "dead", "commits")
        )
        lost = self.produced("lost")["id"]  # other records have their offsets now
        self.rows = self.rows.filter(~pc.field("id").isin(lost))
        self.result = self.say("unknown", "")

    def _of_topic(self, table: pa.Table) -> pa.Table:
        return where(table, "topic", self._promise.topic)

    def produced(self, outcome: str) -> pa.Table:
        return where(self._of_topic(self._history.produced), "outcome", outcome)

    def settled(self) -> NDArray[np.int64]:
        return np.concatenate([keys_of(self.rows), keys_of(self.dead)])

    def settled_times(self) -> NDArray[np.int64]:
        return np.concatenate([column(self.rows, "time"), column(self.dead, "time")])

    def unknown(self, *tables: str) -> bool:
        for name in tables:
            reason = self._history.unread.get(f"{name}/{self._promise.group}")
            if reason is not None:
                self.result = self.say("unknown", f"{name} could not be read: {reason}")
                return True
        return False

    def say(
        self, verdict: Verdict, detail: str, count: int = 0, offences: Sequence[Offence] = ()
    ) -> Result:
        return Result(
            self._checker,
            verdict,
            detail,
            count,
            tuple(offences)[:_MOST_OFFENCES],
            self._promise.group,
        )

    def violated(self, detail: str, keys: NDArray[np.int64], count: int | None = None) -> Result:
        number = len(keys) if count is None else count
        offences = _ranges(self._promise.topic, np.sort(keys))
        return self.say("violated", f"{number:,} records {detail}", number, offences)


def column(table: pa.Table, name: str) -> NDArray[np.int64]:
    column: NDArray[np.int64] = table[name].to_numpy().astype(np.int64)
    return column


def keys_of(table: pa.Table) -> NDArray[np.int64]:
    """Partition and offset of each line as one number."""
    return (column(table, "partition") << _OFFSET_BITS) | column(table, "offset")


def partition_of(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    return keys >> _OFFSET_BITS


def offset_of(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    return keys & ((1 << _OFFSET_BITS) - 1)


def same_id(keys: NDArray[np.int64], ids: NDArray[np.int64], acked: pa.Table) -> NDArray[np.bool_]:
    """Which rows have the id that was acknowledged at their offset."""
    if not acked.num_rows:
        return np.zeros(len(keys), dtype=np.bool_)
    acked = acked.sort_by([("partition", "ascending"), ("offset", "ascending")])
    known = keys_of(acked)
    at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    same: NDArray[np.bool_] = (known[at] == keys) & (column(acked, "id")[at] == ids)
    return same


def first_times(
    keys: NDArray[np.int64], times: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The different keys in order, and the earliest time of each."""
    order = np.lexsort((times, keys))
    distinct, at = np.unique(keys[order], return_index=True)
    return distinct, times[order][at]


def _ranges(topic: str, keys: NDArray[np.int64]) -> list[Offence]:
    """Sorted keys as ranges of consecutive offsets."""
    starts = np.flatnonzero(np.diff(keys, prepend=-2) != 1)
    ends = np.append(starts[1:], len(keys)) - 1
    return [
        Offence(
            topic,
            int(keys[start] >> _OFFSET_BITS),
            int(offset_of(keys[start : start + 1])[0]),
            int(offset_of(keys[end : end + 1])[0]),
        )
        for start, end in zip(starts[:_MOST_OFFENCES], ends[:_MOST_OFFENCES], strict=True)
    ]
