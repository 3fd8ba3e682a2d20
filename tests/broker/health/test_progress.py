"""Tasks that stand still are found out."""

from broker.health.progress import STALL_SECONDS, Progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_task_stands_still_when_it_is_much_later_than_it_should_be() -> None:
    clock = Clock()
    progress = Progress(clock)
    assert progress.problem == "", "nothing is expected"
    beat = progress.expect("retention", 60)
    clock.now += 60 + STALL_SECONDS
    assert progress.problem == ""
    clock.now += 1
    assert progress.problem == f"retention has not moved for {STALL_SECONDS + 1:.0f} seconds"
    beat()
    assert progress.problem == ""


def test_every_task_that_stands_still_is_named() -> None:
    clock = Clock()
    progress = Progress(clock)
    progress.expect("retention", 60)
    alive = progress.expect("the syncing of logs", 1)
    progress.expect("compaction", 15)
    clock.now += 1000
    alive()
    assert progress.problem == (
        "retention has not moved for 940 seconds; compaction has not moved for 985 seconds"
    )
