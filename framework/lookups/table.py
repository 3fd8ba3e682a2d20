"""What a map looks rows up in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ..errors import StrategyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    import pyarrow as pa

    from .source import TableSource


class NoRow(KeyError):
    """A table has no row of a key; the record that needs it fails with this reason.

    Attributes:
        records: in a per-batch map, the error of each record that has none, by its offset.
    """

    records: Mapping[int, NoRow] = MappingProxyType({})

    def __str__(self) -> str:
        return str(self.args[0])


UNSET: Final[Any] = object()
UNSET_ROW: Final[Any] = object()


class LookupTable(ABC):
    """The rows of a `Lookup`, for a map.

    In a per-record map a row is the object that the value's format makes, and the newest one at each call. In
    a per-batch map a row is a dict, and the table does not change while the map is called with one batch.
    With `as_of="record"` a row is the last version at the time of the lookup.
    """

    def __init__(self, name: str, source: TableSource) -> None:
        self.name = name
        self._source = source

    @abstractmethod
    def get(self, key: Any, default: Any = UNSET, *, at: datetime | None = None) -> Any:
        """Return the row of a key, or else `default`. A key of several fields is a tuple.

        Without a default: None, or what `missing=` of the table says.

        Args:
            at: with `as_of="record"`: the time of the lookup, in place of the record's timestamp. A per-batch
                map has to say it.

        Raises:
            NoRow: there is none, and `missing="dead-letter"`; or the time is before the versions that are
                kept. In a map, the record fails with that reason.
        """

    @abstractmethod
    def __len__(self) -> int:
        """Return how many rows there are."""

    def join(
        self,
        batch: Any,
        *,
        on: str | Sequence[str],
        columns: Sequence[str] | Mapping[str, str] | None = None,
        found: str | None = None,
        at: str | None = None,
    ) -> Any:
        """Return a batch with columns of the rows that its keys name; null where there is no row.

        Only in a per-batch map.

        Args:
            batch: a RecordBatch or a Table of pyarrow.
            on: the column of the batch with the key; as many as the key has fields.
            columns: the columns of the table that are added; a mapping gives them other names. None: all but
                those of the key.
            found: the name of a column that says whether there is a row, so that the map decides what
                happens to the others.
            at: with `as_of="record"`: the column of the batch with the time of the lookup; a row without a
                time has no row. None: the record's timestamp, which has to be in the batch.

        Raises:
            StrategyError: there is no such column, or two have one name.
            NoRow: without `found`, of a table with `missing="dead-letter"`: the records without a row fail,
                and the map is called again with the others. So do those that are older than the versions
                of a table with `as_of="record"`.
        """
        raise StrategyError(f"{self.name}.join is for a per-batch map; use {self.name}.get(key)")

    def to_arrow(self) -> pa.Table:
        """Return all rows, of versions the newest. Only in a per-batch map."""
        raise StrategyError(f"{self.name}.to_arrow is for a per-batch map")

    def __getitem__(self, key: Any) -> Any:
        """Return the row of a key.

        Raises:
            NoRow: there is none. In a map, the record fails with that reason.
        """
        row = self.get(key, UNSET_ROW)
        if row is UNSET_ROW:
            raise self._no_row(key)
        return row

    def __contains__(self, key: Any) -> bool:
        return self.get(key, UNSET_ROW) is not UNSET_ROW

    def _missing(self, key: Any, default: Any) -> Any:
        """Return what `get` returns without a row."""
        if default is not UNSET:
            return default
        if self._source.missing == "dead-letter":
            raise self._no_row(key)
        return None

    def _no_versions(self) -> StrategyError:
        return StrategyError(
            f'{self.name}: at= needs versions; make the table with Lookup(..., as_of="record", keep="1d")'
        )

    def _no_row(self, key: Any) -> NoRow:
        return NoRow(f"{self.name} has no row of the key {key!r}")


def chosen(
    name: str,
    known: Iterable[str],
    keys: Sequence[str],
    columns: Sequence[str] | Mapping[str, str] | None,
    taken: Iterable[str],
) -> dict[str, str]:
    """Return the columns that a join adds, with their new names.

    Raises:
        StrategyError: one is not known, or its name is taken.
    """
    known, taken = list(known), set(taken)
    if columns is None:
        columns = [each for each in known if each not in keys]
    names = dict(columns) if hasattr(columns, "keys") else {each: each for each in columns}
    for column, new in names.items():
        if column not in known:
            raise StrategyError(
                f"{name}.join: the table has no column {column}; it has {', '.join(known)}"
            )
        if new in taken:
            raise StrategyError(
                f"{name}.join: the batch has a column {new} already; rename it: "
                f'columns={{"{column}": "{name}_{column}"}}'
            )
        taken.add(new)
    return names
