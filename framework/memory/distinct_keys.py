"""The keys that `Distinct` remembers: 128-bit hashes in 64 shards, each a table of its own.

A shard that is full is made anew without the keys whose time is over, and so is one that is nearly empty. So
memory follows the number of keys within the time, and only a 64th of it is held twice for a moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from ..columns.kinds import whole
from ..errors import StrategyError, require_columns
from .distinct_kernel import CAPACITY, EMPTY, MOST, SHARDS, SLOTS, USED, WORDS, kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_LEAST: Final = 4  # slots of a shard that has keys
_NONE: Final = np.full((1, WORDS), EMPTY, np.int64)
"""The slot of all shards that have no keys: it is full."""
_TEXTS: Final = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")
_COMPARED: Final = (
    *_TEXTS, "fixed_size_binary", "integer", "boolean", "date", "time", "timestamp", "duration"
)  # fmt: skip
_FULL: Final = 0.8  # a shard is made anew with this share of its slots in use
_FILLED: Final = 0.64  # and begins with this one: 24 bytes / 0.64 = 37.5 bytes for a key


class RecentKeys:
    """The keys that were seen within a time. `see` must not be called by two threads at once.

    Args:
        within: the time, in any unit.
    """

    def __init__(self, within: int) -> None:
        self._within = within
        self._swept_to = 0
        self._next = 0
        self._directory = np.zeros((SHARDS, 4), np.int64)
        self._directory[:, SLOTS], self._directory[:, CAPACITY] = _NONE.ctypes.data, 1
        self._shards = [_NONE] * SHARDS

    def see(
        self, hashes: NDArray[np.int64], times: NDArray[np.int64], wanted: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Note keys, and return which of them were seen before, less than `within` ago.

        Args:
            hashes: of the keys, see `hashes_of`.
            times: of each row; they never descend, also from call to call.
            wanted: the rows that have a key.
        """
        seen = np.zeros(len(times), np.int64)
        progress = np.zeros(2, np.int64)
        chosen = wanted.astype(np.int64)
        while True:
            kernels()["_see"](self._directory, times, self._within, hashes, chosen, seen, progress)
            if progress[0] == len(times):
                break
            self._renew(int(progress[1]), int(times[progress[0]]))
        if len(times):
            self._sweep(int(times[-1]))
        return seen.astype(np.bool_)

    def _sweep(self, now: int) -> None:
        """Make shards smaller that have few keys left: each one once within the time."""
        due = min(SHARDS, SHARDS * (now - self._swept_to) // self._within)
        for _ in range(due):
            slots = self._shards[self._next]
            if slots is not _NONE and self._live(slots, now) < len(slots) * _FILLED / 2:
                self._renew(self._next, now)
            self._next = (self._next + 1) % SHARDS
        if due:
            self._swept_to = now

    def _renew(self, shard: int, now: int) -> None:
        """Make a full shard anew, with the keys whose time is not over."""
        old = self._shards[shard]
        live = self._live(old, now)
        self._place(shard, max(_LEAST, int(live / _FILLED) + 1))
        kernels()["_move"](old, self._shards[shard], now - self._within)
        self._directory[shard, USED] = live

    def _live(self, slots: NDArray[np.int64], now: int) -> int:
        return int(np.count_nonzero(slots[:, 2] > max(now - self._within, EMPTY)))

    def _place(self, shard: int, capacity: int) -> None:
        slots = self._shards[shard] = np.full((capacity, WORDS), EMPTY, np.int64)
        row = self._directory[shard]
        row[SLOTS], row[CAPACITY] = slots.ctypes.data, capacity
        row[USED], row[MOST] = 0, int(capacity * _FULL)

    def entries(self, now: int) -> NDArray[np.int64]:
        """Return the keys whose time is not over, by the time they were seen: both halves of a hash, time."""
        live = [slots[slots[:, 2] > max(now - self._within, EMPTY)] for slots in self._shards]
        found: NDArray[np.int64] = np.concatenate(live)
        return found[np.argsort(found[:, 2], kind="stable")]

    @property
    def nbytes(self) -> int:
        """The size of all slots."""
        return sum(slots.nbytes for slots in self._shards if slots is not _NONE)

    def __len__(self) -> int:
        """The number of keys, with those whose time has ended since their shard was made."""
        return int(self._directory[:, USED].sum())


def hashes_of(table: pa.Table, names: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return a hash of 128 bits for the values of some columns in each row, and which rows have no null.

    Equal whole numbers have equal hashes in columns of any width.

    Raises:
        StrategyError: a column is missing, or of a type whose values are not compared.
    """
    require_columns("Distinct", names, table.column_names)
    hashes = np.zeros((table.num_rows, 2), np.int64)
    valid = np.ones(table.num_rows, np.bool_)
    for name in names:
        column = whole(table.column(name))
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        if column.null_count:
            valid &= column.is_valid().to_numpy(zero_copy_only=False)
        _mix(name, column, hashes)
    return hashes, valid


def is_comparable(kind: pa.DataType) -> bool:
    """Return whether values of a type can be a key: text, bytes, whole numbers, booleans, dates and times."""
    types: Any = pa.types
    if types.is_dictionary(kind):
        return is_comparable(kind.value_type)  # type: ignore[attr-defined]
    return types.is_null(kind) or any(getattr(types, f"is_{each}")(kind) for each in _COMPARED)


def _mix(name: str, column: Any, hashes: NDArray[np.int64]) -> None:
    """Mix the values of a column into the hashes of the rows."""
    types: Any = pa.types
    kind = column.type
    if types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if not is_comparable(kind):
        raise StrategyError(
            f"Distinct: column {name!r} is {kind}, whose values are no key; make it text, bytes, a whole "
            "number or a time in the map"
        )
    if types.is_null(kind) or not len(column):
        return
    if any(getattr(types, f"is_{each}")(kind) for each in _TEXTS):
        column = column.cast(pa.large_binary())
    elif not types.is_fixed_size_binary(kind):
        column = _whole_numbers(column)
    offset, rows = column.offset, len(column)
    if types.is_large_binary(column.type):
        _, bounds, data = column.buffers()
        ends = np.frombuffer(bounds, np.int64)[offset : offset + rows + 1]
        starts, ends = ends[:-1], ends[1:]
    else:
        width = column.type.byte_width if types.is_fixed_size_binary(column.type) else 8
        data = column.buffers()[1]
        starts = np.arange(offset, offset + rows, dtype=np.int64) * width
        ends = starts + width
    address = 0 if data is None else data.address  # without data all values are empty
    kernels()["_hash"](address, np.ascontiguousarray(starts), np.ascontiguousarray(ends), hashes)


def _whole_numbers(column: Any) -> Any:
    """Return the values of a column of fixed width as 64-bit integers."""
    types: Any = pa.types
    kind = column.type
    if types.is_uint64(kind):
        return column.view(pa.int64())
    if types.is_boolean(kind) or types.is_integer(kind):
        return column.cast(pa.int64())
    if kind.bit_width == 32:
        return column.view(pa.int32()).cast(pa.int64())
    return column.view(pa.int64())
