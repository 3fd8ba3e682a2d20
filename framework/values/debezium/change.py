"""`Change`: one change of a row, for per-record maps."""

from __future__ import annotations

import datetime as dt  # noqa: TC003  msgspec reads the annotation
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from ...errors import StrategyError
from ..row_classes import fields_of

Op = Literal["c", "u", "d", "r", "t"]
T = TypeVar("T")

CONTROL: Final = ("op", "before", "source_time", "position", "transaction")
"""The columns of a change beside those of its row."""


class Change(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One change of a row of the source.

    Attributes:
        op: `c` created, `u` updated, `d` deleted, `r` read by a snapshot, `t` the table was truncated.
        before: the row before an update or delete, as far as the source sent it: fields that it did not send
            are None. None if it sent nothing.
        after: the row after the change; None for `d` and `t`.
        source_time: when the source made the change; None if it did not say.
        position: where the change is in the source's log: bytes that compare as the positions do. None
            where changes are ordered by their offsets.
        transaction: the id of the source's transaction, if the connector provides it.
    """

    op: Op
    before: T | None = None
    after: T | None = None
    source_time: dt.datetime | None = None
    position: bytes | None = None
    transaction: str | None = None

    def to(self, row: Callable[[T], Any]) -> dict[str, Any]:
        """Return the change of another row, for a sink with `changes=True`.

        Args:
            row: makes the other row of a row: a dict, or an object of a row class. It is called with `after`
                and with `before`. Of a deleted row only the key may be known, and other fields are None.
        """
        before = None if self.before is None else _fields(row(self.before))
        after = None if self.after is None else _fields(row(self.after))
        return {
            **(after or before or {}),
            "op": self.op,
            "before": before,
            "source_time": self.source_time,
            "position": self.position,
            "transaction": self.transaction,
        }


def _fields(row: Any) -> dict[str, Any]:
    fields = dict(row) if isinstance(row, Mapping) else fields_of(row)
    if taken := [name for name in CONTROL if name in fields]:
        raise StrategyError(
            f"Change.to: the row has a column {taken[0]}, as the change; give the field another name"
        )
    return fields
