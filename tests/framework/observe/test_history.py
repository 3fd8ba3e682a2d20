"""An hour of figures: rates, sums, the oldest goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import msgspec

from kmr.observe.health import HealthServer
from kmr.observe.history import STEP, HistoryAnswer, StatusHistory
from kmr.observe.metrics import Metrics
from kmr.observe.status import PartitionStatus, WorkerStatus
from tests.framework.observe.test_health import RUNNING

if TYPE_CHECKING:
    import pytest


async def status() -> WorkerStatus:
    return RUNNING


def after(seconds: float, **changes: object) -> WorkerStatus:
    return msgspec.structs.replace(RUNNING, uptime=RUNNING.uptime + seconds, **changes)


def noted(*statuses: WorkerStatus) -> StatusHistory:
    history = StatusHistory(status)
    for at, each in enumerate(statuses):
        history.note(each, at * STEP, 1_000.0 + at * STEP)
    return history


def test_a_sample_has_the_rates_of_its_step_and_the_figures_of_its_end() -> None:
    then = after(5, consumed=59, settled=30, failed=2, repeated=1, inflight_bytes=70)
    [sample] = noted(RUNNING, then).past().samples
    assert (sample.time, sample.consumed, sample.settled) == (1_005.0, 10.0, 5.0)
    assert (sample.lag, sample.inflight_bytes) == (5, 70)
    assert (sample.failed, sample.repeated) == (2, 1)


def test_lag_is_unknown_while_it_is_unknown_of_one_partition() -> None:
    unknown = PartitionStatus("flights", 1, None, None, None, None, None, paused=False)
    partitions = (*RUNNING.partitions, unknown)
    now = after(5, partitions=partitions)
    assert [each.lag for each in noted(RUNNING, now).past().samples] == [None]


def test_counts_that_begin_anew_are_no_negative_rate() -> None:
    [sample] = noted(RUNNING, after(5, consumed=0, settled=0)).past().samples
    assert (sample.consumed, sample.settled) == (0, 0)


def test_an_hour_is_kept() -> None:
    history = noted(*(after(5 * at) for at in range(900)))
    past = history.past()
    assert len(past.samples) * past.step == 3_600
    assert past.samples[-1].time == 1_000 + 899 * STEP
    newest = history.past(after=past.samples[-3].time)
    assert newest.samples == past.samples[-2:]
    assert history.past(after=past.samples[-1].time) == HistoryAnswer(STEP, ())


async def test_samples_are_taken_while_the_server_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kmr.observe.history.STEP", 0.001)
    three = anyio.Event()
    taken = 0

    def now() -> WorkerStatus:
        nonlocal taken
        taken += 1
        if taken == 3:
            three.set()
        return RUNNING

    async with HealthServer("127.0.0.1", 0, now, Metrics()):
        with anyio.fail_after(60):
            await three.wait()
    ended_with = taken
    await anyio.lowlevel.checkpoint()
    assert taken == ended_with
