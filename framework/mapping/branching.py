"""How the rows of a map find their branches: by their type, by a name beside them, or by a tag."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from ..columns.column_types import join_tables
from ..columns.texts import excerpt
from ..tagged_rows import branches, is_tagged, tag, tagged_schema
from ..values.schemas import row_type
from . import results
from .results import NO_OFFSETS, Failure, MapResult, from_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from .dividing import BranchRows

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

    def branch_of(self, row: Any) -> tuple[Any, str | None, str]:
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
        divided: Mapping[str, BranchRows],
        failures: Sequence[Failure],
        sink_types: Mapping[str, Mapping[str, pa.DataType]] = {},
    ) -> MapResult:
        """Convert the rows of a per-record function to tagged rows; see `results.from_rows`.

        A record with a value that does not fit its column fails with all of its rows, as those do that have
        failed before.

        Args:
            divided: the rows of each branch, with the offsets of their records.
            sink_types: what the sinks store, by branch.
        """
        failed = {failure.offset: failure for failure in failures}
        class_of = {name: cls for cls, name in self.classes.items()}
        made = []
        for branch, some in divided.items():
            declared = row_type(class_of[branch]) if some.alike else None
            stored = sink_types.get(branch, {})
            result = from_rows(declared, some.rows, some.numbers, [], stored, alike=some.alike)
            failed |= {each.offset: each for each in result.failures if each.offset not in failed}
            if result.table is not None:
                made.append(_BranchTable(branch, result.table, result.offsets))
        return _tagged(made, failed)

    def unplaced(self, offset: int, what: str) -> Failure:
        """Return the failure of a record with rows that have no branch."""
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
        for name, result in found.items():
            if result.table is None:
                continue
            branch = self.place(name)
            if branch is None:
                for offset in np.unique(result.offsets).tolist():
                    failed.setdefault(offset, self.unplaced(offset, f"the name {excerpt(name)}"))
                continue
            made.append(_BranchTable(branch, result.table, result.offsets))
        return _tagged(made, failed)


class _BranchTable(NamedTuple):
    """Rows of one branch, and the offset of each row's record."""

    branch: str
    table: pa.Table
    offsets: NDArray[np.int64]


def join(parts: Sequence[MapResult]) -> MapResult:
    """Join the results of the parts of one batch, in order, whether their rows are tagged or not."""
    if not any(part.table is not None and is_tagged(part.table.schema) for part in parts):
        return results.join(parts)
    made = []
    failed: dict[int, Failure] = {}
    for result in parts:
        failed |= {failure.offset: failure for failure in result.failures}
        if result.table is not None:
            for name, table, at in branches(result.table):
                made.append(_BranchTable(name, table, result.offsets[at]))
    joined = _tagged(made, failed)
    places = [part.places for part in parts if part.places is not None]
    if joined.table is None or not places:
        return joined
    offsets = np.concatenate([part.offsets for part in parts])
    in_order = np.argsort(offsets, kind="stable")
    kept = in_order[np.isin(offsets[in_order], joined.offsets)]
    return replace(joined, places=pa.concat_tables(places).take(kept))


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


def _tagged(parts: Sequence[_BranchTable], failed: dict[int, Failure]) -> MapResult:
    """Tag rows with their branches, by record and then by branch, and leave out those of failed records."""
    of_branch: dict[str, list[_BranchTable]] = {}
    for part in parts:
        of_branch.setdefault(part.branch, []).append(part)
    joined = [_joined(some, failed) for some in of_branch.values()]
    if failed:
        gone = np.array(list(failed))
        joined = [kept for part in joined if len((kept := _without(part, gone)).offsets)]
    failures = tuple(failed[offset] for offset in sorted(failed))
    if not joined:
        return MapResult(None, NO_OFFSETS, failures)
    offsets = np.concatenate([part.offsets for part in joined])
    in_order = np.argsort(offsets, kind="stable")
    rank = np.empty(len(offsets), np.int64)
    rank[in_order] = np.arange(len(offsets))
    ends = np.cumsum([len(part.offsets) for part in joined])[:-1]
    places = {part.branch: at for part, at in zip(joined, np.split(rank, ends), strict=True)}
    table = tag({part.branch: part.table for part in joined}, places)
    return MapResult(table, offsets[in_order], failures)


def _joined(parts: Sequence[_BranchTable], failed: dict[int, Failure]) -> _BranchTable:
    """Join the rows of one branch, in order; records whose values do not fit the others' fail."""
    if len(parts) == 1:
        return parts[0]
    joined = join_tables([part.table for part in parts])
    offsets = np.concatenate([part.offsets for part in parts])
    for row, reason in joined.misfits.items():
        failed.setdefault(int(offsets[row]), Failure(int(offsets[row]), reason))
    in_order = np.argsort(offsets, kind="stable")
    return _BranchTable(parts[0].branch, joined.table.take(in_order), offsets[in_order])


def _without(part: _BranchTable, gone: NDArray[np.int64]) -> _BranchTable:
    kept = ~np.isin(part.offsets, gone)
    return part._replace(table=part.table.filter(pa.array(kept)), offsets=part.offsets[kept])
