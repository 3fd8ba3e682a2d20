"""The rules for what reaches the sink of a `Window`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import msgspec
import numpy as np

from ..delivery.row_letters import ROW
from ..memory.window_model import WindowOutcomes
from ..record import TopicPartition
from .sink_checks import SinkChecks

if TYPE_CHECKING:
    from collections.abc import Container, Hashable, Mapping, Sequence

    from ..memory.window_model import WindowsOfLog
    from ..record import Rows
    from .world import SimulatedMember, World


_REFUSED: Final = 5  # every so many rows the sink refuses one


class WindowChecks(SinkChecks):
    """Compares the rows of windows that reach the sink, and letters of those that it refuses, with the model.

    Args:
        windows: of each partition.
        refuses: the sink refuses some rows.
    """

    def __init__(
        self,
        world: World,
        windows: Mapping[TopicPartition, WindowsOfLog],
        rows: Mapping[TopicPartition, np.ndarray],
        *,
        once: bool,
        refuses: bool = False,
    ) -> None:
        super().__init__(world, "", rows, per_row=False, once=once)
        self._windows = windows
        self._refuses = refuses
        self._outcomes = {at: WindowOutcomes(model, once=once) for at, model in windows.items()}

    def sends(self, member: SimulatedMember, parts: Sequence[Rows]) -> None:
        """Check nothing: the offsets of later windows begin with those of earlier ones."""

    def wrote(
        self, member: SimulatedMember, parts: Sequence[Rows], only: Container[int] | None = None
    ) -> None:
        for rows in parts:
            partition = rows.ranges[0].topic_partition
            refused = self.refused(rows)
            if partition not in self._forgetful:
                for number, row in enumerate(rows.table.to_pylist()):
                    if number not in refused:
                        self._add(member, partition, row)

    def refused(self, rows: Rows) -> dict[int, str]:
        """Return the rows that the sink refuses each time, by number, with the reasons."""
        if not self._refuses:
            return {}
        partition = rows.ranges[0].topic_partition
        keys = [self._windows[partition].key_of(row) for row in rows.table.to_pylist()]
        return {
            number: f"the sink refuses the row of {key}"
            for number, key in enumerate(keys)
            if crc32(repr(key).encode()) % _REFUSED == 0
            and all(isinstance(value, str | bytes | int | None) for value in key)
        }

    def takes_letters(self, member: SimulatedMember, letters: Rows) -> None:
        """Check letters of rows that the error sink has taken: each is of a row of its own."""
        for letter in letters.table.to_pylist():
            partition = TopicPartition(letter["topic"], letter["partition"])
            if partition not in self._forgetful:
                (name,) = (pair["value"] for pair in letter["headers"] if pair["key"] == ROW)
                row = msgspec.json.decode(letter["value"])
                self._add(member, partition, row, (letter["offset"], name))

    def _add(
        self,
        member: SimulatedMember,
        partition: TopicPartition,
        row: Mapping[str, Any],
        letter: Hashable | None = None,
    ) -> None:
        for fault, shown in self._outcomes[partition].add(row, letter).items():
            self._world.problem(fault, f"{partition}: {shown}, by {member.name}")

    def has(self, partition: TopicPartition) -> np.ndarray:
        """Return which records are in all rows of their windows, or in none because they were late."""
        model, found = self._windows[partition], self._outcomes[partition].offsets
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
        if partition in self._forgetful and model.window.idle is None:
            return ~waits
        if model.window.idle is None:
            for offset, keys in model.of_record.items():
                waits[offset] = any(not model.closed(key, end) for key in keys)
        return waits

    def rests(self, partition: TopicPartition, end: int, committed: int) -> bool:
        """Return whether a committed offset is where it stays, and all rows up to there are written."""
        if partition in self._forgetful:  # only the wall clock is known to close its windows
            return self._windows[partition].window.idle is None or committed >= end
        model, found = self._windows[partition], self._outcomes[partition].offsets
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
        for found in self._outcomes[partition].offsets.values():
            for offset in found:
                if errors[offset]:
                    self._world.problem(
                        "a record is in a window and in reduce_err", f"{partition}[{offset}]"
                    )
