"""The rules for what reaches the sink of a `Window`."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa

from ..delivery.row_letters import ROW
from ..memory.window_model import OFFSETS
from ..record import TopicPartition
from .sink_checks import SinkChecks

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from ..memory.window_model import Key, WindowsOfLog
    from ..record import Rows
    from .world import SimulatedMember, World


_REFUSED: Final = 5  # every so many rows the sink refuses one


def _in_json(key: Key) -> Key:
    """Return a key as it is in the letter of a row."""
    return tuple(v.decode(errors="replace") if isinstance(v, bytes) else v for v in key)


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
        self._keys = {
            at: {_in_json(key): key for key in model.offsets} for at, model in windows.items()
        }
        self._letters: dict[tuple[TopicPartition, Key], set[object]] = defaultdict(set)
        self._found: dict[TopicPartition, dict[Key, Counter[int]]] = {at: {} for at in windows}
        self._count: Counter[tuple[TopicPartition, Key]] = Counter()

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
                        key = self._key(partition, row)
                        self._is_right(member, partition, key, row)
                        self._counts(member, partition, key)

    def refused(self, rows: Rows) -> dict[int, str]:
        """Return the rows that the sink refuses each time, by number, with the reasons."""
        if not self._refuses:
            return {}
        partition = rows.ranges[0].topic_partition
        keys = [self._key(partition, row) for row in rows.table.to_pylist()]
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
            row = msgspec.json.decode(letter["value"])
            row["window_start"] = datetime.fromisoformat(row["window_start"])
            key = self._key(partition, row)
            key = self._keys[partition].get(key, key)
            if partition in self._forgetful:
                continue
            self._is_right(member, partition, key, row)
            (name,) = (pair["value"] for pair in letter["headers"] if pair["key"] == ROW)
            self._letters[partition, key].add((letter["offset"], name))
            if self._once and len(self._letters[partition, key]) > 1:
                self._world.problem(
                    "a window's row has letters that are no copies",
                    f"{partition}: the window of {key}, the last by {member.name}",
                )
            if self._count[partition, key]:
                self._world.problem(
                    "a window's row is there, and has a letter", f"{partition}: the window of {key}"
                )

    def _key(self, partition: TopicPartition, row: dict[str, Any]) -> Key:
        start = pa.scalar(row["window_start"]).cast(pa.timestamp("us")).cast(pa.int64()).as_py()
        return (start, *(row[name] for name in self._windows[partition].window.by))

    def _is_right(
        self, member: SimulatedMember, partition: TopicPartition, key: Key, row: dict[str, Any]
    ) -> None:
        model = self._windows[partition]
        window = model.window
        shown = f"{partition}: the window {row['window_start']} of {key[1:]}"
        found, wanted = row[OFFSETS], model.offsets.get(key, [])
        # The wall clock closes a window before some of its records came: these are late.
        if found != (wanted if window.idle is None else wanted[: len(found)]):
            self._world.problem(
                "a window has other records than its own",
                f"{shown} has {found}, and should have {wanted}, written by {member.name}",
            )
        self._found[partition].setdefault(key, Counter()).update(found)

    def _counts(self, member: SimulatedMember, partition: TopicPartition, key: Key) -> None:
        self._count[partition, key] += 1
        if self._once and self._count[partition, key] > 1:
            self._world.problem(
                "a window's row is there twice",
                f"{partition}: the window of {key}, by {member.name}",
            )

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
