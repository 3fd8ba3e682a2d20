"""Lingering: an idle worker, one of few partitions and one with a backlog do not; a busy wide one does."""

from __future__ import annotations

from kmr.intake.linger import LONGEST, Linger
from kmr.record import Batch
from kmr.testing import batch_of


class Load:
    """A thread that has worked for some share of the time."""

    def __init__(self, share: float) -> None:
        self.share, self.now, self.worked = share, 0.0, 0.0
        self.linger = Linger(lambda: self.worked, lambda: self.now)

    def poll(self, *batches: Batch, partitions: int = 100) -> float:
        """Return the pause after some polls in a second."""
        for _ in range(10):
            self.now += 0.1
            self.worked += 0.1 * self.share
            pause = self.linger.after(batches, partitions)
        return pause


LITTLE = batch_of("t", 0, 0, [b"x"])
LARGE = Batch("t", 0, 0, 9, nbytes=1 << 20, load=lambda: LITTLE.records)


def test_a_worker_that_is_idle_takes_a_record_at_once() -> None:
    assert Load(0.2).poll(LITTLE) == 0.0


def test_the_busier_a_worker_of_many_partitions_is_the_longer_it_lets_them_gather() -> None:
    half, full = Load(0.5).poll(LITTLE), Load(1.0).poll(LITTLE)
    assert 0.0 < half < full == LONGEST


def test_few_partitions_and_a_backlog_do_not_wait() -> None:
    assert Load(1.0).poll(LITTLE, partitions=31) == 0.0
    assert Load(1.0).poll(LARGE) == 0.0


def test_a_worker_that_becomes_idle_does_not_wait_any_longer() -> None:
    load = Load(1.0)
    assert load.poll(LITTLE) == LONGEST
    load.share = 0.1
    assert load.poll(LITTLE) == load.linger.seconds == 0.0
