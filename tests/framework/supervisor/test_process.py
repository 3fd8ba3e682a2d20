"""The process of a worker, as its supervisor sees it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio.lowlevel import checkpoint

from kmr.supervisor.messages import Job, Served
from kmr.supervisor.process import COMMAND, WorkerProcess
from tests.framework.supervisor.plan import WORKER

if TYPE_CHECKING:
    from pathlib import Path


HASTY = """
import socket, sys
channel = socket.socket(fileno=int(sys.argv[1]))
channel.recv(1)
channel.sendall(b'{"type": "failed", "reason": "wrong usage"}' + bytes([10]))
sys.exit(2)
"""


async def run(directory: Path, end: str, *, stop: bool = False) -> WorkerProcess:
    """Run a process to its end; with `stop`, stop it when it has joined."""
    journal = directory / "journal"
    job = Job(0, None, None, {"plan": [[end]], "journal": str(journal)}, leaves=False)
    process = await WorkerProcess.start(job, (sys.executable, "-I", "-S", "-c", WORKER))

    async def serve(path: str) -> Served:
        return Served(None, f"not {path == str(journal)}")

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(process.run, serve)
            process.admit()
            if stop:
                await process.joined.wait()
                process.stop()
            await process.ended.wait()
    return process


async def nothing_is_served(path: str) -> Served:
    raise AssertionError(path)


async def test_a_process_that_says_why_it_fails_ends_for_that_reason(tmp_path: Path) -> None:
    process = await run(tmp_path, "breaks")
    assert (process.code, process.ending) == (1, "broken 0")


async def hasty() -> WorkerProcess:
    """A process that has ended, while the event loop has read nothing of what it said."""
    job = Job(0, None, None, {}, leaves=False)
    process = await WorkerProcess.start(job, (sys.executable, "-I", "-S", "-c", HASTY))
    with suppress(ProcessLookupError):  # it has ended, and the event loop knows it
        end = os.pidfd_open(process.pid)
        select.select([end], [], [], 30)
        os.close(end)
    return process


async def test_the_reason_of_a_process_that_has_not_read_all_is_heard() -> None:
    process = await hasty()
    for _ in range(10):  # its message and the reset are received before anything reads them
        await checkpoint()
    with anyio.fail_after(60):
        await process.run(nothing_is_served)
    assert (process.code, process.ending) == (2, "wrong usage")


async def test_the_reason_is_heard_after_the_time_to_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kmr.supervisor.process._LAST_WORDS_TIMEOUT", 0.0)
    asks = 'channel.sendall(b\'{"type": "serve", "path": ""}\' + bytes([10]))\nchannel.sendall('
    asking = HASTY.replace("channel.sendall(", asks, 1)
    job = Job(0, None, None, {}, leaves=False)
    process = await WorkerProcess.start(job, (sys.executable, "-I", "-S", "-c", asking))
    busy = iter([anyio.sleep_forever])

    async def serve(path: str) -> Served:
        for wait in busy:  # the first message keeps the supervisor busy for ever
            await wait()
        return Served(None, path)

    with anyio.fail_after(60):
        await process.run(serve)
    assert (process.code, process.ending) == (2, "wrong usage")


async def test_the_reason_of_a_process_that_is_told_something_after_its_end_is_heard() -> None:
    process = await hasty()
    process.admit()
    with anyio.fail_after(60):
        await process.run(nothing_is_served)
    assert (process.code, process.ending) == (2, "wrong usage")


async def test_a_process_that_is_killed_names_the_signal(tmp_path: Path) -> None:
    process = await run(tmp_path, "killed")
    assert (process.code, process.ending) == (-signal.SIGKILL, "killed by signal 9 (Killed)")


async def test_a_process_that_ends_without_a_word_names_its_code(tmp_path: Path) -> None:
    process = await run(tmp_path, "late", stop=True)
    assert (process.code, process.ending) == (3, "ended with exit code 3")
    process.stop()  # it has ended: nothing happens


async def test_a_process_that_asks_for_a_directory_is_answered(tmp_path: Path) -> None:
    await run(tmp_path, "serves", stop=True)
    assert "0 served not True" in (tmp_path / "journal").read_text().splitlines()


def test_a_process_that_is_started_so_can_start_those_of_its_executor() -> None:
    *interpreter, code = COMMAND
    assert code.startswith("from kmr.supervisor.supervised import main;")
    code = "import os, anyio, anyio.to_process as each; anyio.run(each.run_sync, os.getpid)"
    done = subprocess.run([*interpreter, code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


async def test_a_hangup_does_not_end_a_process_that_begins(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    job = Job(0, None, None, {"plan": [["runs"]], "journal": str(journal)}, leaves=False)
    begin = f"import signal, time\ntime.sleep(0.2)\n{WORKER}"
    process = await WorkerProcess.start(job, (sys.executable, "-I", "-S", "-c", begin))
    os.kill(process.pid, signal.SIGHUP)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(process.run, nothing_is_served)
            process.admit()
            await process.joined.wait()
            process.stop()
    assert process.code == 0


async def test_a_process_ends_and_leaves_nothing_open_when_its_supervisor_is_cancelled(
    tmp_path: Path,
) -> None:
    journal = tmp_path / "journal"
    job = Job(0, None, None, {"plan": [["runs"]], "journal": str(journal)}, leaves=False)
    process = await WorkerProcess.start(job, (sys.executable, "-I", "-S", "-c", WORKER))
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(process.run, nothing_is_served)
            process.admit()
            await process.joined.wait()
            tasks.cancel_scope.cancel()
    with pytest.raises(ProcessLookupError):  # it has been waited for
        os.kill(process.pid, 0)
