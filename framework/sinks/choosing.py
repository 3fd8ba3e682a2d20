"""Choose the columns of a table that rows are written to, and refuse or leave out the other columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from ..columns.fitted import Fitted, fit_columns, fit_letters
from ..columns.kinds import whole
from ..errors import StrategyError
from ..record import with_offset_columns

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from ..columns.fitted import TargetColumn
    from .changes import Changes
    from .clickhouse.changes import Versions

ExtraColumns = Literal["error", "ignore"]


def schema_to_create(
    table: str,
    create: bool | pa.Schema,
    declared: pa.Schema | None,
    changes: Changes | Versions | None,
    only: Sequence[str] | None,
) -> pa.Schema | None:
    """Return the columns for the CREATE TABLE of a writer; None if neither it nor the strategy declares them.

    Raises StrategyError if rows lack one of `only`.
    """
    schema = create if isinstance(create, pa.Schema) else declared
    if schema is None:
        return None
    if changes is not None:
        schema = changes.columns(schema)
    elif schema is declared:
        schema = with_offset_columns(schema)
    if absent := [name for name in only or () if name not in schema.names]:
        raise StrategyError(f"the rows for {table} have no column {', '.join(absent)}")
    return schema if only is None else pa.schema([schema.field(name) for name in only])


class TableColumn(Protocol):
    """A column of a table."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def is_needed(self) -> bool:
        """Whether every row must have a value."""


C = TypeVar("C", bound=TableColumn)


@dataclass(frozen=True, slots=True)
class Choice(Generic[C]):
    """The columns of a table that rows are written to.

    Attributes:
        columns: also those that the rows lack and need: there, null does not fit.
        left_out: columns of the rows that the table lacks, and that the user told us to leave out.
        problems: by a column of the rows, the reason to refuse each row that has a value in it. The reason
            of the key None refuses all rows.
    """

    columns: Sequence[C]
    left_out: Sequence[str] = ()
    problems: dict[str | None, str] = field(default_factory=dict)

    def fit(
        self, rows: pa.Table, targets: Sequence[TargetColumn], *, letters: bool = False
    ) -> Fitted:
        """Cast rows to the columns, and refuse those with a problem.

        Args:
            letters: the rows are failed records, for an error sink: a value that does not fit is replaced.
        """
        fitted = (fit_letters if letters else fit_columns)(rows, targets)
        refused = dict(fitted.refused)
        for name, reason in self.problems.items():
            for row in self._rows_of(rows, name):
                refused[row] = reason
        left_out = dict(fitted.left_out)
        given = set(rows.column_names)
        for name in self.left_out:
            if name in given:
                column = rows.column(name)
                left_out[name] = len(column) - column.null_count
        return fitted._replace(
            table=fitted.table if targets else rows,
            refused=refused,
            general=fitted.general | set(self.problems.values()),
            left_out={name: count for name, count in left_out.items() if count},
        )

    def misfit(
        self, declared: Collection[str], general: Collection[str], lacking: str
    ) -> str | None:
        """Return why rows with the declared columns cannot be written; None if they can.

        Args:
            declared: the names of the columns.
            general: the reasons of `Fitted.general`, for no rows.
            lacking: the fact about a needed column that the rows lack, for the message.
        """
        problems = [*self.problems.values(), *general]
        if lacks := [each.name for each in self.columns if each.name not in declared]:
            problems.append(f"they lack {', '.join(lacks)}, {lacking}")
        return problems[0] if problems else None

    def _rows_of(self, rows: pa.Table, name: str | None) -> Iterator[int]:
        if name is None:
            yield from range(rows.num_rows)
        elif name in rows.column_names:
            there = whole(rows.column(name)).is_valid().to_numpy(zero_copy_only=False)
            yield from np.flatnonzero(there).tolist()


def choose(
    table: object,
    known: Sequence[C],
    names: Sequence[str],
    only: Sequence[str] | None,
    extra: ExtraColumns,
    had: Collection[str] = (),
) -> Choice[C]:
    """Choose the columns to write.

    A column that the table never had makes the rows with a value in it refused; one that the table has lost
    is an error.

    Args:
        table: its name, for messages.
        known: the columns of the table.
        names: the columns of the rows.
        only: write these columns; None: all of the rows.
        extra: what happens to columns of the rows that the table lacks.
        had: the columns that the table has had.

    Raises:
        StrategyError: a column of the rows is gone.
    """
    of_table = {column.name: column for column in known}
    wanted = list(dict.fromkeys(names if only is None else only))
    problems: dict[str | None, str] = {}
    if absent := [name for name in wanted if name not in names]:
        problems[None] = f"the rows for {table} have no column {', '.join(absent)}"
    unknown = [name for name in wanted if name not in of_table]
    left_out = unknown if extra == "ignore" and only is None else []
    if not left_out:
        of_all = f"its columns are {', '.join(of_table)}"
        for name in unknown:
            problems[name] = (
                f"{table} has no column {name} to write to; {of_all}. Alter the table, return other "
                "columns, or set extra_columns='ignore'"
            )
            if name in had:
                raise StrategyError(problems[name])
    if twice := [name for name in wanted if list(names).count(name) > 1]:
        problems[None] = f"the rows for {table} have the column {', '.join(twice)} twice"
        wanted = [name for name in wanted if name not in twice]
    chosen = [of_table[name] for name in wanted if name in of_table]
    if not chosen:
        problems[None] = f"the rows for {table} have none of its columns"
    needed = [each for each in known if each.is_needed and each.name not in wanted]
    if only is not None:  # the user knows better
        needed = []
    return Choice([*chosen, *needed], left_out, problems)
