"""What is counted at the sinks and at the group, and the rules that are checked with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from ..delivery.failures import RowLetters
from ..reducers.reducer import ERROR_STAGE
from .sink_checks import SinkChecks, offsets_of
from .windows import WindowChecks

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from ..kafka.consumer import CommitOffset
    from ..memory.window_model import WindowsOfLog
    from ..pipeline import Pipeline
    from ..record import Rows, TopicPartition
    from ..reducers.sink import Delivery
    from .world import SimulatedMember, World

QUEUE_BATCHES: Final = 2
"""The setting `queue_batches` of every worker."""

_IDLE: Final = 4.0
"""Seconds; retries and heartbeats come sooner."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """What shall become of the records.

    Attributes:
        delivery: the guarantee of the strategy.
        rows: how many rows each record becomes in the sink of each branch ("" without any), by partition:
            one number for each offset. For a chain of reducers 1, where the map makes any: the sink then
            counts ranges.
        failed: whether the map fails on it, by partition.
        exists: whether there is a record with this offset.
        per_row: the branches whose rows are counted; in the others, ranges are counted.
        refusable: records that the sink may refuse, by partition and offset.
        batch_bytes: bytes of the largest batch with its rows, for the check of the memory.
        remembers: whether a duplicate of a record is dropped, or a window needs it, unless retention has
            removed the record.
        windows: those of each partition; None if the strategy has none.
        refuses_rows: the sink refuses some rows of windows.
    """

    delivery: Delivery
    rows: Mapping[str, Mapping[TopicPartition, np.ndarray]]
    failed: Mapping[TopicPartition, np.ndarray]
    exists: Mapping[TopicPartition, np.ndarray]
    per_row: Container[str]
    diverts: bool
    batch_bytes: int
    remembers: bool = False
    windows: Mapping[TopicPartition, WindowsOfLog] | None = None
    refuses_rows: bool = False
    refusable: set[tuple[TopicPartition, int]] = field(default_factory=set)


def _held(pipeline: Pipeline, *, errors: bool) -> int:
    """Return the bytes of the rows that stages have collected, without those of lost partitions.

    Rows that were cut share the bytes of bitmaps, which each part counts: one a column is left out. Letters
    without offsets are left out too: the lane that waits for them counts them, unless it is lost.

    Args:
        errors: count those of the error stage, too: with at most once, they are settled before.
    """
    return sum(
        rows.nbytes - rows.table.num_columns
        for stage in pipeline.reduce_stages
        if errors or stage.name != ERROR_STAGE
        for rows in stage.held()
        if rows.ranges and pipeline.ledgers.is_current(rows.ranges)
    )


class Checks:
    """Counts what reaches the sinks in one simulation, and compares it with what is expected.

    Attributes:
        sinks: those of the branches, by name; "" without branches.
    """

    def __init__(self, world: World, expected: Expectation, *, orderly: bool) -> None:
        """`orderly`: nothing fails, so that at least once means once too."""
        self._world = world
        self.expected = expected
        once = orderly or expected.delivery != "at-least-once"
        self.sinks = {
            name: self._checks_of(name, rows, once=once) for name, rows in expected.rows.items()
        }
        sizes = {at: len(each) for at, each in expected.exists.items()}
        self.diverted = {at: np.zeros(size, dtype=np.int64) for at, size in sizes.items()}
        self.gone = {at: np.zeros(size, dtype=np.bool_) for at, size in sizes.items()}
        self._skipped = False
        self._contents: dict[str, bytes] = {}

    def _checks_of(
        self, name: str, rows: Mapping[TopicPartition, np.ndarray], *, once: bool
    ) -> SinkChecks:
        expected = self.expected
        if expected.windows is not None:
            refuses = expected.refuses_rows
            return WindowChecks(self._world, expected.windows, rows, once=once, refuses=refuses)
        return SinkChecks(self._world, name, rows, per_row=name in expected.per_row, once=once)

    def rests(self, partition: TopicPartition, end: int, committed: int) -> bool:
        """Return whether all is done below `end` when this offset is committed."""
        return all(sink.rests(partition, end, committed) for sink in self.sinks.values())

    def diverts(self, member: SimulatedMember, parts: Sequence[Rows]) -> None:
        """Count rows that the error sink has taken."""
        for rows in parts:
            if isinstance(rows, RowLetters) and isinstance(of := self.sinks[""], WindowChecks):
                of.takes_letters(member, rows)
                continue
            for partition, offset in offsets_of(rows, per_row=True):
                self.diverted[partition][offset] += 1

    def skips(self, partition: TopicPartition, position: int, start: int) -> None:
        """Note that a member that should read from a position finds the log's start behind it.

        Only these records may be missing. One that was read before retention removed it has to be delivered
        by the member that has it.
        """
        if position < start:
            self.gone[partition][position:start] = True
            self._skipped = True
            if self.expected.remembers:
                self.forgets(partition)

    def moved(self, partition: TopicPartition, before: int, to: int, *, is_again: bool) -> None:
        """Note that a tool has moved the committed offset; what it skips may be missing.

        Args:
            is_again: the records from there on are written again, also those that the sinks have.
        """
        self.gone[partition][before:to] = True
        for sink in self.sinks.values():
            sink.begins_again(partition, to, is_again=is_again)
        if is_again:
            self.diverted[partition][to:] = 0

    def cut(self, partition: TopicPartition, before: CommitOffset | None, to: int) -> None:
        """Note that others read the history up to an offset, at which the group begins."""
        if before is not None:
            self._world.problem(
                "a cut passes a commit",
                f"{partition}: the group has committed {before.offset}, and the cut is {to}",
            )
        self.gone[partition][:to] = True
        for sink in self.sinks.values():
            sink.cut(partition, to)

    def forgets(self, partition: TopicPartition) -> None:
        """Note that retention has removed records that a member has to remember: duplicates may pass."""
        for sink in self.sinks.values():
            sink.forgets(partition)
        self._skipped = True

    def same(self, token: str, content: bytes) -> None:
        """Check that a range that is written again has the same rows, unless some cannot be read again."""
        if self._skipped:
            return
        before = self._contents.setdefault(token, content)
        if before != content:
            self._world.problem(
                "a range that is written again has other rows",
                f"{token}: the map or a reducer makes other rows of the same records",
            )

    def settled(self, partition: TopicPartition) -> np.ndarray:
        """Return for each offset whether nothing remains to be done for its record."""
        expected = self.expected
        made = np.any([rows[partition] > 0 for rows in expected.rows.values()], axis=0)
        done = np.all([sink.has(partition) for sink in self.sinks.values()], axis=0)
        settled: np.ndarray = (
            (done & (made | ~expected.failed[partition]))
            | (self.diverted[partition] > 0)
            | self.gone[partition]
            | ~expected.exists[partition]
        )
        return settled

    def committed(
        self, partition: TopicPartition, before: int, offset: int, *, is_orderly: bool
    ) -> None:
        """Check a commit; with at-least-once, a late one may undo another (`is_orderly`)."""
        may_move_back = self.expected.delivery == "at-least-once" and not is_orderly
        if offset < before and not may_move_back:
            self._world.problem(
                "a committed offset moved back", f"{partition} from {before} to {offset}"
            )
        if offset > before and self.expected.delivery != "at-most-once":
            missing = np.flatnonzero(~self.settled(partition)[before:offset])
            if len(missing):
                self._world.problem(
                    "a commit passes a record that is not settled",
                    f"{partition}[{before + int(missing[0])}] when {offset} was committed",
                )

    def asks(self, member: SimulatedMember) -> None:
        """Check that a member that asks for records has room for them."""
        worker = member.worker
        if worker is None:
            return
        pipeline = worker.pipeline
        budget = pipeline.intake.budget
        if budget.used >= budget.limit and not pipeline.ledgers.are_replaying:
            self._world.problem(
                "records are read though the budget is used up",
                f"{member.name} asks for more with {budget.used} bytes in flight of {budget.limit}",
            )

    def takes(self, member: SimulatedMember, partition: TopicPartition) -> None:
        """Check that a batch of this partition, which a member gets, has a place in the map's queue."""
        worker = member.worker
        if worker is None:
            return
        waiting = worker.pipeline.intake.inboxes.waiting(partition)
        if waiting >= QUEUE_BATCHES:
            self._world.problem(
                "a partition is read though its queue is full",
                f"{member.name} gets a batch of {partition} while {waiting} wait for its map; queue_batches "
                f"is {QUEUE_BATCHES}",
            )

    def waited(self, member: SimulatedMember, since: float, *, what: str) -> None:
        """Check that a member has not waited since then without a request under way."""
        now = self._world.loop.now
        idle = now - max(since, member.answered, self._world.stood_still)
        if not member.under_way and not member.dead and idle > _IDLE:
            self._world.problem(
                f"{what} waits for nothing",
                f"{member.name} has no request under way for {idle:.1f} s of {now - since:.1f} s",
            )

    def stages(self, member: SimulatedMember) -> None:
        """Check that a member has no stage of a partition that it does not have."""
        worker = member.worker
        if worker is None:
            return
        ours = worker.pipeline.partitions
        lost = {str(partition) for partition in self.expected.exists if partition not in ours}
        for stage in worker.pipeline.stages():
            if stage.name.rpartition(" ")[2] in lost:
                self._world.problem(
                    "a stage of a lost partition goes on", f"{member.name}: {stage.name}"
                )

    def memory(self, member: SimulatedMember) -> None:
        """Check the bytes in flight of a member; the requests of one that was killed may still arrive.

        One that has failed leaves what it holds to the end of its process.
        """
        worker = member.worker
        if worker is None or member.dead or worker.failure is not None:
            return
        budget = worker.pipeline.intake.budget
        most = budget.limit + (1 + len(self.expected.exists)) * self.expected.batch_bytes
        if budget.used > most:
            self._world.problem(
                "more bytes are in flight than the budget allows",
                f"{member.name}: {budget.used} of {budget.limit}; {most} with a batch of each partition",
            )
        held = _held(worker.pipeline, errors=self.expected.delivery != "at-most-once")
        if held > budget.used:
            self._world.problem(
                "rows are held that are not counted",
                f"{member.name}: the stages hold {held} bytes, and {budget.used} are in flight",
            )
        if budget.used < 0 or budget.unmapped < 0:
            self._world.problem(
                "bytes in flight are subtracted twice",
                f"{member.name}: {budget.used}, {budget.unmapped} not mapped",
            )

    def final(self, ends: Mapping[TopicPartition, int]) -> None:
        """Check every record below these offsets at the end, when everything is committed."""
        expected, delivery = self.expected, self.expected.delivery
        for partition, errors in self.diverted.items():
            if delivery != "at-most-once":
                end = ends[partition]
                waits = np.any([s.waits(partition, end) for s in self.sinks.values()], axis=0)
                lost = np.flatnonzero(~(self.settled(partition) | waits)[:end])
                if len(lost):
                    self._world.problem(
                        "a record is lost", f"{partition}[{int(lost[0])}] is in no sink"
                    )
            for sink in self.sinks.values():
                sink.final(partition, errors)
            if not expected.diverts and delivery != "at-most-once":
                found_odd = np.flatnonzero((errors > 0) & ~expected.failed[partition])
                odd = [at for at in found_odd.tolist() if (partition, at) not in expected.refusable]
                if odd:
                    self._world.problem(
                        "a record is in reduce_err that neither map nor sink refuses",
                        f"{partition}[{odd[0]}]",
                    )
