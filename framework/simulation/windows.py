"""The windows of a log, in plain Python, and the rules for what reaches the sink of a `Window`."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from ..errors import StrategyError
from ..memory.window import Window
from ..record import Batch, Rows
from .sink_checks import SinkChecks

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from ..mapping.results import MapResult
    from ..record import TopicPartition
    from ..strategy import Strategy
    from .world import SimulatedMember, World

OFFSETS: Final = "kmr offsets"
"""The column of a window's rows with the offsets of its records. Simulated windows have it too."""

Key = tuple[Any, ...]
"""The start of a window, and the values of its group."""


def with_offsets(strategy: Strategy) -> Strategy:
    """Return a strategy whose window also lists the offsets of its records."""

    def changed(_branch: str, chain: Sequence[Any]) -> list[Any]:
        return [_listing(each) if isinstance(each, Window) else each for each in chain]

    return strategy if strategy.window is None else strategy.with_chains(changed)


def _listing(window: Window) -> Window:
    other = copy.copy(window)
    other.columns = {**window.columns, OFFSETS: ("offset", "list")}
    return other


class WindowsOfLog:
    """The windows of one partition's log.

    Args:
        window: with the column `OFFSETS`.
        mapped: the rows of all records.

    Attributes:
        offsets: the records of each window and group, in order; of those that no wall clock closes.
        invalid: the records without a valid time.
        first: for each window and group, the first of its offsets.

    Raises:
        StrategyError: the rows have a column `offset` that is not the offset of their record.
    """

    def __init__(self, window: Window, batch: Batch, mapped: MapResult, size: int) -> None:
        self.window = window
        if window.late == "reemit":
            raise StrategyError(
                "simulate: late='reemit' makes several rows of a window, and the rules expect one; try the "
                "strategy with late='drop'"
            )
        if window.session is not None and window.idle is not None:
            raise StrategyError(
                "simulate: with idle= the wall clock decides which rows are in a session; leave it out"
            )
        self.offsets: dict[Key, list[int]] = defaultdict(list)
        self.ends: dict[Key, int] = {}
        self.of_record: dict[int, set[Key]] = defaultdict(set)
        self.level = np.zeros(size + 1, np.int64)  # before each offset
        self.invalid: set[int] = set()
        if mapped.table is None:
            return
        rows = Rows(mapped.table, (), mapped.offsets, (batch,)).with_coordinates(window.sources)
        if rows.column("offset").to_pylist() != mapped.offsets.tolist():
            raise StrategyError(
                "simulate: the rows have a column offset that is not that of their record; rename it: the "
                "rules for windows list offsets"
            )
        times = rows.column(window.time).cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
        keys = list(zip(*(rows.column(name).to_pylist() for name in window.by), strict=True))
        if (ahead := window.ahead) is not None:
            stamps = batch.records.column("timestamp").cast(pa.int64()).to_pylist()
            of_record: dict[int, Any] = dict(zip(batch.offsets().tolist(), stamps, strict=True))
            pairs = zip(times, mapped.offsets.tolist(), strict=True)
            times = [None if t and 0 < of_record[o] < t - ahead else t for t, o in pairs]
        self._fill(mapped.offsets.tolist(), times, keys or [()] * len(times))

    def _fill(self, offsets: list[int], times: list[int | None], keys: list[Key]) -> None:
        window, level, at = self.window, 0, 0
        sessions: dict[Key, list[tuple[int, int]]] = defaultdict(list)
        self.invalid = {o for o, t in zip(offsets, times, strict=True) if t is None or t < 0}
        for offset in range(len(self.level) - 1):
            self.level[offset] = reached = level
            while at < len(offsets) and offsets[at] == offset:
                time, key, at = times[at], keys[at], at + 1
                if offset in self.invalid or time is None:
                    continue
                level = max(level, time - window.lateness)
                if window.session is not None:
                    if time >= reached:
                        sessions[key].append((time, offset))
                    continue
                newest = time - time % window.every
                for start in range(newest, time - window.length, -window.every):
                    if start + window.length > reached:
                        self._put((start, *key), start + window.length, [offset])
        self.level[-1] = level
        for key, found in sessions.items():
            self._divide(key, sorted(found))

    def _divide(self, group: Key, rows: list[tuple[int, int]]) -> None:
        """Divide the rows of a group, in order of time, into sessions."""
        gap = self.window.session or 0
        begins = [n for n, (time, _) in enumerate(rows) if not n or time - rows[n - 1][0] >= gap]
        for begin, end in pairwise([*begins, len(rows)]):
            part, ends = rows[begin:end], rows[end - 1][0] + gap
            if ends - part[0][0] > self.window.length:
                raise StrategyError(
                    "simulate: a session of the records is longer than max=, where it is cut; the rules do "
                    "not know that. Give records of shorter sessions"
                )
            self._put((part[0][0], *group), ends, sorted(offset for _, offset in part))

    def _put(self, key: Key, ends: int, offsets: list[int]) -> None:
        self.ends[key] = ends
        self.offsets[key] += offsets
        for offset in offsets:
            self.of_record[offset].add(key)

    def closed(self, key: Key, end: int) -> bool:
        """Return whether the records below an offset close a window."""
        return self.ends[key] <= int(self.level[end])

    def rest(self, end: int) -> int:
        """Return where the committed offset stays after all records below `end`."""
        if self.window.idle is not None:
            return end
        still_open = (o[0] for key, o in self.offsets.items() if not self.closed(key, end))
        return min([*still_open, end])


