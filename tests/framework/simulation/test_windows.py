"""The rules for the rows of windows."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003  msgspec reads it
from typing import Any

import msgspec
import numpy as np
import pytest

from kmr import Json, Record, Strategy, Window, map_record
from kmr.mapping.functions import apply
from kmr.memory.window_model import WindowsOfLog, with_offsets
from kmr.record import TopicPartition
from kmr.simulation.windows import WindowChecks
from kmr.sinks import ClickHouseWriter, StreamWriter
from kmr.testing import batch_of, simulate

P0 = TopicPartition("t", 0)


@map_record
def rows(record: Record) -> dict[str, str]:
    return {"id": str(record.value)}


@pytest.mark.parametrize(("idle", "rests"), [(3.0, False), (None, True)])
def test_a_partition_that_lost_records_is_done_when_the_wall_clock_has_closed_its_windows(
    idle: float | None, *, rests: bool
) -> None:
    given = Window(5, time="timestamp", late="drop", idle=idle, columns={"n": ("*", "count")})
    window = with_offsets(Strategy(map=rows, reduce=[given, ClickHouseWriter("t")])).window
    assert window is not None
    batch = batch_of("t", 0, 0, [b"a", b"b"])
    mapped = apply(rows, batch.records)
    world: Any = None
    windows = {P0: WindowsOfLog(window, [(batch, mapped)])}
    checks = WindowChecks(world, windows, {P0: np.ones(2, np.int64)}, once=True)
    checks.forgets(P0)
    assert checks.rests(P0, 2, 1) == rests
    assert checks.rests(P0, 2, 2)
    assert checks.waits(P0, 2).all() == rests


class Hit(msgspec.Struct):
    ts: datetime | None


def simulated(times: list[str | None], reduce_err: StreamWriter | None = None) -> None:
    """Simulate hits of these times; raises if the worker or the rules find a fault."""
    minutes = Window("1m", time="ts", late="drop", columns={"n": ("*", "count")})
    reduce = [minutes, ClickHouseWriter("t")]
    strategy = Strategy(value=Json(Hit), reduce=reduce, reduce_err=reduce_err)
    simulate(strategy, [{"ts": time} for time in times], schedules=5)


def test_a_time_of_any_day_is_not_too_far_ahead_of_the_date_of_simulated_records() -> None:
    simulated([f"2031-05-01T12:0{minute}:00Z" for minute in range(8)])


def test_letters_that_are_cut_for_the_error_sink_count_as_many_bytes_as_before() -> None:
    simulated([None] * 20, StreamWriter("stdout"))
