"""The versions of objects, and their table for per-record maps."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final

from .table import UNSET, LookupTable
from .versions import Horizon, TooOld, microseconds, stamps_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    import pyarrow as pa

    from .source import TableSource
    from .versions import Stamp

_VERSION_BYTES: Final = 350
"""A version and its place in the table, beside the bytes of its value."""
_OFTEN: Final = 10_000
"""New versions after which those that no lookup finds any more are removed, and as many as are kept."""
_DELETED: Final[Any] = None
_LAST: Final = 2**63


class ObjectVersions:
    """The versions of each key, in the order of their stamps.

    One thread changes them, others read: a list that they may have only grows at its end.

    Args:
        keep: how long a version is kept after the next one, in seconds.
    """

    def __init__(self, keep: float) -> None:
        self.horizon = Horizon(keep)
        self._versions: dict[Any, list[tuple[Stamp, Any]]] = {}
        self._count = 0  # versions
        self._rows = 0  # keys whose last version is a row
        self._new = 0
        self._is_live = False

    def stamps(self, records: pa.RecordBatch) -> Iterable[Stamp]:
        """Return what `put` needs to know of each record."""
        return stamps_of(records)

    def __contains__(self, key: Any) -> bool:
        return key in self._versions

    def put(self, key: Any, row: Any, stamp: Stamp) -> None:
        """Add a version of a key."""
        self.horizon.note(stamp)
        self._count += 1
        self._new += 1
        known = self._versions.get(key)
        if known is None:
            self._versions[key] = [(stamp, row)]
            self._rows += row is not _DELETED
        elif known[-1][0] < stamp:
            self._rows += (row is not _DELETED) - (known[-1][1] is not _DELETED)
            known.append((stamp, row))
        else:
            at = bisect_right(known, stamp, key=_stamp)
            self._versions[key] = [*known[:at], (stamp, row), *known[at:]]

    def drop(self, key: Any, stamp: Stamp) -> None:
        """Note that a key has no row from a time on."""
        self.put(key, _DELETED, stamp)

    def find(self, key: Any, at: int) -> Any:
        """Return the row of a key at a time in microseconds since 1970; None if there is none."""
        known = self._versions.get(key, ())
        place = bisect_right(known, (at, _LAST, _LAST), key=_stamp)
        return known[place - 1][1] if place else _DELETED

    def __len__(self) -> int:
        """Return how many keys have a row now."""
        return self._rows

    def nbytes(self, of_value: float) -> int:
        """Return the memory of the versions, if a value needs so much."""
        return int((of_value + _VERSION_BYTES) * self._count)

    def tidy(self, *, is_pressed: bool) -> None:
        """Remove what no lookup finds any more, if there are many new versions or memory is short."""
        self.horizon.advance()
        if is_pressed or self._new > max(_OFTEN, self._count // 2):
            self.forget()

    def forget(self) -> None:
        """Remove the versions that no lookup finds any more.

        A delete is kept until the table is loaded: an older version may be in another partition.
        """
        since = self.horizon.since
        self._new = 0
        for key, known in list(self._versions.items()):
            if len(known) == 1 and known[0][1] is not _DELETED:
                continue
            first = max(0, bisect_right(known, (since, _LAST, _LAST), key=_stamp) - 1)
            if self._is_live and known[first][1] is _DELETED and known[first][0][0] <= since:
                first += 1
            if first == len(known):
                del self._versions[key]
            elif first:
                self._versions[key] = known[first:]
            self._count -= first

    def table(self, name: str, source: TableSource) -> LookupTable:
        """Return the versions as they are now and will be."""
        self._is_live = True
        return ObjectVersionsTable(name, source, self)


def _stamp(version: tuple[Stamp, Any]) -> Stamp:
    return version[0]


class ObjectVersionsTable(LookupTable):
    """The versions that a store has made, as objects."""

    def __init__(self, name: str, source: TableSource, versions: ObjectVersions) -> None:
        super().__init__(name, source)
        self._versions = versions

    def get(self, key: Any, default: Any = UNSET, *, at: datetime | None = None) -> Any:
        moment = microseconds(self.name, at)
        row = self._versions.find(key, moment)
        since = self._versions.horizon.since  # after the look: versions go when it has moved
        if moment < since:
            raise TooOld.of(self.name, moment, since)
        return self._missing(key, default) if row is _DELETED else row

    def __len__(self) -> int:
        return len(self._versions)
