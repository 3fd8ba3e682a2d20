import threading

import pytest

from kmr.broker.log.disk_work import DiskWork, do_in_thread, do_now


class Change:
    """A change that keeps the threads of its parts."""

    def __init__(self, *, fails: bool = False) -> None:
        self.own: list[int] = []
        self.slow: list[int] = []
        self._fails = fails

    def steps(self) -> DiskWork[str]:
        for _ in range(2):
            self.own.append(threading.get_ident())
            try:
                yield self._slow
            except OSError:
                return "failed"
        return "done"

    def _slow(self) -> None:
        self.slow.append(threading.get_ident())
        if self._fails:
            raise OSError


async def test_only_the_slow_parts_run_in_another_thread() -> None:
    change = Change()
    assert await do_in_thread(change.steps()) == "done"
    assert set(change.own) == {threading.get_ident()}
    assert threading.get_ident() not in change.slow
    assert len(change.slow) == 2


def test_everything_can_be_done_in_one_thread() -> None:
    change = Change()
    assert do_now(change.steps()) == "done"
    assert change.own == change.slow == [threading.get_ident()] * 2


async def test_a_failure_is_raised_where_the_part_was_yielded() -> None:
    assert do_now(Change(fails=True).steps()) == "failed"
    assert await do_in_thread(Change(fails=True).steps()) == "failed"


async def test_a_failure_that_is_not_handled_leaves() -> None:
    def steps() -> DiskWork[None]:
        yield [].pop

    with pytest.raises(IndexError):
        do_now(steps())
    with pytest.raises(IndexError):
        await do_in_thread(steps())
