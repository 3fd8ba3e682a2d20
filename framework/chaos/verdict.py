"""Compares what is in the sinks with what the map makes of the records in the topic."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from ..mapping.branching import offsets_in
from ..memory.distinct_model import without_duplicates
from .records import map_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from ..mapping.results import MapResult
    from ..record import Batch, TopicPartition
    from ..reducers.sink import Delivery
    from ..strategy import Strategy
    from .delivered import Counts

_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class ExpectedRecords:
    """The expected outcome for each record of one partition, in the order of their offsets.

    Attributes:
        offsets: the offset of each record.
        rows: how many rows the map makes of it.
        failed: whether the map fails on it.
    """

    offsets: NDArray[np.int64]
    rows: NDArray[np.int64]
    failed: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Offence:
    """A guarantee that was broken: the name of what is wrong, how many records, and the first few."""

    what: str
    count: int
    examples: tuple[str, ...]

    def __str__(self) -> str:
        more = ", ..." if self.count > len(self.examples) else ""
        return f"{self.what}: {self.count:,} ({', '.join(self.examples)}{more})"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of the records.

    Attributes:
        records: in the topics.
        delivered: those in the sink.
        filtered: those of which neither the map nor a reducer made a row.
        failed: those in `reduce_err` because the map fails on them.
        refused: those in `reduce_err` that only the sink refuses.
        lost: those in neither.
        doubled: those that are in the sink too often.
        rows: in the sink.
        offences: none is good.
    """

    records: int
    delivered: int
    filtered: int
    failed: int
    refused: int
    lost: int
    doubled: int
    rows: int
    offences: tuple[Offence, ...]

    def with_offences(self, wrong: Mapping[str, Sequence[str]]) -> Verdict:
        """Return the verdict with more offences: examples by what is wrong."""
        more = (Offence(what, len(names), tuple(names[:_SHOWN])) for what, names in wrong.items())
        return replace(self, offences=(*self.offences, *more))


def expect(
    strategy: Strategy, batches: Iterable[Batch]
) -> dict[str, dict[TopicPartition, ExpectedRecords]]:
    """Map the records that are in the topics. Call it where no event loop runs.

    Returns:
        What is expected of each branch, by its name; "" without branches.
    """
    mapped = list(without_duplicates(strategy.distincts, map_all(strategy, list(batches))))
    return {branch: _expect(mapped, branch) for branch in strategy.chains}


def _expect(
    mapped: Sequence[tuple[Batch, MapResult]], branch: str
) -> dict[TopicPartition, ExpectedRecords]:
    parts: dict[TopicPartition, list[ExpectedRecords]] = defaultdict(list)
    for batch, result in mapped:
        offsets = np.asarray(batch.offsets(), np.int64)
        at = np.searchsorted(offsets, offsets_in(result, branch))
        counts = np.bincount(at, minlength=len(offsets))
        failed = np.isin(offsets, [failure.offset for failure in result.failures])
        parts[batch.topic_partition].append(
            ExpectedRecords(offsets, counts.astype(np.int64), failed)
        )
    return {
        at: ExpectedRecords(
            np.concatenate([each.offsets for each in found]),
            np.concatenate([each.rows for each in found]),
            np.concatenate([each.failed for each in found]),
        )
        for at, found in parts.items()
    }


def judge(
    expected: Mapping[TopicPartition, ExpectedRecords],
    found: Counts,
    errors: Counts | None,
    delivery: Delivery,
    acknowledged: Mapping[TopicPartition, Iterable[int]],
) -> Verdict:
    """Compare the rows in a sink with those that are expected.

    Args:
        found: the rows in the sink.
        errors: the records in `reduce_err`; None: nothing can be read there, so each record that the map
            fails on is taken for delivered there.
        acknowledged: the offsets that the broker has acknowledged.
    """
    lost: list[str] = []
    often: list[str] = []
    odd: list[str] = []
    gone: list[str] = []
    delivered = filtered = failed = refused = 0
    in_sink = dict(found)
    for at, wanted in sorted(expected.items()):
        lines = zip(
            wanted.offsets.tolist(), wanted.rows.tolist(), wanted.failed.tolist(), strict=True
        )
        for offset, rows, fails in lines:
            name = _name(at, offset)
            has = in_sink.pop((at, offset), 0)
            diverted = fails if errors is None else (at, offset) in errors
            failed += fails
            refused += diverted and not fails
            delivered += not fails and not diverted and rows > 0 and has >= rows
            filtered += not fails and not diverted and rows == 0
            if not diverted and (fails or has < rows):
                lost.append(name)
            if has > rows:
                (often if rows else odd).append(name)
    odd += [_name(*each) for each in in_sink]
    for at, offsets in acknowledged.items():
        there = expected[at].offsets if at in expected else ()
        gone += [_name(at, each) for each in sorted(set(offsets).difference(map(int, there)))]
    offences = [
        ("records that the broker has acknowledged are not in the topic", gone),
        ("records are lost: neither in the sink nor in reduce_err", lost),
        ("records are in the sink too often", often),
        ("records are in the sink that the map filters or fails on", odd),
    ]
    allowed = {"at-most-once": lost, "at-least-once": often}.get(delivery)
    return Verdict(
        records=sum(len(each.offsets) for each in expected.values()),
        delivered=delivered,
        filtered=filtered,
        failed=failed,
        refused=refused,
        lost=len(lost),
        doubled=len(often),
        rows=found.total(),
        offences=tuple(
            Offence(what, len(names), tuple(names[:_SHOWN]))
            for what, names in offences
            if names and names is not allowed
        ),
    )


def _name(at: TopicPartition, offset: int) -> str:
    return f"{at.topic}[{at.partition}] offset {offset}"