class WindowChecks(SinkChecks):
    """Compares the rows of windows that reach the sink with the model.

    Args:
        windows: of each partition.
    """

    def __init__(
        self,
        world: World,
        windows: Mapping[TopicPartition, WindowsOfLog],
        rows: Mapping[TopicPartition, np.ndarray],
        *,
        once: bool,
    ) -> None:
        super().__init__(world, "", rows, per_row=False, once=once)
        self._windows = windows
        self._found: dict[TopicPartition, dict[Key, Counter[int]]] = {at: {} for at in windows}
        self._count: Counter[tuple[TopicPartition, Key]] = Counter()

    def sends(self, member: SimulatedMember, parts: Sequence[Rows]) -> None:
        """Check nothing: the offsets of later windows begin with those of earlier ones."""

    def wrote(
        self, member: SimulatedMember, parts: Sequence[Rows], only: Container[int] | None = None
    ) -> None:
        for rows in parts:
            partition = rows.ranges[0].topic_partition
            if partition not in self._forgetful:
                for row in rows.table.to_pylist():
                    self._wrote(member, partition, row)

    def _wrote(
        self, member: SimulatedMember, partition: TopicPartition, row: dict[str, Any]
    ) -> None:
        model = self._windows[partition]
        window = model.window
        start = pa.scalar(row["window_start"]).cast(pa.timestamp("us")).cast(pa.int64()).as_py()
        key = (start, *(row[name] for name in window.by))
        shown = f"{partition}: the window {row['window_start']} of {key[1:]}"
        found, wanted = row[OFFSETS], model.offsets.get(key, [])
        # The wall clock closes a window before some of its records came: these are late.
        if found != (wanted if window.idle is None else wanted[: len(found)]):
            self._world.problem(
                "a window has other records than its own",
                f"{shown} has {found}, and should have {wanted}, written by {member.name}",
            )
        self._found[partition].setdefault(key, Counter()).update(found)
        self._count[partition, key] += 1
        if self._once and self._count[partition, key] > 1:
            self._world.problem("a window's row is there twice", f"{shown}, by {member.name}")

    def has(self, partition: TopicPartition) -> np.ndarray:
        """Return which records are in all rows of their windows, or in none because they were late."""
        model, found = self._windows[partition], self._found[partition]
        has = np.ones(len(self.expected[partition]), np.bool_)
        if partition in self._forgetful:
            return has
        for offset in np.flatnonzero(self.expected[partition]).tolist():
            keys = model.of_record[offset]
            is_in = any(offset in found.get(key, ()) for key in keys)
            has[offset] = keys <= found.keys() and (is_in or model.window.late == "drop")
        return has

    def waits(self, partition: TopicPartition, end: int) -> np.ndarray:
        """Return the records whose windows are still open after all records below an offset."""
        model, waits = self._windows[partition], super().waits(partition, end)
        if model.window.idle is None:
            for offset, keys in model.of_record.items():
                waits[offset] = any(not model.closed(key, end) for key in keys)
        return waits

    def rests(self, partition: TopicPartition, end: int, committed: int) -> bool:
        """Return whether a committed offset is where it stays, and all rows up to there are written."""
        if partition in self._forgetful:
            return True
        model, found = self._windows[partition], self._found[partition]
        due = (
            key
            for key, offsets in model.offsets.items()
            if offsets[0] < end and model.closed(key, end)
        )
        return committed >= model.rest(end) and all(key in found for key in due)

    def final(self, partition: TopicPartition, errors: np.ndarray) -> None:
        """Check that no record is in a window and in `reduce_err`; `wrote` has checked the rows."""
        if partition in self._forgetful or not self._once:
            return
        for found in self._found[partition].values():
            for offset in found:
                if errors[offset]:
                    self._world.problem(
                        "a record is in a window and in reduce_err", f"{partition}[{offset}]"
                    )
