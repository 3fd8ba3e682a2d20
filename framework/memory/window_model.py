"""The windows of a log, in plain Python: simulations and storms compare a worker with it."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from ..columns.texts import json_rows
from ..errors import StrategyError
from ..record import Batch, Rows
from .window import Window

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from ..mapping.results import MapResult
    from ..strategy import Strategy

OFFSETS: Final = "kmr offsets"
"""The column of a window's rows with the offsets of its records, in simulations and storms."""

Key = tuple[Any, ...]
"""The start of a window, and the values of its group."""


def with_offsets(strategy: Strategy, *, keyed: bool | None = None) -> Strategy:
    """Return a strategy whose window also lists the offsets of its records.

    Args:
        keyed: False: its rows also have the partition. None: as the user said.
    """

    def changed(_branch: str, chain: Sequence[Any]) -> list[Any]:
        return [_listing(each, keyed) if isinstance(each, Window) else each for each in chain]

    return strategy if strategy.window is None else strategy.with_chains(changed)


def _listing(window: Window, keyed: bool | None) -> Window:
    other = copy.copy(window)
    other.columns = {**window.columns, OFFSETS: ("offset", "list")}
    other.keyed = window.keyed if keyed is None else keyed
    return other


class WindowsOfLog:
    """The windows of one partition's log.

    Args:
        window: with the column `OFFSETS`.
        mapped: all records, and the rows that the map makes of them.

    Attributes:
        offsets: the records of each window and group, in order; of those that no wall clock closes.
        invalid: the records without a valid time.
        first: for each window and group, the first of its offsets.

    Raises:
        StrategyError: the rows have a column `offset` that is not the offset of their record.
    """

    def __init__(self, window: Window, mapped: Sequence[tuple[Batch, MapResult]]) -> None:
        self.window = window
        if window.late == "reemit":
            raise StrategyError(
                "late='reemit' makes several rows of a window, and the rules expect one; try the "
                "strategy with late='drop'"
            )
        if window.session is not None and window.idle is not None:
            raise StrategyError(
                "with idle= the wall clock decides which rows are in a session; leave it out"
            )
        self.offsets: dict[Key, list[int]] = defaultdict(list)
        self.ends: dict[Key, int] = {}
        self.of_record: dict[int, set[Key]] = defaultdict(set)
        self.level = np.zeros(mapped[-1][0].last + 2, np.int64)  # before each offset
        self.invalid: set[int] = set()
        self._groups: dict[Key, Key] = {}
        offsets: list[int] = []
        times: list[int | None] = []
        keys: list[Key] = []
        for batch, result in mapped:
            if result.table is not None:
                found = result.offsets.tolist()
                offsets += found
                table = Rows(result.table, (), result.offsets, (batch,)).with_coordinates(
                    window.sources
                )
                self._require_offsets(table, found)
                times += self._times(table, batch, found)
                by = (table.column(name).to_pylist() for name in window.by)
                groups = list(zip(*by, strict=True)) or [()] * len(found)
                keys += groups
                self._groups.update(zip(self._in_json(table), groups, strict=True))
        self._fill(offsets, times, keys)

    def _require_offsets(self, table: pa.Table, offsets: list[int]) -> None:
        if table.column("offset").to_pylist() != offsets:
            raise StrategyError(
                "the rows have a column offset that is not that of their record; rename it: the "
                "rules for windows list offsets"
            )

    def _times(self, table: pa.Table, batch: Batch, offsets: list[int]) -> list[int | None]:
        """Return the event times; None for one that is too far ahead of its record's timestamp."""
        column = table.column(self.window.time).cast(pa.timestamp("us"))
        times: list[Any] = column.cast(pa.int64()).to_pylist()
        if (ahead := self.window.ahead) is None:
            return times
        stamps = batch.records.column("timestamp").cast(pa.int64()).to_pylist()
        kinds: list[Any] = batch.records.column("timestampType").to_pylist()
        known = [s if kind >= 0 else 0 for s, kind in zip(stamps, kinds, strict=True)]
        of_record: dict[int, Any] = dict(zip(batch.offsets().tolist(), known, strict=True))
        pairs = zip(times, offsets, strict=True)
        return [None if t and 0 < of_record[o] < t - ahead else t for t, o in pairs]

    def _in_json(self, table: pa.Table) -> list[Key]:
        """Return the group of each row as it is in the letter of a row."""
        texts = json_rows(table.select(self.window.by)).objects
        return [tuple(msgspec.json.decode(text or b"{}").values()) for text in texts]

    def key_of(self, row: Mapping[str, Any]) -> Key:
        """Return the window of a row, as a sink has it or as the JSON of a letter."""
        start = row["window_start"]
        if isinstance(start, str):
            start = datetime.fromisoformat(start)
        moment = pa.scalar(start).cast(pa.timestamp("us")).cast(pa.int64()).as_py()
        group = tuple(row[name] for name in self.window.by)
        return (moment, *self._groups.get(group, group))

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
                    "a session of the records is longer than max=, where it is cut; the rules do "
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


class WindowOutcomes:
    """What became of the rows of a log's windows: each is written or has a letter, once.

    Args:
        once: whether a row that is there twice is a fault.

    Attributes:
        offsets: of each window that was found, how often each of its records was.
        written: the windows whose row is written.
    """

    def __init__(self, model: WindowsOfLog, *, once: bool) -> None:
        self._model = model
        self._once = once
        self.offsets: dict[Key, Counter[int]] = {}
        self.written: set[Key] = set()
        self._letters: dict[Key, Hashable] = {}

    def add(self, row: Mapping[str, Any], letter: Hashable | None = None) -> dict[str, str]:
        """Add a row that is written, or that of a letter; return its faults, with a description.

        Args:
            letter: the name of the letter; its copies have the same.
        """
        model, faults = self._model, []
        key, found = model.key_of(row), list(row[OFFSETS])
        wanted = model.offsets.get(key, [])
        # The wall clock closes a window before some of its records came: these are late.
        if found != (wanted if model.window.idle is None else wanted[: len(found)]):
            faults.append("a window has other records than its own")
        self.offsets.setdefault(key, Counter()).update(found)
        if letter is None:
            if self._once and key in self.written:
                faults.append("a window's row is there twice")
            self.written.add(key)
        elif self._letters.setdefault(key, letter) != letter and self._once:
            faults.append("a window's row has letters that are no copies")
        if key in self.written and key in self._letters:
            faults.append("a window's row is there, and has a letter")
        shown = f"the window {row['window_start']} of {key[1:]}"
        return dict.fromkeys(faults, f"{shown} has {found}, and should have {wanted}")
