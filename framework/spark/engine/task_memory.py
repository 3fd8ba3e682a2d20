"""What a strategy remembers of a partition, during one task: duplicates, and open windows."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from ...config.schema import BYTES, show_quantity
from ...delivery.announcement import Closed, LookBack, remembering
from ...errors import StateTooLarge
from ...memory.distinct_memory import PartitionMemory
from ...memory.window import MICROS
from ...memory.window_rows import letters_of, of_closed, split_late, warn_of_left_out
from ...record import Range, Rows
from ...service.process import memory_limit, processor_limit
from .memory_files import MemoryFiles, Position

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...kafka.consumer import CommitOffset
    from ...mapping.results import Failure, MapResult
    from ...memory.window import Window
    from ...record import Batch, TopicPartition
    from ...strategy import Strategy

_DISTINCT, _WINDOW = "distinct", "window"
_LEVEL = "level"
_REMEMBERED, _COMMIT = "remembered", b"commit"


def remembers(strategy: Strategy) -> bool:
    """Return whether a strategy remembers records from one micro-batch to the next."""
    return bool(strategy.distincts) or strategy.window is not None


def memory_files(strategy: Strategy, checkpoint: str) -> MemoryFiles:
    """Return the files of what a strategy remembers. Raises StrategyError if they cannot be opened."""
    rules = [
        f"{branch} Distinct of {', '.join(each.key)} by {each.time or 'timestamp'}".strip()
        for branch, each in strategy.distincts.items()
    ]
    if (window := strategy.window) is not None:
        columns = ", ".join(f"{name} = {f} of {s}" for name, (s, f) in window.columns.items())
        corrected = f", corrected for {window.correct / MICROS:g}s" if window.correct else ""
        rules.append(f"Window {window.definition} by {', '.join(window.by)}: {columns}{corrected}")
    return MemoryFiles(checkpoint, "; ".join(rules))


class Remembered(msgspec.Struct, frozen=True, array_like=True):
    """What a worker has to know to go on where a task ended.

    Attributes:
        first: the first offset of the open windows; without one, the next offset.
        back: from where on it reads again what `Distinct` remembers.
        closed: which windows are closed.
    """

    first: int
    back: LookBack | None
    closed: Closed | None


def memory_at_end(checkpoint: str, partition: TopicPartition, end: CommitOffset) -> CommitOffset:
    """Return the commit at the end of a history, with which a worker goes on as the query would.

    Raises:
        SettingsError: the file of this position is missing.
    """
    table = MemoryFiles(checkpoint).read(partition, Position(end.offset))[_REMEMBERED]
    found = msgspec.json.decode((table.schema.metadata or {})[_COMMIT], type=Remembered)
    return remembering(partition, end, found.first, back=found.back, closed=found.closed)


class OpenWindows:
    """The open windows of a partition: rows go in, those of windows that close come out.

    Attributes:
        level: the state's level after the last record.
        late: the number of late rows, by what happened to them.
    """

    def __init__(self, window: Window, wanted: Range) -> None:
        self._window = window
        self.state = window.state(wanted.topic_partition)
        self.level = self.state.level
        self._before = wanted._replace(first=wanted.first - 1, last=wanted.first - 1)
        self.late: Counter[str] = Counter()

    def closed_before(self, end: int) -> Closed:
        """Return which windows are closed when all records before an offset were read."""
        state = self.state
        return Closed(end - 1, state.closed_to, self._window.definition, state.level_before)

    def take(self, rows: Rows, stage: str) -> tuple[Rows | None, list[Rows]]:
        """Add rows; return those of the windows that close, and the records that failed.

        The rows that come out have all ranges of those that went in, and no records: they are named after
        these offsets, whichever of them failed.

        Raises:
            StrategyError: the rows do not fit the window.
        """
        state, window = self.state, self._window
        taken = state.take(rows)
        self.level = state.level
        dropped, letters = split_late(window, rows, taken.late)
        self.late.update({"dropped": int(dropped.sum()), "dead-letter": len(letters)})
        failed = letters_of(rows, {**taken.refused, **letters}, stage)
        if taken.left_out and rows.offsets is not None:
            warn_of_left_out(self._before.topic_partition, rows.offsets, taken.left_out)
            self.late["left out"] += len(taken.left_out)
        closed_from, level = state.closed_to, state.level
        if not state.can_close(level):
            return None, failed
        return _closed(state.close(level), rows.ranges, (closed_from, level)), failed

    def close_idle(self, idle: int) -> Rows | None:
        """Return the rows of the windows that the wall clock closes so long after the last record.

        They have the offset of that record: no later one may be in them.

        Args:
            idle: microseconds.
        """
        state = self.state
        end = state.last_end_up_to(self.level + idle)
        if not end or not state.can_close(end):
            return None
        closed_from = state.closed_to
        return _closed(state.close(end), (self._before,), (closed_from, end))

    def saved(self) -> dict[str, pa.Table]:
        """Return the windows as tables, for `restore`."""
        return {
            **self.state.saved(),
            _LEVEL: pa.table({_LEVEL: pa.array([self.level], pa.int64())}),
        }

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        """Go on with what `saved` returned."""
        self.state.restore(tables)
        found = tables.get(_LEVEL)
        self.level = self.state.level if found is None else found.column(_LEVEL)[0].as_py()


def _closed(closed: pa.Table, ranges: tuple[Range, ...], closes: tuple[int, int]) -> Rows:
    table, refused = of_closed(closed)
    return Rows(table, ranges, closes=closes, refused=refused)


class TaskMemory:
    """What a strategy remembers of the partition of one task: read at its begin, written at its end.

    Args:
        wanted: the offsets of the task, which are all of the partition in the micro-batch.
        idle: microseconds without a record, before the first of these offsets and after the last one.
        limit: the most bytes that it may take; None: a processor's share of half of the host's memory.

    Attributes:
        windows: the open windows; None if the strategy has no `Window`.
        counts: rows that `Distinct` looked at, by result as in the metric.

    Raises:
        SettingsError: the memory of the last micro-batch is missing, or of another strategy.
    """

    def __init__(
        self,
        strategy: Strategy,
        files: MemoryFiles,
        wanted: Range,
        idle: tuple[int, int] = (0, 0),
        limit: int | None = None,
    ) -> None:
        self._files, self._wanted = files, wanted
        self._first, self._next = (
            Position(wanted.first, idle[0]),
            Position(wanted.last + 1, idle[1]),
        )
        self._limit = limit or memory_limit() // processor_limit() // 2
        self._distinct: PartitionMemory | None = None
        if strategy.distincts:
            self._distinct = PartitionMemory(strategy.distincts, wanted.topic_partition, None)
        self.windows = None if strategy.window is None else OpenWindows(strategy.window, wanted)
        self.counts: Counter[str] = Counter()
        tables = files.read(wanted.topic_partition, self._first)
        if tables:
            self._restore(tables)

    def _restore(self, tables: Mapping[str, pa.Table]) -> None:
        if self._distinct is not None:
            self._distinct.restore(_without(_DISTINCT, tables))
        if self.windows is not None:
            self.windows.restore(_without(_WINDOW, tables))

    def distinguish(self, batch: Batch, mapped: MapResult) -> tuple[MapResult, tuple[Failure, ...]]:
        """Return the rows without duplicates, and the records for `reduce_err`.

        Raises:
            StrategyError: a column is missing, or of a type that is not allowed.
        """
        if self._distinct is None:
            return mapped, ()
        found = self._distinct.note(batch, mapped)
        counts = {
            "passed": found.passed,
            "duplicate": found.duplicates,
            "without_key": found.without_key,
        }
        self.counts.update(counts)
        return found.mapped, found.letters

    def require_room(self) -> None:
        """Raise StateTooLarge if the memory is larger than its limit."""
        found = []
        nbytes = 0
        if self._distinct is not None:
            nbytes += self._distinct.nbytes
            found.append(f"Distinct remembers {self._distinct}")
        if self.windows is not None:
            nbytes += self.windows.state.nbytes
            found.append(f"the largest windows: {', '.join(self.windows.state.largest())}")
        if nbytes > self._limit:
            raise StateTooLarge(
                f"{self._wanted.topic_partition}: what the strategy remembers takes "
                f"{show_quantity(nbytes, BYTES)}, more than the {show_quantity(self._limit, BYTES)} of a "
                f"task; {'; '.join(found)}. Nothing is lost: the micro-batch is not in the checkpoint. Raise "
                "inflight_bytes, take more partitions or executors with more memory, or a shorter window, "
                "less lateness or a shorter within="
            )

    def save(self) -> None:
        """Write the memory for the next micro-batch, and remove what only earlier ones needed."""
        tables: dict[str, pa.Table] = {}
        remembered = msgspec.json.encode(self._remembered())
        tables[_REMEMBERED] = pa.table({}).replace_schema_metadata({_COMMIT: remembered})
        if self._distinct is not None:
            tables |= {f"{_DISTINCT} {name}": t for name, t in self._distinct.saved().items()}
        if self.windows is not None:
            tables |= {f"{_WINDOW} {name}": t for name, t in self.windows.saved().items()}
        partition = self._wanted.topic_partition
        self._files.write(partition, self._next, tables)
        self._files.remove_before(partition, self._first)

    def _remembered(self) -> Remembered:
        distinct, windows = self._distinct, self.windows
        end = self._next.offset
        held = None if windows is None else windows.state.first_offset
        first = end if held is None else held
        return Remembered(
            first,
            None if distinct is None else distinct.look_back(first),
            None if windows is None else windows.closed_before(end),
        )


def _without(prefix: str, tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """Return the tables whose names begin with a word, by the rest of their names."""
    return {
        rest: table for name, table in tables.items() for word, _, rest in [name.partition(" ")]
        if word == prefix
    }  # fmt: skip
