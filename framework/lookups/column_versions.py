"""The versions of rows in Arrow columns, for per-batch maps.

Versions are sorted by key and stamp, so that those of many keys at many times are found by a binary search in
compiled code. As of newest rows, there are those of the base and those of the overlay.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import pyarrow as pa

from .versions import Horizon, stamps_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from .versions import Stamp

_DELETED: Final = -1
_VERSION_BYTES: Final = 48
"""A version in the arrays below."""
_KEY_BYTES: Final = 120
_EVER: Final = 2**62


@dataclass(frozen=True)
class SortedVersions:
    """Versions that do not change.

    Attributes:
        numbers: of the keys.
        starts: the first version of each key, by its number, and the end of all.
        stamps: time, offset and partition of each version, as rows of one array.
        places: the row of each version in its columns; below 0: it is a delete.
    """

    numbers: dict[Any, int]
    starts: NDArray[np.int64]
    stamps: NDArray[np.int64]
    places: NDArray[np.int64]

    @classmethod
    def of(cls, keys: Sequence[Any], stamps: NDArray[np.int64], places: NDArray[np.int64]) -> Self:
        """Sort versions, each with its key."""
        numbers: dict[Any, int] = {}
        owner = np.fromiter(
            (numbers.setdefault(key, len(numbers)) for key in keys), np.int64, len(keys)
        )
        return cls.sorted(numbers, owner, stamps, places)

    @classmethod
    def sorted(
        cls,
        numbers: dict[Any, int],
        owner: NDArray[np.int64],
        stamps: NDArray[np.int64],
        places: NDArray[np.int64],
    ) -> Self:
        """Sort versions, each with the number of its key."""
        time, offset, partition = stamps
        order = np.lexsort((partition, offset, time, owner))
        starts = np.searchsorted(owner[order], np.arange(len(numbers) + 1))
        return cls(numbers, starts, stamps[:, order], places[order])

    @property
    def owners(self) -> NDArray[np.int64]:
        """The number of the key of each version."""
        return np.repeat(np.arange(len(self.numbers)), np.diff(self.starts))

    @property
    def newest(self) -> NDArray[np.int64]:
        """The place of the last version of each key."""
        return self.places[self.starts[1:] - 1]

    def find(self, keys: Sequence[Any], times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the last version of each key at its time; below 0: there is none."""
        count = len(keys)
        if not len(self.places):
            return np.full(count, -1)
        of_keys = np.fromiter(map(self.numbers.get, keys, repeat(-1)), np.int64, count)
        known = of_keys >= 0
        first = np.where(known, self.starts[of_keys], 0)
        low, high = first, np.where(known, self.starts[of_keys + 1], 0)
        while (open_ := low < high).any():
            middle = np.minimum((low + high) // 2, len(self.places) - 1)
            is_later = self.stamps[0, middle] > times
            high = np.where(open_ & is_later, middle, high)
            low = np.where(open_ & ~is_later, middle + 1, low)
        return np.where(low > first, low - 1, -1)


_NO_STAMPS: Final = np.empty((3, 0), np.int64)
_NONE: Final = SortedVersions.of([], _NO_STAMPS, np.empty(0, np.int64))


class VersionIndex:
    """Finds rows of a base and an overlay by key and time, at one moment.

    Attributes:
        since: lookups before this time may not be answered, in microseconds since 1970.
    """

    def __init__(
        self, base: SortedVersions, new: SortedVersions, base_rows: int, since: int
    ) -> None:
        self._base, self._new = base, new
        self._base_rows = base_rows
        self.since = since

    def __len__(self) -> int:
        """Return how many keys have a row now."""
        changed = list(self._new.numbers)
        now = np.full(len(changed), _EVER)
        before = self._base.find(changed, now)
        had = np.count_nonzero(self._base.places[before[before >= 0]] >= 0)
        have = np.count_nonzero(self.places(changed, now) >= 0)
        return int(np.count_nonzero(self._base.newest >= 0) - had + have)

    def places(self, keys: Sequence[Any], times: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """Return the row of each key at its time, those of the overlay after those of the base."""
        assert times is not None  # noqa: S101  a table with versions knows the times
        old, new = self._base.find(keys, times), self._new.find(keys, times)
        found = np.full(len(keys), _DELETED)
        has_old, has_new = old >= 0, new >= 0
        both = np.flatnonzero(has_old & has_new)
        is_older = _before(self._new.stamps[:, new[both]], self._base.stamps[:, old[both]])
        has_new[both[is_older]] = False
        found[has_old] = self._base.places[old[has_old]]
        place = self._new.places[new[has_new]]
        found[has_new] = np.where(place < 0, _DELETED, place + self._base_rows)
        return found

    def rows(self, base: pa.RecordBatch, overlay: pa.RecordBatch) -> pa.Table:
        """Return the newest row of each key."""
        keys = list({**self._base.numbers, **self._new.numbers})
        places = self.places(keys, np.full(len(keys), _EVER))
        return _taken(base, overlay, places[places >= 0])


def _taken(base: pa.RecordBatch, overlay: pa.RecordBatch, rows: NDArray[np.int64]) -> pa.Table:
    at: Any = pa.array(rows)
    return pa.Table.from_batches([base, overlay]).take(at)


def _before(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether the first of two stamps is the earlier one."""
    less: NDArray[np.bool_] = one[2] < other[2]
    for row in (1, 0):
        less = (one[row] < other[row]) | ((one[row] == other[row]) & less)
    return less


class ColumnVersions:
    """The versions of each key, as rows of a base and an overlay.

    Args:
        keep: how long a version is kept after the next one, in seconds.
    """

    def __init__(self, keep: float) -> None:
        self._horizon = Horizon(keep)
        self._base = _NONE
        self._keys: list[Any] = []
        self._stamps: list[Stamp] = []
        self._places: list[int] = []
        self._changed: set[Any] = set()
        self.is_live = False

    def stamps(self, records: pa.RecordBatch) -> Iterable[Stamp]:
        """Return what `put` needs to know of each record."""
        return stamps_of(records)

    def __contains__(self, key: Any) -> bool:
        return key in self._changed or key in self._base.numbers

    def put(self, key: Any, row: int, stamp: Stamp) -> None:
        """Add a version of a key: a row of the overlay."""
        self._horizon.note(stamp)
        self._keys.append(key)
        self._stamps.append(stamp)
        self._places.append(row)
        self._changed.add(key)

    def drop(self, key: Any, stamp: Stamp) -> None:
        """Note that a key has no row from a time on."""
        self.put(key, _DELETED, stamp)

    def __len__(self) -> int:
        return len(self.index(0))

    @property
    def news(self) -> int:
        """How many versions the overlay has."""
        return len(self._keys)

    @property
    def nbytes(self) -> int:
        """The memory of keys and stamps, estimated."""
        of_new = (_KEY_BYTES + _VERSION_BYTES) * len(self._keys)
        of_keys = _KEY_BYTES * len(self._base.numbers)
        return of_new + of_keys + _VERSION_BYTES * len(self._base.places)

    def index(self, base_rows: int) -> VersionIndex:
        """Return what finds the versions that there are now."""
        self._horizon.advance()
        return VersionIndex(self._base, self._newer(), base_rows, self._horizon.since)

    def _newer(self) -> SortedVersions:
        if not self._keys:
            return _NONE
        stamps = np.array(self._stamps, np.int64).T
        return SortedVersions.of(self._keys, stamps, np.array(self._places, np.int64))

    def compact(self, base: pa.RecordBatch, overlay: pa.RecordBatch) -> pa.Table:
        """Return the rows of a new base, of which these are the versions from now on.

        Versions that no lookup finds any more are left out. A delete is kept until the table is loaded: an
        older version may be in another partition.
        """
        self._horizon.advance()
        old, new = self._base, self._newer()
        numbers = dict(old.numbers)
        renamed = [numbers.setdefault(key, len(numbers)) for key in new.numbers]
        owner = np.concatenate([old.owners, np.array(renamed, np.int64)[new.owners]])
        moved = np.where(new.places < 0, _DELETED, new.places + len(base))
        every = SortedVersions.sorted(
            numbers,
            owner,
            np.concatenate([old.stamps, new.stamps], axis=1),
            np.concatenate([old.places, moved]),
        )
        kept, owner = self._needed(every), every.owners
        places = every.places[kept]
        is_row = places >= 0
        after = np.where(is_row, np.cumsum(is_row) - 1, _DELETED)
        left, owner = np.unique(owner[kept], return_inverse=True)
        if len(left) < len(numbers):
            keys = list(numbers)
            numbers = {keys[number]: at for at, number in enumerate(left.tolist())}
        self._base = SortedVersions.sorted(numbers, owner, every.stamps[:, kept], after)
        self._keys, self._stamps, self._places, self._changed = [], [], [], set()
        return _taken(base, overlay, places[is_row])

    def _needed(self, every: SortedVersions) -> NDArray[np.bool_]:
        """Return which versions a lookup from the horizon on may find."""
        owner, times, since = every.owners, every.stamps[0], self._horizon.since
        has_next = np.append(owner[1:] == owner[:-1], np.zeros(len(owner[:1]), np.bool_))
        next_time = np.append(times[1:], times[:1])
        needed = ~(has_next & (next_time <= since))
        if self.is_live:
            is_first = np.append(np.ones(len(owner[:1]), np.bool_), ~needed[:-1])
            is_first[every.starts[:-1]] = True
            needed &= ~(is_first & (every.places < 0) & (times <= since))
        return needed

    def renumber(self, base: pa.RecordBatch) -> None:
        """Do nothing: `compact` has numbered the rows."""
