"""A supervisor of real processes: restarts, giving up, drains, rolling restarts."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest
from structlog.testing import capture_logs

from kmr.embedded import server
from kmr.errors import SinkError
from kmr.supervisor import supervised_worker
from kmr.supervisor.messages import Served
from kmr.supervisor.supervisor import Directories
from tests.framework.supervisor.plan import Planned

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path
    from typing import Self


@pytest.fixture(autouse=True)
def _restarts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised_worker, "_FIRST_DELAY", 0.01)


class Run:
    """The outcome of a supervisor, when it has ended."""

    code = -1
    message = ""


@asynccontextmanager
async def running(planned: Planned) -> AsyncIterator[Run]:
    """Run a supervisor; shut it down at the end of the block, and wait for its end."""
    run = Run()

    async def supervise() -> None:
        run.code, run.message = await planned.supervisor.run()

    with anyio.fail_after(180):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(supervise)
            yield run
            planned.supervisor.shutdown("the test is over")


async def outcome_of(planned: Planned) -> tuple[int, str]:
    """Run a supervisor until it ends without a shutdown."""
    with anyio.fail_after(180):
        return await planned.supervisor.run()


async def test_a_signal_drains_all_workers_and_ends_with_zero(tmp_path: Path) -> None:
    planned = Planned(tmp_path, ["runs"], ["runs"], ["runs"])
    async with running(planned) as run:
        for index in range(3):
            await planned.until(f"{index} joined")
    assert (run.code, run.message) == (0, "")
    assert sorted(line for line in planned.lines() if "stops" in line) == [
        "0 stops",
        "1 stops",
        "2 stops",
    ]


async def test_a_worker_that_was_killed_is_started_again_and_no_other(tmp_path: Path) -> None:
    planned = Planned(tmp_path, ["killed", "breaks", "done", "runs"], ["runs"])
    async with running(planned) as run:
        await planned.until("1 joined")
        await planned.until("0 joined", 4)
    assert run.code == 0
    assert planned.lines().count("1 begins") == 1


async def test_a_worker_that_fails_too_often_ends_all_with_its_first_error(tmp_path: Path) -> None:
    planned = Planned(tmp_path, ["runs"], ["breaks"], worker_restarts=2)
    code, message = await outcome_of(planned)
    assert code == 1
    assert message == (
        "worker 1 has ended 3 times within 300 s (worker_restarts, worker_restart_period), at first: broken 0"
    )
    assert planned.lines().count("1 begins") == 3
    assert "0 stops" in planned.lines() or "0 joined" not in planned.lines()


async def test_a_failure_before_any_worker_has_joined_ends_all_at_once(tmp_path: Path) -> None:
    code, message = await outcome_of(Planned(tmp_path, ["fails"], ["fails"]))
    assert (code, message) == (1, "no such topic")


async def test_wrong_usage_is_not_tried_again(tmp_path: Path) -> None:
    planned = Planned(tmp_path, ["killed", "refused"], ["runs"])
    assert await outcome_of(planned) == (2, "wrong usage")


async def test_workers_that_have_caught_up_are_not_started_again(tmp_path: Path) -> None:
    planned = Planned(tmp_path, ["done"], ["killed", "done"], until_caught_up=True)
    assert await outcome_of(planned) == (0, "")
    assert planned.lines().count("0 begins") == 1


async def test_a_worker_whose_own_code_ends_it_has_not_caught_up(tmp_path: Path) -> None:
    planned = Planned(tmp_path, ["done"], ["exits"], until_caught_up=True, worker_restarts=1)
    code, message = await outcome_of(planned)
    assert code == 1
    assert "worker 1 has ended 2 times within 300 s" in message
    assert message.endswith("at first: ended with exit code 0")


async def test_a_worker_that_did_not_drain_in_time_is_named(tmp_path: Path) -> None:
    planned = Planned(tmp_path, ["runs"], ["late"])
    async with running(planned) as run:
        await planned.until("0 joined")
        await planned.until("1 joined")
    assert (run.code, run.message) == (3, "worker 1 did not drain within shutdown_deadline")


async def test_a_worker_that_hangs_is_killed_at_the_deadline_and_named(tmp_path: Path) -> None:
    planned = Planned(tmp_path, ["hangs"], ["runs"])
    async with running(planned):
        await planned.until("0 joined")
        await planned.until("1 joined")
        hanging, other = (worker.process for worker in planned.supervisor.workers)
        assert hanging is not None
        assert other is not None
        planned.supervisor.shutdown("SIGTERM")
        await planned.until("0 stops")
        await other.ended.wait()
        message = planned.supervisor.kill()
    assert message == (
        f"worker 0 (process {hanging.pid}) has not ended within shutdown_deadline (25 s) and was killed: "
        "records that it had not committed will be delivered again"
    )


async def test_a_worker_that_is_told_to_end_before_it_has_begun_is_no_failure(
    tmp_path: Path,
) -> None:
    planned = Planned(tmp_path, ["not begun"], ["runs"])
    async with running(planned) as run:
        await planned.until("0 joined")
        await planned.until("1 joined")
    assert run.code == 0


async def test_a_rolling_restart_ends_each_worker_only_when_its_successor_is_prepared(
    tmp_path: Path,
) -> None:
    planned = Planned(tmp_path, ["runs"], ["runs"])
    async with running(planned) as run:
        await planned.until("0 joined")
        await planned.until("1 joined")
        before = len(planned.lines())
        planned.supervisor.roll()
        await planned.until("1 joined", 2)
        rolled = planned.lines()[before:]
    assert run.code == 0
    each = ["begins", "prepared", "stops", "joined"]
    assert rolled == [f"{index} {step}" for index in range(2) for step in each]


async def test_a_rolling_restart_is_given_up_when_the_new_process_cannot_begin(
    tmp_path: Path,
) -> None:
    planned = Planned(tmp_path, ["runs", "never prepared", "runs"], ["runs"])
    async with running(planned) as run:
        await planned.until("0 joined")
        await planned.until("1 joined")
        planned.supervisor.roll()
        await planned.until("0 begins", 2)
        planned.supervisor.roll()
        await planned.until("1 joined", 2)
    assert run.code == 0
    of_first = [line for line in planned.lines() if line.startswith("0")]
    assert of_first == [
        *("0 begins", "0 prepared", "0 joined"),
        "0 begins",
        *("0 begins", "0 prepared", "0 stops", "0 joined"),
        "0 stops",
    ]


@pytest.mark.parametrize(
    ("end", "problem"), [("not live", "map hangs"), ("silent", "it does not answer")]
)
async def test_a_worker_that_hangs_is_killed_and_started_again_and_the_reason_is_told(
    tmp_path: Path, end: str, problem: str
) -> None:
    planned = Planned(tmp_path, [end, "runs"], ["runs"], worker_live_timeout=1.0)
    with capture_logs() as logs:
        async with running(planned) as run:
            await planned.until("0 joined", 2)
            await planned.until("1 joined")
    assert run.code == 0
    (ended,) = [each for each in logs if each["event"] == "a worker has ended"]
    assert re.fullmatch(
        rf"killed, because it was not live for \d+ s \(worker_live_timeout\): {problem}",
        ended["reason"],
    )
    assert "0 stops" in planned.lines()  # the second process, which was drained
    assert planned.lines().count("1 begins") == 1


async def test_workers_that_hang_again_and_again_end_all_with_the_reason(tmp_path: Path) -> None:
    planned = Planned(tmp_path, ["not live"], worker_live_timeout=1.0, worker_restarts=1)
    code, message = await outcome_of(planned)
    assert code == 1
    assert "worker 0 has ended 2 times within 300 s" in message
    assert message.endswith("map hangs")


class Engine:
    """A server that notes its starts and ends; the engine itself takes seconds."""

    events: list[str]

    def __init__(self, path: str) -> None:
        self.path = path
        self.url = f"http://{path}"

    async def __aenter__(self) -> Self:
        if "taken" in self.path:
            raise SinkError("in use by process 7")
        self.events.append(f"+{self.path}")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.events.append(f"-{self.path}")


async def test_a_directory_is_served_once_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("chdb", exc_type=ImportError)
    Engine.events = []
    monkeypatch.setattr(server, "EmbeddedClickHouse", Engine)
    async with Directories() as directories:
        assert await directories.serve("a") == Served("http://a")
        assert await directories.serve("b") == Served("http://b")
        assert await directories.serve("a") == Served("http://a")
        failed = await directories.serve("taken")
        assert failed == Served(None, "the supervisor cannot serve taken: in use by process 7")
        assert Engine.events == ["+a", "+b"]
    assert Engine.events == ["+a", "+b", "-b", "-a"]


async def test_a_rolling_restart_ends_where_a_new_process_did_not_join(tmp_path: Path) -> None:
    planned = Planned(tmp_path, ["runs", "fails", "runs"], ["runs"])
    async with running(planned) as run:
        await planned.until("0 joined")
        await planned.until("1 joined")
        planned.supervisor.roll()
        await planned.until("0 joined", 2)
        await anyio.sleep(0.5)  # the other one would begin at once
    assert run.code == 0
    assert planned.lines().count("1 begins") == 1
