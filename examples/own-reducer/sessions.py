"""A reducer of one's own: of many clicks it makes one row for each visit, within a flush."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Unpack

import pyarrow as pa

from kmr import Json, Strategy
from kmr.sinks import Collecting, StreamWriter, one_table
from kmr.types import Limits

if TYPE_CHECKING:
    from typing import Any

CLICK = pa.schema([("user", pa.string()), ("at", pa.int64()), ("page", pa.string())])


class Visits(Collecting):
    """Joins the clicks of a user that are at most `gap` seconds apart.

    Nothing outlives a flush: a visit that spans two flushes is two rows. Keep `max_age` above the usual
    visit, or join the rows in the table.
    """

    def __init__(self, gap: int, **limits: Unpack[Limits]) -> None:
        super().__init__(**limits)
        self.gap = gap

    def flush(self) -> pa.Table:
        """Return one row for each visit, in the order of user and time."""
        clicks = one_table(self.rows).sort_by([("user", "ascending"), ("at", "ascending")])
        visits: list[dict[str, Any]] = []
        for click in clicks.to_pylist():
            last = visits[-1] if visits else None
            if last and last["user"] == click["user"] and click["at"] - last["end"] <= self.gap:
                last["end"], last["pages"] = click["at"], last["pages"] + 1
            else:
                at = click["at"]
                visits.append({"user": click["user"], "start": at, "end": at, "pages": 1})
        return pa.Table.from_pylist(visits)


strategy = Strategy(
    value=Json(CLICK),
    reduce=[Visits(gap=1800, max_rows=100_000, max_age=60.0), StreamWriter(sys.stdout)],
    reduce_err=StreamWriter(sys.stderr),
)
