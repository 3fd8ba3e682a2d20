"""When a log is compacted, up to where, and what stops a pass."""

from dataclasses import replace

import pytest

from broker.log.compaction import Compaction, Stopped
from broker.log.compaction_plan import plan_compaction
from broker.log.errors import LogCorrupt

from .compacting import CONFIG, NOW, Open, compact, log_files, pairs, put

# -- when


def test_compaction_waits_until_enough_is_new(open_log: Open) -> None:
    log = open_log(replace(CONFIG, min_cleanable_dirty_ratio=0.5))
    for n in range(8):
        put(log, (f"k{n}", "x"))
    log.roll()
    assert compact(log)
    for n in range(9):
        put(log, (f"n{n}", "x"))
        log.roll()
        assert compact(log) == (n == 8), n


def test_records_stay_as_they_are_for_the_lag(open_log: Open) -> None:
    log = open_log(replace(CONFIG, min_compaction_lag_ms=100))
    put(log, ("a", "1"))
    log.roll()
    put(log, ("a", "2"), timestamp=NOW + 50)
    log.roll()
    assert not compact(log, NOW + 99)
    compact(log, NOW + 149)
    assert sorted(pairs(log)) == [0, 1], "the newer one still has to wait"
    compact(log, NOW + 150)
    assert sorted(pairs(log)) == [1]


def test_old_records_are_compacted_however_few_there_are(open_log: Open) -> None:
    config = replace(CONFIG, min_cleanable_dirty_ratio=0.9, max_compaction_lag_ms=100)
    log = open_log(config)
    for n in range(8):
        put(log, (f"k{n}", "x"), timestamp=NOW)
    log.roll()
    assert compact(log)
    put(log, ("k0", "y"), timestamp=NOW)
    log.roll()
    assert not compact(log, NOW + 100)
    assert compact(log, NOW + 101)
    assert 0 not in pairs(log)


def test_the_active_segment_is_closed_when_its_records_are_too_old(open_log: Open) -> None:
    log = open_log(CONFIG)
    put(log, ("a", "1"))
    log.roll_if_older(NOW)
    assert len(log_files(log)) == 1
    log.roll_if_older(NOW + 1)
    assert len(log_files(log)) == 2


def test_more_keys_than_there_is_memory_for_take_several_passes(open_log: Open) -> None:
    log = open_log(CONFIG)
    for n in range(20):
        put(log, (f"k{n % 10}", str(n)))
    log.roll()
    passes = 0
    while compact(log, max_keys=4):
        passes += 1
    assert passes == 5
    assert pairs(log) == {n: (f"k{n % 10}", str(n)) for n in range(10, 20)}


def test_a_pass_gives_up_when_its_segments_are_deleted_meanwhile(open_log: Open) -> None:
    log = open_log(CONFIG)
    put(log, ("a", "1"), ("a", "2"))
    log.roll()
    put(log, ("a", "3"))
    plan = plan_compaction(log, NOW)
    assert plan is not None
    log.checkpoint()
    compaction = Compaction(plan)
    compaction.read_keys()
    (group,) = plan.groups
    rewritten = compaction.rewrite(group)
    log.truncate_start(2)
    assert rewritten is not None
    assert not log.put_in_place(rewritten)
    assert sorted(pairs(log)) == [2]
    assert [path.name for path in log.directory.glob("*.tmp")] == []


def test_a_pass_stops_when_it_is_told(open_log: Open) -> None:
    log = open_log(CONFIG)
    put(log, ("a", "1"), ("a", "2"))
    log.roll()
    plan = plan_compaction(log, NOW)
    assert plan is not None
    with pytest.raises(Stopped):
        Compaction(plan, stopped=lambda: True).read_keys()
    stop: list[bool] = []
    compaction = Compaction(plan, stopped=lambda: bool(stop))
    compaction.read_keys()
    stop.append(True)
    with pytest.raises(Stopped):
        compaction.rewrite(next(plan.groups))
    assert [path.name for path in log.directory.glob("*.tmp")] == []
    assert sorted(pairs(log)) == [0, 1]


def test_a_damaged_segment_is_left_alone(open_log: Open) -> None:
    log = open_log(CONFIG)
    put(log, ("a", "1"))
    put(log, ("a", "2"))
    log.roll()
    path = log_files(log)[0]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(LogCorrupt):
        compact(log)
    assert path.read_bytes() == data
