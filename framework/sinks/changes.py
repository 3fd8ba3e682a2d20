"""Changes of rows by key: what is left of a flush of changes, for sinks that keep a table in step.

The last change of a key wins. An update that changes the key deletes the row of the old key. A truncated
table makes the changes before it needless.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..columns.kinds import whole
from ..errors import StrategyError
from ..values.debezium.change import CONTROL
from ..values.value_format import REQUIRED

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from ..columns.kinds import Array

_pc: Any = pc
_AT: Final = "kmr at"  # no column of a key has this name
_OPS: Final = pa.array(["c", "u", "r", "d", "t"])


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

    def among(self, refused: dict[int, str], *, deleted: bool) -> dict[int, str]:
        """Return refused rows, given by their number among those deleted or not, by their change."""
        numbers = np.flatnonzero(self.deleted == deleted)
        return {int(self.source[numbers[row]]): reason for row, reason in refused.items()}


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
        if isinstance(key, str):
            raise StrategyError(f"{sink}: key is a list: key=[{key!r}]")
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
        """Return what is left of changes, in order.

        Args:
            known: the columns of the destination: those of a change, such as `source_time`, are left out
                unless they are among them.

        Raises:
            StrategyError: the rows are no changes, or lack a column of the key.
        """
        if "op" not in table.column_names:
            raise StrategyError(
                f"{self.sink}: changes=True needs rows with a column op: those of value=Debezium(...), of "
                "Strategy(changes='keyed'), or of Change.to in a map"
            )
        self._require(table.column_names)
        refused: dict[int, str] = {}
        op = whole(table.column("op"))
        good = _numpy(_pc.is_in(op, _OPS))
        for row in np.flatnonzero(~good).tolist():
            refused[row] = f"column op: {op[row].as_py()!r} is no operation (c, u, d, r, t)"
        truncates = np.flatnonzero(_numpy(_pc.equal(op, "t")))
        truncated = int(truncates[-1]) if len(truncates) else None
        good[truncates] = False
        keys = [whole(table.column(name)) for name in self.key]
        for name, column in zip(self.key, keys, strict=True):
            null = _numpy(column.is_null()) & good
            for row in np.flatnonzero(null).tolist():
                refused[row] = f"column {name}: null, though it is of the key"
            good &= ~null
        if truncated is not None:
            good[: truncated + 1] = False
        events = np.flatnonzero(good)
        deletes = _numpy(_pc.equal(op, "d"))[events]
        event_keys = [column.take(pa.array(events)) for column in keys]
        moved, old_keys = self._moved(table, keys, events[~deletes])
        if len(moved):  # the delete of the old key stands before the row with the new one
            order = np.argsort(np.concatenate([events * 2 + 1, moved * 2]), kind="stable")
            deletes = np.concatenate([deletes, np.ones(len(moved), np.bool_)])[order]
            events = np.concatenate([events, moved])[order]
            event_keys = [
                pa.concat_arrays([new, old.cast(new.type)]).take(pa.array(order))
                for new, old in zip(event_keys, old_keys, strict=True)
            ]
        last = self._last(event_keys)
        events, deletes = events[last], deletes[last]
        at = pa.array(events)
        gone: Any = pa.array(deletes)
        columns = {}
        for name in table.column_names:
            if name in CONTROL and name not in known:
                continue
            if name in self.key:
                columns[name] = event_keys[self.key.index(name)].take(pa.array(last))
                continue
            column = whole(table.column(name)).take(at)
            if deletes.any():
                column = _pc.if_else(gone, pa.scalar(None, column.type), column)
            columns[name] = column
        return Applied(pa.table(columns), deletes, events, refused, truncated)

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
            there &= _numpy(was.is_valid())
            differs |= _numpy(_pc.not_equal(was.cast(column.type), column.take(at)))
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


def _numpy(condition: Any) -> NDArray[np.bool_]:
    filled: Any = condition.fill_null(fill_value=False) if condition.null_count else condition
    found: NDArray[np.bool_] = filled.to_numpy(zero_copy_only=False)
    return found.copy()
