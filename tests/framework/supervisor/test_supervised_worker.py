"""What is known of one worker while its processes come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import anyio
import msgspec

from kmr.observe.failures import Failure
from kmr.supervisor.restarts import Restarts
from kmr.supervisor.slot import Slot
from tests.framework.cli.watched_worker import STUCK

if TYPE_CHECKING:
    from typing import Self

    import aiohttp

    from kmr.supervisor.process import WorkerProcess


class Process:
    """Of a process only what a slot looks at."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.url = "http://worker"
        self.serving = anyio.Event()


class Session:
    """Answers like a worker's server, or not at all."""

    def __init__(self) -> None:
        self.settled: int | None = 50
        self.failures: tuple[Failure, ...] = ()

    def get(self, *_: object, **__: object) -> Session:
        return self

    async def __aenter__(self) -> Self:
        if self.settled is None:
            raise TimeoutError
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def read(self) -> bytes:
        failed = sum(each.count for each in self.failures)
        return msgspec.json.encode(
            msgspec.structs.replace(
                STUCK, settled=self.settled, failed=failed, failures=self.failures
            )
        )


def begin(slot: Slot, pid: int, *, serving: bool = True) -> None:
    process = Process(pid)
    if serving:
        process.serving.set()
    slot.begin(cast("WorkerProcess", process))


async def test_counts_of_a_worker_never_go_back() -> None:
    slot, session = Slot(0, Restarts(5, 300)), Session()
    asking = cast("aiohttp.ClientSession", session)
    begin(slot, 7)
    await slot.ask(asking)
    assert slot.summary().settled == 50
    slot.end()
    assert slot.summary().settled == 50
    begin(slot, 8)
    session.settled = 3
    await slot.ask(asking)
    assert (slot.summary().settled, slot.summary().pid) == (53, 8)


async def test_failures_outlive_the_process_and_its_end_is_one_of_them() -> None:
    slot, session = Slot(3, Restarts(5, 300)), Session()
    asking = cast("aiohttp.ClientSession", session)
    session.failures = (Failure(5.0, "record failed", "map", "no number", 2),)
    begin(slot, 7)
    await slot.ask(asking)
    slot.end()
    slot.note_end("killed by SIGKILL")
    session.failures = (Failure(6.0, "record failed", "map", "no date"),)
    begin(slot, 8)
    await slot.ask(asking)
    assert slot.failed == 3
    found = [(each.kind, each.reason, each.count, each.worker) for each in slot.failures()]
    assert found == [
        ("worker ended", "killed by SIGKILL", 1, 3),
        ("record failed", "no date", 1, 3),
        ("record failed", "no number", 2, 3),
    ]


async def test_a_process_that_begins_is_live_and_not_ready() -> None:
    slot = Slot(0, Restarts(5, 300))
    begin(slot, 7, serving=False)
    await slot.ask(cast("aiohttp.ClientSession", Session()))
    summary = slot.summary()
    assert (summary.live, summary.ready, summary.state) == (True, False, "starting")


async def test_a_process_that_does_not_answer_is_not_live() -> None:
    slot, session = Slot(0, Restarts(5, 300)), Session()
    begin(slot, 7)
    session.settled = None
    await slot.ask(cast("aiohttp.ClientSession", session))
    summary = slot.summary()
    assert (summary.live, summary.problem) == (False, "process 7 does not answer")


async def test_a_worker_without_a_process_says_why_and_is_live() -> None:
    slot = Slot(0, Restarts(5, 300))
    slot.problem = "killed; restarts in 2 s"
    summary = slot.summary()
    assert (summary.live, summary.ready) == (True, False)
    assert (summary.pid, summary.problem) == (None, "killed; restarts in 2 s")
