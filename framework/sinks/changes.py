"""Reduce the changes of a flush to one for each key, for sinks whose table follows the source.

The last change of a key wins. An update that changes the key deletes the row of the old key. A truncated
table makes the changes before it needless.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..columns.kinds import mask_where, whole
from ..errors import StrategyError
from ..values.debezium.change import CONTROL
from ..values.value_format import REQUIRED

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from ..columns.kinds import Array

_pc: Any = pc
_AT: Final = "kmr at"  # no column of a key has this name
_OPS: Final = ("c", "u", "r", "d", "t")


class Applied(NamedTuple):
    """What is left of some changes: one for each key.

    Attributes:
        table: the columns of the rows; of a deleted row, those of its key.
        deleted: which of them are deleted.
        source: the number of the change that each comes from, ascending.
        refused: the changes that cannot be applied, with the reasons.
        truncated: the number of the last change that truncates the table; None if there is none.
    """

    table: pa.Table
    deleted: NDArray[np.bool_]
    source: NDArray[np.int64]
    refused: dict[int, str]
    truncated: int | None

    @property
    def upserts(self) -> pa.Table:
        """The rows that are not deleted."""
        return self.table.filter(pa.array(~self.deleted))

    @property
    def deletes_after_upserts(self) -> bool:
        """Whether a row is deleted by a change after one that is not."""
        return bool((self.deleted[1:] & ~self.deleted[:-1]).any())

    def among(self, refused: dict[int, str], *, deleted: bool) -> dict[int, str]:
        """Return refused rows, given by their number among those deleted or not, by their change."""
        numbers = np.flatnonzero(self.deleted == deleted)
        return {int(self.source[numbers[row]]): reason for row, reason in refused.items()}


class _Events(NamedTuple):
    """Upserts and deletes: the number of the change, and the key, of each."""

    rows: NDArray[np.int64]
    deletes: NDArray[np.bool_]
    keys: list[Array]

    def take(self, places: NDArray[np.int64]) -> _Events:
        keys = [column.take(pa.array(places)) for column in self.keys]
        return _Events(self.rows[places], self.deletes[places], keys)


@dataclass(frozen=True, slots=True)
class Changes:
    """How rows are changes.

    Attributes:
        sink: the name of the sink, for messages.
        key: the columns that name a row.
    """

    sink: str
    key: tuple[str, ...]

    @classmethod
    def of(cls, sink: str, key: Sequence[str] | None, *, changes: bool) -> Changes | None:
        """Check the arguments of a sink; None if its rows are no changes."""
        if changes and not key:
            raise StrategyError(f"{sink}: changes=True needs key=, the columns that name a row")
        if key and not changes:
            raise StrategyError(f"{sink}: key= is for changes: set changes=True")
        return cls(sink, tuple(key)) if changes and key else None

    def columns(self, declared: pa.Schema) -> pa.Schema:
        """Return the columns of a table for changes with the declared columns; a key is never null.

        Raises:
            StrategyError: a column of the key is not declared.
        """
        fields = []
        for field in declared:
            if field.name in CONTROL:
                continue
            if field.metadata == REQUIRED:
                field = field.with_nullable(nullable=False).remove_metadata()
            elif field.name in self.key:
                field = field.with_nullable(nullable=False)
            fields.append(field)
        self._require([field.name for field in fields])
        return pa.schema(fields)

    def _require(self, names: Collection[str]) -> None:
        if absent := [name for name in self.key if name not in names]:
            raise StrategyError(
                f"{self.sink}: the rows have no column {', '.join(absent)}, which key= names, only "
                f"{', '.join(names)}"
            )

    def apply(self, table: pa.Table, known: Collection[str] = ()) -> Applied:
        """Return the last change of each key, in order.

        Args:
            known: the columns of the destination: those of a change, such as `source_time`, are left out
                unless they are among them.

        Raises:
            StrategyError: the rows are no changes, or lack a column of the key.
        """
        op, keys, refused = self._checked(table)
        truncates = np.flatnonzero(mask_where(_pc.equal(op, "t")))
        truncated = int(truncates[-1]) if len(truncates) else None
        good = np.ones(table.num_rows, np.bool_)
        good[list(refused)] = False
        good[: 0 if truncated is None else truncated + 1] = False
        events = self._events(table, op, keys, np.flatnonzero(good))
        events = events.take(self._last(events.keys))
        return Applied(
            self._rows(table, events, known), events.deletes, events.rows, refused, truncated
        )

    def every(self, table: pa.Table) -> Applied:
        """Return all changes, in order, for a destination that is a log itself.

        `refused` has the numbers of the changes that are returned; a truncate is one of them.

        Raises:
            StrategyError: as `apply`.
        """
        op, keys, refused = self._checked(table)
        for row in np.flatnonzero(mask_where(_pc.equal(op, "t"))).tolist():
            refused[row] = (
                f"{self.sink}: the table was truncated, and a log of changes cannot say so"
            )
        events = self._events(table, op, keys, np.arange(table.num_rows))
        bad = np.isin(events.rows, list(refused))
        reasons = {int(at): refused[int(events.rows[at])] for at in np.flatnonzero(bad)}
        return Applied(
            self._rows(table, events, table.column_names),
            events.deletes,
            events.rows,
            reasons,
            None,
        )

    def _checked(self, table: pa.Table) -> tuple[Array, list[Array], dict[int, str]]:
        """Return the operations and keys of changes, and the reason for each that cannot be applied."""
        if "op" not in table.column_names:
            raise StrategyError(
                f"{self.sink}: changes=True needs rows with a column op: those of value=Debezium(...), of "
                "Strategy(changes='keyed'), or of Change.to in a map"
            )
        self._require(table.column_names)
        op: Any = whole(table.column("op"))
        refused = {
            row: f"column op: {op[row].as_py()!r} is no operation (c, u, d, r, t)"
            for row in np.flatnonzero(~mask_where(_pc.is_in(op, pa.array(_OPS)))).tolist()
        }
        keys = [whole(table.column(name)) for name in self.key]
        of_row = ~mask_where(_pc.equal(op, "t"))
        for name, column in zip(self.key, keys, strict=True):
            for row in np.flatnonzero(mask_where(column.is_null()) & of_row).tolist():
                refused.setdefault(row, f"column {name}: null, though it is of the key")
        return op, keys, refused

    def _events(
        self, table: pa.Table, op: Array, keys: Sequence[Array], rows: NDArray[np.int64]
    ) -> _Events:
        """Return the upserts and deletes that changes are; one that moves a row to another key is both."""
        deletes = mask_where(_pc.equal(op, "d"))[rows]
        of_rows = [column.take(pa.array(rows)) for column in keys]
        events = _Events(rows, deletes, of_rows)
        moved, old_keys = self._moved(table, keys, rows[~deletes])
        if not len(moved):
            return events
        # The delete of the old key stands before the row with the new one.
        order = np.argsort(np.concatenate([rows * 2 + 1, moved * 2]), kind="stable")
        joined = [
            pa.concat_arrays([new, old.cast(new.type)])
            for new, old in zip(of_rows, old_keys, strict=True)
        ]
        gone = np.ones(len(moved), np.bool_)
        return _Events(np.concatenate([rows, moved]), np.concatenate([deletes, gone]), joined).take(
            order
        )

    def _rows(self, table: pa.Table, events: _Events, known: Collection[str]) -> pa.Table:
        """Return the columns of the rows; those of deleted rows are null but for the key."""
        at, gone = pa.array(events.rows), pa.array(events.deletes)
        columns: dict[str, Any] = {}
        for name in table.column_names:
            if name in CONTROL and name not in known:
                continue
            if name in self.key:
                columns[name] = events.keys[self.key.index(name)]
                continue
            column: Any = whole(table.column(name)).take(at)
            if events.deletes.any() and name not in CONTROL:
                column = _pc.if_else(gone, pa.scalar(None, column.type), column)
            columns[name] = column
        return pa.table(columns)

    def _moved(
        self, table: pa.Table, keys: Sequence[Array], upserts: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], list[Array]]:
        """Return the changes that gave a row another key, and the old keys."""
        nothing: tuple[NDArray[np.int64], list[Array]] = (np.empty(0, np.int64), [])
        if "before" not in table.column_names or not len(upserts):
            return nothing
        before: Any = whole(table.column("before"))
        if not pa.types.is_struct(before.type) or before.null_count == len(before):
            return nothing
        if any(name not in before.type.names for name in self.key):
            return nothing
        at = pa.array(upserts)
        fields = dict(zip(before.type.names, before.flatten(), strict=True))
        old = [fields[name].take(at) for name in self.key]
        differs = np.zeros(len(upserts), np.bool_)
        there = np.ones(len(upserts), np.bool_)
        for was, column in zip(old, keys, strict=True):
            there &= mask_where(was.is_valid())
            differs |= mask_where(_pc.not_equal(was.cast(column.type), column.take(at)))
        chosen = np.flatnonzero(there & differs)
        return upserts[chosen], [was.take(pa.array(chosen)) for was in old]

    def _last(self, keys: Sequence[Array]) -> NDArray[np.int64]:
        """Return the places of the last change of each key, ascending."""
        if not len(keys[0]):
            return np.empty(0, np.int64)
        names = [f"k{at}" for at in range(len(keys))]
        events = pa.table([*keys, pa.array(np.arange(len(keys[0])))], names=[*names, _AT])
        try:
            last = events.group_by(names, use_threads=False).aggregate([(_AT, "max")])
        except pa.ArrowNotImplementedError as error:
            kinds = ", ".join(
                f"{name}: {key.type}" for name, key in zip(self.key, keys, strict=True)
            )
            raise StrategyError(f"{self.sink}: no key can have the types {kinds}") from error
        found: NDArray[np.int64] = np.sort(last.column(f"{_AT}_max").to_numpy())
        return found
