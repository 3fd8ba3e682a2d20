"""A crash during a swap leaves the old segments or the new one."""

from pathlib import Path

import pytest

from kmr.broker.log.compaction import (
    Compaction,
    plan_compaction,
)
from kmr.broker.log.swap import swap_bounds

from .compacting import CONFIG, NOW, Open, compact, pairs, put


@pytest.mark.parametrize("crash", ["before the rename", "after it", "half deleted", "damaged"])
def test_a_crash_leaves_the_old_segments_or_the_new_one(open_log: Open, crash: str) -> None:
    log = open_log(CONFIG)
    for n in range(3):
        put(log, ("a", str(n)), ("b", str(n)))
        log.roll()
    put(log, ("c", "active"))
    plan = plan_compaction(log, NOW)
    assert plan is not None
    log.checkpoint()
    compaction = Compaction(plan)
    compaction.read_keys()
    assert compaction.rewrite(next(plan.groups)) is not None
    old, new = set(range(7)), {4, 5, 6}
    source = log.directory / f"{0:020}.log.tmp"
    swap = log.directory / f"{0:020}-{6:020}.log.swap"
    if crash != "before the rename":
        source.rename(swap)
    if crash == "half deleted":
        (log.directory / f"{2:020}.log").unlink()
    if crash == "damaged":
        swap.write_bytes(swap.read_bytes()[:-1])
    recovered = open_log(CONFIG, clean=False)
    expected = old if crash in ("before the rename", "damaged") else new
    assert set(pairs(recovered)) == expected
    assert not recovered.recovery.lost_data
    assert not {".tmp", ".swap"} & {path.suffix for path in log.directory.iterdir()}
    while compact(recovered):
        pass
    recovered.roll()
    compact(recovered)
    assert set(pairs(recovered)) == new


def test_the_name_of_a_swap_file_has_its_bounds(tmp_path: Path) -> None:
    assert swap_bounds(tmp_path / f"{5:020}-{9:020}.log.swap") == (5, 9)
    assert swap_bounds(tmp_path / f"{5:020}.log") is None
    assert swap_bounds(tmp_path / "5-9.log.swap") is None
