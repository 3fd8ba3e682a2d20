"""The rules for the rows of windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kmr import Record, Strategy, Window, map_record
from kmr.mapping.functions import apply
from kmr.memory.window_model import WindowsOfLog, with_offsets
from kmr.record import TopicPartition
from kmr.simulation.windows import WindowChecks
from kmr.sinks import ClickHouseWriter
from kmr.testing import batch_of

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
