"""The progress of a backfill."""

from __future__ import annotations

import math

import pytest
from rich.console import Console
from structlog.testing import capture_logs

from kmr.delivery.announcement import BackfillRange
from kmr.history.plan import BackfillPlan
from kmr.history.progress import LogLines, ProgressBars, most_behind
from kmr.observe.backfill import Pace
from kmr.record import TopicPartition

PARTITIONS = [TopicPartition("t", number) for number in range(20)]
PLAN = BackfillPlan("g", 7, {at: BackfillRange(0, 100) for at in PARTITIONS})
NOTHING = dict.fromkeys(PARTITIONS, 0)


def test_the_rate_is_that_of_the_last_minute() -> None:
    pace = Pace(10_000)
    assert math.isinf(pace.seconds_left)
    for second in range(121):
        pace.note(second * (10 if second <= 60 else 20) - (0 if second <= 60 else 600), second)
    assert pace.done == 1800
    assert pace.rate == pytest.approx(20)
    assert pace.seconds_left == pytest.approx(410)
    assert str(pace).startswith("20 records/s, ")


def test_partitions_with_the_most_left_come_first_and_those_that_are_done_never() -> None:
    done = NOTHING | {PARTITIONS[0]: 100, PARTITIONS[1]: 50}
    behind = most_behind(PLAN, done)
    assert len(behind) == 16
    assert behind[0] == (PARTITIONS[2], 100)
    assert most_behind(PLAN, dict.fromkeys(PARTITIONS, 100)) == []


def test_a_log_has_a_line_every_ten_seconds_and_one_at_the_end() -> None:
    with capture_logs() as logs, LogLines(PLAN) as lines:
        for second in range(12):
            lines.show(dict.fromkeys(PARTITIONS, second), float(second))
        lines.show(dict.fromkeys(PARTITIONS, 100), 12.5)
    assert [line["done"] for line in logs] == [0, 200, 2000]
    assert logs[-1]["records_left"] == {}


def test_a_terminal_has_a_bar_for_all_and_one_for_each_partition() -> None:
    console = Console(force_terminal=True, width=100, record=True)
    with ProgressBars(PLAN, console) as bars:
        bars.show(dict.fromkeys(PARTITIONS, 25), 0.0)
        bars.show(dict.fromkeys(PARTITIONS, 50), 10.0)
    shown = console.export_text()
    assert "1000/2000" in shown
    assert "t-0" in shown
    assert "50 records/s" in shown
