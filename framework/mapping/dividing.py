"""The rows that the calls of a per-record function return, divided by their branches as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .collecting import CollectedRows
from .results import Failure, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from .branching import Branching


class BranchRows:
    """Rows of one branch.

    Attributes:
        rows: in the order of their records.
        numbers: of the record of each row.
        alike: all rows are of the class that is the branch's key.
    """

    def __init__(self, *, alike: bool) -> None:
        self.rows: list[Any] = []
        self.numbers: list[int] = []
        self.alike = alike


class DividedRows(CollectedRows):
    """Calls a per-record function, and keeps the rows of each branch.

    A row is looked at while it is new: to sort all rows of a batch afterwards would read them from memory
    again. A record with a row of no branch fails; its other rows may be among those of their branches.

    Args:
        describe: as that of `CollectedRows`.

    Attributes:
        branches: the rows of each branch that has any, and of some that have none, by its name.
    """

    def __init__(
        self, branching: Branching, describe: Callable[[int, Exception], Failure] = Failure.of
    ) -> None:
        super().__init__(None, describe)
        self._known = set()
        self._branching = branching
        self.branches = {name: BranchRows(alike=True) for name in branching.classes.values()}
        self._take = {
            cls: (self.branches[name].rows.append, self.branches[name].numbers.append)
            for cls, name in branching.classes.items()
        }

    def gather(self) -> None:
        """Do nothing: the rows of a branch become columns together."""

    def _add(self, result: Any, number: int) -> None:
        rows = iter(result if type(result) is list else (result,))
        for row in rows:
            if (take := self._take.get(type(row))) is None:
                self._add_others([row, *rows] if type(result) is list else row, number)
                return
            take[0](row)
            take[1](number)

    def _add_others(self, result: Any, number: int) -> None:
        """Add rows of any form; those that a generator makes are made now."""
        try:
            for each in rows_of(result, named=True):
                row, branch, what = self._branching.branch_of(each)
                if branch is None:
                    self.failures.append(self._branching.unplaced(number, what))
                    return
                of_class = self._branching.classes.get(type(row)) == branch
                some = self.branches.setdefault(branch, BranchRows(alike=of_class))
                some.rows.append(row)
                some.numbers.append(number)
                some.alike &= of_class
        except BaseException as error:  # noqa: BLE001  the user's generator may raise anything
            self._fail(number, error)
