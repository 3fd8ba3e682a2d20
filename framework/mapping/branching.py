"""How the rows of a map find their branches: by their type, by a name beside them, or by a tag."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from ..column_types import join_tables
from ..columns.tagged_rows import branches, is_tagged, tag, tagged_schema
from ..columns.texts import excerpt
from ..values.schemas import row_type
from . import results
from .results import NO_OFFSETS, Failure, MapResult, from_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ..values.schemas import RowType

_NO_BRANCH: Final = -1
_FEW: Final = 2**15  # branches, whose numbers have 16 bits
NAME_RULE: Final = "1 to 100 printable characters"
_LONGEST_NAME: Final = 100


def is_branch_name(name: object) -> bool:
    """Return whether a branch may have this name: it stands in tokens, labels, logs and dead letters."""
    return isinstance(name, str) and name.isprintable() and 0 < len(name) <= _LONGEST_NAME


@dataclass(frozen=True)
class Branching:
    """The branches of a strategy, as its map knows them.

    Attributes:
        names: the branches that have an entry.
        classes: the branch of each row class that is a key of the mapping.
        other: the branch of rows without an entry; None if there is none.
        is_open: any name is a branch, which is made when it first comes.
    """

    names: frozenset[str]
    classes: Mapping[type, str]
    other: str | None = None
    is_open: bool = False

    @property
    def schema(self) -> pa.Schema | None:
        """The columns of tagged rows, as far as branches have a class of rows; None if none has."""
        if not self.classes:
            return None
        return tagged_schema({name: row_type(cls).schema for cls, name in self.classes.items()})

    def place(self, name: str) -> str | None:
        """Return the branch for a name; None if there is none."""
        if name in self.names or (self.is_open and is_branch_name(name)):
            return name
        return self.other

    def _branch_of(self, row: Any) -> tuple[Any, str | None, str]:
        """Return a row without its name, its branch (None: there is none), and what a failure calls it."""
        if type(row) is tuple:
            row, name = row
            return row, self.place(name), f"the name {excerpt(name)}"
        cls = type(row)
        for parent in cls.__mro__:
            if (found := self.classes.get(parent)) is not None:
                return row, found, ""
        if isinstance(row, msgspec.Struct) and isinstance(name := row.__struct_config__.tag, str):
            return row, self.place(name), f"the tag {excerpt(name)}"
        return row, self.other, f"the type {cls.__name__}"

    def from_rows(
        self,
        rows: Sequence[Any],
        offsets: Sequence[int],
        failures: Sequence[Failure],
        sink_types: Mapping[str, Mapping[str, pa.DataType]] = {},
    ) -> MapResult:
        """Convert the rows of a per-record function to tagged rows; see `results.from_rows`.

        A record with a row of no branch, or with a value that does not fit its column, fails with all of
        its rows.

        Args:
            rows: rows, or pairs of a row and a name.
            sink_types: what the sinks store, by branch.
        """
        if len(self.classes) == 1 and set(map(type, rows)) == set(self.classes):
            return self._from_alike_rows(list(rows), offsets, failures)
        return self._from_unlike_rows(list(rows), offsets, failures, sink_types)

    def _from_alike_rows(
        self, rows: list[Any], offsets: Sequence[int], failures: Sequence[Failure]
    ) -> MapResult:
        cls = type(rows[0])
        made = from_rows(row_type(cls), rows, offsets, list(failures))
        if made.table is None:
            return made
        places = {self.classes[cls]: np.arange(len(made.offsets))}
        return replace(made, table=tag({self.classes[cls]: made.table}, places))

    def _from_unlike_rows(
        self,
        rows: list[Any],
        offsets: Sequence[int],
        failures: Sequence[Failure],
        sink_types: Mapping[str, Mapping[str, pa.DataType]],
    ) -> MapResult:
        failed = {failure.offset: failure for failure in failures}
        numbers = {name: n for n, name in enumerate(dict.fromkeys(self.classes.values()))}
        declared: dict[str, RowType | None] = {
            name: row_type(cls) for cls, name in self.classes.items()
        }
        of_class = {cls: numbers[name] for cls, name in self.classes.items()}
        found = map(of_class.get, map(type, rows), repeat(_NO_BRANCH))
        branch_of = np.fromiter(found, np.int64, len(rows))
        if len(rows) and branch_of[0] != _NO_BRANCH and (branch_of == branch_of[0]).all():
            return self._from_alike_rows(rows, offsets, failures)
        for at in np.flatnonzero(branch_of == _NO_BRANCH).tolist():
            rows[at], branch, what = self._branch_of(rows[at])
            if branch is not None:
                branch_of[at] = numbers.setdefault(branch, len(numbers))
                if self.classes.get(type(rows[at])) != branch:
                    declared[branch] = None
            else:
                failed.setdefault(offsets[at], self._unplaced(offsets[at], what))
        made = []
        if len(numbers) < _FEW:
            branch_of = branch_of.astype(np.int16)  # is sorted in a fifth of the time
        by_branch = np.argsort(branch_of, kind="stable")
        begins = np.searchsorted(branch_of[by_branch], np.arange(len(numbers) + 1))
        at_offsets = np.array(offsets, dtype=np.int64)
        in_order = np.fromiter(rows, object, len(rows))[by_branch]
        for branch, begin, end in zip(numbers, begins[:-1], begins[1:], strict=True):
            order = by_branch[begin:end]
            some, theirs = in_order[begin:end].tolist(), at_offsets[order]
            stored = sink_types.get(branch, {})
            result = from_rows(declared.get(branch), some, theirs, [], stored)
            failed |= {each.offset: each for each in result.failures if each.offset not in failed}
            if result.table is not None:
                if len(result.offsets) < len(order):
                    order = order[np.isin(theirs, result.offsets)]
                made.append(_BranchRows(branch, result.table, result.offsets, order))
        return _tagged(made, failed)

    def _unplaced(self, offset: int, what: str) -> Failure:
        if self.is_open:
            return Failure(
                offset,
                f"per_name makes no branch for {what}: return a pair of the row and a name of "
                f"{NAME_RULE}",
            )
        known = ", ".join(sorted(self.names))
        return Failure(offset, f"reduce= has no branch for {what}, only {known}; add it, or OTHER")

    def from_tables(self, found: Mapping[str, MapResult]) -> MapResult:
        """Convert the tables that a per-batch function returned by name, to tagged rows."""
        made = []
        failed: dict[int, Failure] = {}
        for number, (name, result) in enumerate(found.items()):
            if result.table is None:
                continue
            branch = self.place(name)
            if branch is None:
                for offset in np.unique(result.offsets).tolist():
                    failed.setdefault(offset, self._unplaced(offset, f"the name {excerpt(name)}"))
                continue
            order = result.offsets * len(found) + number  # by record, then by branch
            made.append(_BranchRows(branch, result.table, result.offsets, order))
        return _tagged(made, failed)


class _BranchRows(NamedTuple):
    """Rows of one branch.

    Attributes:
        offsets: the offset of each row's record.
        order: numbers that order the rows of all branches; those of one record are neighbours.
    """

    branch: str
    table: pa.Table
    offsets: NDArray[np.int64]
    order: NDArray[np.int64]


def join(parts: Sequence[MapResult]) -> MapResult:
    """Join the results of the parts of one batch, in order, whether their rows are tagged or not."""
    if not any(part.table is not None and is_tagged(part.table.schema) for part in parts):
        return results.join(parts)
    made = []
    failed: dict[int, Failure] = {}
    rows = 0
    for result in parts:
        failed |= {failure.offset: failure for failure in result.failures}
        if result.table is not None:
            for name, table, at in branches(result.table):
                made.append(_BranchRows(name, table, result.offsets[at], at + rows))
            rows += result.table.num_rows
    joined = _tagged(made, failed)
    places = [part.places for part in parts if part.places is not None]
    if joined.table is None or not places:
        return joined
    kept = np.isin(np.concatenate([part.offsets for part in parts]), joined.offsets)
    return replace(joined, places=pa.concat_tables(places).filter(pa.array(kept)))


def offsets_in(mapped: MapResult, branch: str) -> NDArray[np.int64]:
    """Return the offset of each row that goes to a branch.

    Args:
        branch: its name; "" if the strategy has no branches.
    """
    if not branch or mapped.table is None:
        return mapped.offsets
    places = (at for name, _, at in branches(mapped.table) if name == branch)
    return mapped.offsets[next(places, np.empty(0, np.int64))]


def only_branch(mapped: MapResult, branch: str) -> MapResult:
    """Return a result with the rows of one branch only; the other records have no rows."""
    if mapped.table is None or not is_tagged(mapped.table.schema):
        return mapped
    for name, _, at in branches(mapped.table):
        if name == branch:
            return replace(mapped, table=mapped.table.take(at), offsets=mapped.offsets[at])
    return replace(mapped, table=None, offsets=NO_OFFSETS)


def _tagged(parts: Sequence[_BranchRows], failed: dict[int, Failure]) -> MapResult:
    """Tag rows with their branches, and leave out those of failed records."""
    of_branch: dict[str, list[_BranchRows]] = {}
    for part in parts:
        of_branch.setdefault(part.branch, []).append(part)
    joined = [_joined(some, failed) for some in of_branch.values()]
    if failed:
        gone = np.array(list(failed))
        joined = [kept for part in joined if len((kept := _without(part, gone)).offsets)]
    failures = tuple(failed[offset] for offset in sorted(failed))
    if not joined:
        return MapResult(None, NO_OFFSETS, failures)
    rank = np.concatenate([part.order for part in joined])
    if not _are_places(rank):
        by_order = np.argsort(rank, kind="stable")
        rank[by_order] = np.arange(len(by_order))
    ends = np.cumsum([len(part.order) for part in joined])[:-1]
    places = {part.branch: at for part, at in zip(joined, np.split(rank, ends), strict=True)}
    table = tag({part.branch: part.table for part in joined}, places)
    offsets = np.empty(len(rank), np.int64)
    offsets[rank] = np.concatenate([part.offsets for part in joined])
    return MapResult(table, offsets, failures)


def _are_places(order: NDArray[np.int64]) -> bool:
    """Return whether the numbers are those from 0 on, each once."""
    return int(order.max()) < len(order) and int(np.bincount(order).max()) == 1


def _joined(parts: Sequence[_BranchRows], failed: dict[int, Failure]) -> _BranchRows:
    """Join the rows of one branch, in order; records whose values do not fit the others' fail."""
    if len(parts) == 1:
        return parts[0]
    joined = join_tables([part.table for part in parts])
    offsets = np.concatenate([part.offsets for part in parts])
    for row, reason in joined.misfits.items():
        failed.setdefault(int(offsets[row]), Failure(int(offsets[row]), reason))
    order = np.concatenate([part.order for part in parts])
    by_order = np.argsort(order, kind="stable")
    return _BranchRows(
        parts[0].branch, joined.table.take(by_order), offsets[by_order], order[by_order]
    )


def _without(part: _BranchRows, gone: NDArray[np.int64]) -> _BranchRows:
    kept = ~np.isin(part.offsets, gone)
    return part._replace(
        table=part.table.filter(pa.array(kept)), offsets=part.offsets[kept], order=part.order[kept]
    )
