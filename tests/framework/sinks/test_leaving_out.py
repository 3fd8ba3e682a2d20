"""Values that a sink leaves out are logged once, and counted each time."""

from __future__ import annotations

import pyarrow as pa
from structlog.testing import capture_logs

from kmr.columns.fitted import Fitted
from kmr.sinks.leaving_out import LeavingOut

ROWS = pa.table({"a": [1]})


def test_names_are_said_once_and_values_counted_each_time() -> None:
    counted: list[tuple[str, str, int]] = []
    leaving_out = LeavingOut("reduce-1", lambda *each: counted.append(each))
    with capture_logs() as logs:
        for _ in range(2):
            leaving_out.of("t", Fitted(ROWS, {}, left_out={"x": 2, "y": 3}, cut={"at": 1}))
        leaving_out.of("t", Fitted(ROWS, {}, left_out={"z": 1}))
    assert [(log["columns"], log["destination"]) for log in logs] == [
        (["x", "y"], "t"),
        (["at"], "t"),
        (["z"], "t"),
    ]
    once = [("reduce-1", "fields", 5), ("reduce-1", "digits", 1)]
    assert counted == [*once, *once, ("reduce-1", "fields", 1)]


def test_nothing_is_said_of_rows_that_lose_nothing() -> None:
    with capture_logs() as logs:
        LeavingOut().of("t", Fitted(ROWS, {}))
    assert logs == []
