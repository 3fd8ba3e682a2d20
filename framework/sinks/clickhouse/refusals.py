"""The rows of an insert that are refused, and the reasons: what the server says, with column and value."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from ...columns.kinds import whole
from ...columns.reasons import cannot_hold
from ...columns.texts import python_values
from .types import is_cast_by_server

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..answers import Answer
    from ..planning import Section
    from .table import Block, ClickHouseColumn

_CONVERTING: Final = re.compile(r"while converting column `(?P<name>.*?)` from type", re.DOTALL)
_EXECUTING: Final = re.compile(r"while (?:converting|executing|reading|parsing).*", re.DOTALL)


@dataclass(slots=True)
class Refusals:
    """The refused rows of one insert.

    Attributes:
        reasons: by the number of the row.
        general: the reasons that are not about values.
    """

    block: Block
    reasons: dict[int, str]
    general: set[str]
    _alone: dict[int, Answer] = field(default_factory=dict)
    _together: dict[int, int] = field(default_factory=dict)

    def add(self, section: Section, answer: Answer) -> None:
        """Add the rows of a section that was refused."""
        size = section.stop - section.start
        for row in range(section.start, section.stop):
            if self.reasons.setdefault(row, answer.reason) is not answer.reason:
                continue
            if size > 1:
                self._together[row] = size
            else:
                self._alone[row] = answer
        if not answer.about_values:
            self.general.add(answer.reason)

    def add_found(self, found: dict[int, str], answer: Answer) -> None:
        """Add the rows that an answer is about."""
        self.reasons.update(found)
        if answer.kind == "schema":
            self.general.update(found.values())

    def explained(self) -> dict[int, str]:
        """Return the reasons: each names column and value, or says that the row was not tried alone."""
        explained = dict(self.reasons)
        for row, size in self._together.items():
            explained[row] += (
                f" (one of {size} rows that were not tried alone: too many are refused)"
            )
        for answer, rows in self._by_answer().items():
            part = self.block.table.take(pa.array(rows))
            explained.update(zip(rows, named(self.block.columns, part, answer), strict=True))
        return explained

    def _by_answer(self) -> dict[Answer, list[int]]:
        found: dict[Answer, list[int]] = {}
        for row, answer in self._alone.items():
            found.setdefault(answer, []).append(row)
        return found


def unconvertible(
    columns: Sequence[ClickHouseColumn], rows: pa.Table, answer: Answer
) -> dict[int, str]:
    """Return the rows with a value in the column whose type the server cannot convert, with the reason.

    No rows if the answer is another one.
    """
    found = _CONVERTING.search(answer.message) if answer.kind == "schema" else None
    column = next((each for each in columns if found and each.name == found["name"]), None)
    if column is None or column.name not in rows.column_names:
        return {}
    values = whole(rows.column(column.name))
    reason = f"column {column.name} ({column.type_name}) cannot hold {values.type}: {answer.reason}"
    there = values.is_valid().to_numpy(zero_copy_only=False)
    return dict.fromkeys(np.flatnonzero(there).tolist(), reason)


def named(columns: Sequence[ClickHouseColumn], rows: pa.Table, answer: Answer) -> Sequence[str]:
    """Return the reasons of refused rows with the column that the answer is about, where that is clear."""
    where = _EXECUTING.search(answer.message)
    sent = [each for each in columns if each.name in rows.column_names]
    about = [
        each
        for each in sent
        if where and re.search(rf"(?<!\w){re.escape(each.name)}(?!\w)", where[0])
    ] or [each for each in sent if is_cast_by_server(each.type)]
    if len(about) != 1:
        return [answer.reason] * rows.num_rows
    (column,) = about
    return [
        f"{cannot_hold(column.name, column.type_name, value)}: {answer.reason}"
        for value in python_values(whole(rows.column(column.name)))
    ]
