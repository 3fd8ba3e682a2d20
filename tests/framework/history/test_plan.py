"""The plan of a backfill: where the history begins and ends, and what a group has committed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kmr.delivery.announcement import (
    Announcement,
    BackfillRange,
    Closed,
    Generation,
    LookBack,
    awaits_history,
    history_group,
)
from kmr.errors import ConsumerError
from kmr.history.plan import BackfillPlan
from kmr.kafka.consumer import CommitOffset
from kmr.record import TopicPartition

if TYPE_CHECKING:
    from tests.framework.history.conftest import Past

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
PLAN = BackfillPlan("g", 7, {P0: BackfillRange(10, 100), P1: BackfillRange(0, 0)})


def at(offset: int, generation: int = 7) -> CommitOffset:
    return CommitOffset(offset, Generation(generation).metadata)


async def test_a_time_chooses_where_the_history_begins_and_ends(past: Past) -> None:
    for hour in range(4):
        await past.send(0, 100, timestamp=1_767_225_600_000 + hour * 3_600_000)
    done = await past.run("--from", "2026-01-01T01:00Z", "--until", "2026-01-01T03:00Z")
    assert done.code == 0, done.err
    assert past.found() == [row for row in past.expected() if 100 <= row[1] < 300]
    assert {entry.offset for entry in (await past.committed(past.group)).values()} == {300, 0}


async def test_offsets_must_be_in_the_log_of_every_partition(past: Past) -> None:
    await past.send(0, 10)
    assert "must name every partition" in (await past.run("--from", "0:5")).err
    beyond = await past.run("--until", "0:11,1:0,2:0")
    assert "--until: t-0 has offsets 0 to 10 (exclusive), not 11" in beyond.err
    after = await past.run("--from", "0:9,1:0,2:0", "--until", "0:8,1:0,2:0")
    assert "t-0: --from is offset 9, after the cut at 8" in after.err


def test_a_plan_is_found_in_the_commits_of_its_own_group() -> None:
    assert history_group("g") == "g.backfill"
    assert BackfillPlan.of_commits("g", PLAN.beginning, ["t"]) == PLAN
    assert BackfillPlan.of_commits("g", PLAN.beginning, ["u"]) is None
    assert BackfillPlan.of_commits("g", PLAN.cut, ["t"]) is None


def test_what_is_done_follows_from_the_commits() -> None:
    assert PLAN.offsets == 90
    assert PLAN.done({}) == {P0: 0, P1: 0}
    assert PLAN.done({P0: at(40), P1: at(0)}) == {P0: 30, P1: 0}
    assert PLAN.done({P0: at(200)}) == {P0: 90, P1: 0}


async def test_a_plan_without_a_record_is_refused(past: Past) -> None:
    await past.send(0, 10, timestamp=1_767_225_600_000)
    for bound in (("--from", "2027-01-01T00:00Z"), ("--until", "2020-01-01T00:00Z")):
        refused = await past.run(*bound)
        assert refused.code == 1
        assert "no partition has a record from --from on and before the cut" in refused.err
    assert await past.committed(past.history) == {}


def test_records_of_open_windows_are_read_and_handed_over_with_what_is_closed() -> None:
    plan = replace(PLAN, remembers=True)
    waiting = plan.cut
    assert all(awaits_history(at, entry) for at, entry in waiting.items())
    assert plan.is_adopted(waiting)
    closed = Closed(99, 5_000_000, "10s", 7)
    done = {
        P0: CommitOffset(60, Generation(7, LookBack(50, 9), PLAN.histories[P0], closed).metadata),
        P1: plan.beginning[P1],
    }
    assert plan.done(done) == {P0: 90, P1: 0}
    handed = plan.hand_over(done, waiting)
    assert handed == {
        P0: CommitOffset(60, Generation(7, LookBack(50, 9), closed=closed).metadata),
        P1: CommitOffset(0, Generation(7).metadata),
    }
    assert plan.is_adopted(handed)
    assert plan.hand_over(done, handed) == {}
    announced = Announcement(60, 80, "token", "writer", generation=7, history=PLAN.histories[P0])
    with pytest.raises(ConsumerError, match="t-0: the history has announced rows"):
        plan.hand_over(done | {P0: CommitOffset(60, announced.metadata)}, waiting)


def test_a_group_that_does_not_begin_at_its_cut_is_refused() -> None:
    assert not PLAN.is_adopted({})
    assert PLAN.is_adopted(PLAN.cut)
    assert PLAN.is_adopted({P0: at(120), P1: at(3)})
    for wrong in ({P0: at(99), P1: at(0)}, {P0: at(100, 0), P1: at(0)}, {P0: at(100)}):
        with pytest.raises(ConsumerError, match="does not begin at the cut of its backfill"):
            PLAN.is_adopted(wrong)
