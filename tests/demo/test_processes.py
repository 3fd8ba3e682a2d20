"""The demo's child processes, and what those start."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from demo import processes
from demo.processes import Child, ChildFailed, Children, give_up_after, session_members

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

# A child of the child, in a group of its own, that does not obey SIGTERM: as Spark's Python processes.
GRANDCHILD = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.setpgid(0, 0)
print("ready", flush=True)
time.sleep(600)
"""
CHILD = f"""
import subprocess, sys
started = subprocess.Popen([sys.executable, "-c", {GRANDCHILD!r}])
sys.exit(started.wait())
"""


@asynccontextmanager
async def family(tmp_path: Path) -> AsyncIterator[Child]:
    """A child whose own child runs."""
    process = await anyio.open_process([sys.executable, "-c", CHILD], start_new_session=True)
    child = Child("family", process, tmp_path / "log", patience=30)
    async with process:
        assert process.stdout is not None
        try:
            await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", 100)
            assert len(session_members(process.pid)) == 2
            yield child
            assert session_members(process.pid) == []
        finally:
            child.kill()


async def test_what_a_child_has_started_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LEFT_TIMEOUT", 0.1)
    with anyio.fail_after(60):
        async with family(tmp_path) as child:
            assert await child.stop() == -signal.SIGTERM


async def test_a_kill_ends_a_child_and_what_it_has_started(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with family(tmp_path) as child:
            child.kill()
            assert await child.stop() == -signal.SIGKILL


async def test_the_error_of_a_failed_child_has_the_end_of_its_log(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with Children(tmp_path) as children:
            child = await children.start("wrong", "clickhouse", "nonsense")
            await child.wait()
            with pytest.raises(
                ChildFailed, match=r"wrong ended with exit code \d+:(.|\n)*nonsense"
            ):
                children.check()


async def test_a_wait_that_is_too_long_says_for_what() -> None:
    too_long = pytest.raises(ChildFailed, match="a guest, 0 s long")
    with too_long, give_up_after(0, "a guest"):
        await anyio.sleep_forever()


def test_the_members_of_a_session_are_its_processes() -> None:
    assert os.getpid() in session_members(os.getsid(0))
    assert session_members(0x7FFFFFFF) == []
