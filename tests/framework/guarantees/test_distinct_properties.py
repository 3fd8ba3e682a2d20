"""`Distinct` through kills, rebalances, resets and late writes: the sink has the rows of one reading, once.

The harness is that of `test_exactly_once_properties`. Here values are keys, and records have times.
"""

from __future__ import annotations

import copy
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kmr.delivery.announcement import Generation, LookBack, read_metadata
from kmr.kafka.consumer import CommitOffset
from kmr.mapping.functions import map_record
from kmr.memory.distinct import Distinct
from kmr.service.threads import without_threads
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryWriter, VirtualTimeLoop, batch_of
from tests.examples import examples
from tests.framework.guarantees.test_exactly_once_properties import (
    PARTITIONS,
    BranchedSink,
    Group,
    Life,
    Sink,
    TokenWriter,
    crashes,
    lates,
    live,
    passes,
    rebalances,
    troubles,
)

if TYPE_CHECKING:
    from kmr.record import Record, TopicPartition

WITHIN = 30
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
KEYS = (b"a", b"b", b"c", b"d")
OTHERS = (b"null", b"skip", b"poison")
BRANCHES = ("even", "odd")

puts = st.tuples(
    st.just("put"),
    st.integers(0, 1),
    st.lists(
        st.tuples(st.sampled_from(KEYS * 3 + OTHERS), st.sampled_from([0, 0, 0, 1, 20, -25])),
        min_size=1,
        max_size=6,
    ),
)
schedules = st.lists(
    st.one_of(puts, puts, puts, rebalances, passes, troubles, crashes, lates), max_size=30
)
KILLED_BETWEEN_ANNOUNCEMENT_AND_WRITE: list[tuple[Any, ...]] = [
    ("put", 0, [(b"a", 0), (b"b", 0), (b"a", 0)]),
    ("pass", 30.0),
    ("put", 0, [(b"c", 1), (b"a", 1), (b"d", 1)]),
    ("trouble", "hold"),
    ("pass", 4.0),
    ("crash", None),
    ("put", 0, [(b"b", 0), (b"c", 0), (b"a", 20)]),
    ("pass", 30.0),
    ("late",),
    ("put", 0, [(b"a", 20), (b"d", 20)]),
]


@map_record
def locate(record: Record) -> list[dict[str, Any]] | None:
    match record.value:
        case b"poison":
            raise ValueError("poisoned")
        case b"skip" | None:
            return None
    key = None if record.value == b"null" else record.value.decode()
    return [{"p": record.partition, "o": record.offset, "n": n, "key": key} for n in range(2)]


@map_record
def divide(record: Record) -> list[tuple[dict[str, Any], str]] | None:
    rows = locate(record)
    return None if rows is None else [(row, BRANCHES[row["n"]]) for row in rows]


class Log(Group):
    """The log, with a model of which records pass."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self.times: Counter[int] = Counter()
        self.reached: Counter[int] = Counter()
        self.last: dict[tuple[int, bytes], int] = {}
        self.passed: set[tuple[int, int]] = set()

    def append(self, number: int, offset: int, value: bytes, later: int) -> int:
        """Note a record, and return its time."""
        self.times[number] = max(0, self.times[number] + later)
        if value in KEYS or value == b"null":
            now = self.reached[number] = max(self.reached[number], self.times[number])
            last = self.last.get((number, value))
            if last is None or now - last >= WITHIN or value == b"null":
                self.passed.add((number, offset))
            self.last[number, value] = now
        return self.times[number]

    def settled(self, partition: int, offset: int) -> bool:
        if self.values[partition, offset] == b"poison":
            return (partition, offset) in self.dead_letters
        at = (partition, offset)
        return at not in self.passed or (*at, 0) in self.sink.rows

    def write_elsewhere(self, partition: TopicPartition) -> None:
        super().write_elsewhere(partition)
        entry = self.committed[partition]
        metadata = Generation(
            read_metadata(partition, entry).generation, LookBack(0, WITHIN * 1_000_000)
        )
        self.committed[partition] = CommitOffset(entry.offset, metadata.metadata)

    def _write(self, partition: TopicPartition, token: str, start: int, end: int) -> None:
        number = partition.partition
        offsets = range(start, end)
        poisoned = [at for at in offsets if self.values[number, at] == b"poison"]
        self.dead_letters.update((number, at) for at in poisoned)
        passed = [at for at in offsets if (number, at) in self.passed]
        self.sink.write_elsewhere(token, [(number, at, n) for at in passed for n in range(2)])


class DistinctLife(Life):
    """Runs a strategy with `Distinct`."""

    group: Log

    def strategy(self) -> Strategy:
        writer = TokenWriter(self.sink, max_rows=6, max_age=4.0)
        errors = MemoryWriter(self.errors, max_rows=2, max_age=1.0)
        if self.shape == "branched":
            chain: list[Any] = [Distinct("key", WITHIN), MemoryWriter(Journal(), forward=True)]
            chain.append(copy.deepcopy(writer))
            return Strategy(
                divide,
                {"even": [Distinct(["key", "n"], WITHIN), writer], "odd": chain},
                reduce_err=errors,
            )
        batcher = [] if self.shape == "single" else [MemoryWriter(Journal(), forward=True)]
        chain = [Distinct(["key", "n"], WITHIN), *batcher, writer]
        return Strategy(locate, chain, reduce_err=errors)

    def put(self, number: int, values: list[Any]) -> None:
        group = self.group
        for value, later in values:
            offset = group.ends[number]
            group.values[number, offset] = value
            group.ends[number] = offset + 1
            time = BEGIN + timedelta(seconds=group.append(number, offset, value, later))
            self.member.put(batch_of("t", number, offset, [value], timestamp=time))


async def run(
    schedule: list[tuple[Any, ...]], shape: Literal["single", "chained", "branched"]
) -> None:
    sink = BranchedSink() if shape == "branched" else Sink()
    log = Log(sink)
    with without_threads():
        await live(DistinctLife(log, sink, shape), schedule, lambda: log.passed)


@pytest.mark.parametrize("shape", ["single", "chained", "branched"])
@settings(max_examples=examples(200), deadline=None)
@given(schedule=schedules)
@example(schedule=KILLED_BETWEEN_ANNOUNCEMENT_AND_WRITE)
@example(schedule=[("put", 0, [(b"a", 0)]), ("pass", 4.0), ("crash", PARTITIONS[0])])
def test_the_sink_has_the_rows_of_one_reading_through_any_schedule(
    shape: Literal["single", "chained", "branched"], schedule: list[tuple[Any, ...]]
) -> None:
    anyio.run(partial(run, schedule, shape), backend_options={"loop_factory": VirtualTimeLoop})
