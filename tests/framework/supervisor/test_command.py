"""A supervisor as a process: signals and its last resort. Its workers are planned ones."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import anyio
import msgspec

from tests.framework.supervisor.plan import WORKER, Planned

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from anyio.abc import Process

COMMAND = """
import json, sys
from kmr.settings import Settings
from kmr.supervisor import command, supervisor

flags = json.loads(sys.argv[1])
settings = Settings.load(flags={**json.loads(sys.argv[2]), "topics": "t", "group": "g", "workers": 2})
worker = (sys.executable, "-I", "-S", "-c", sys.argv[3])
command.Supervisor = lambda *given: supervisor.Supervisor(*given, command=worker)
sys.exit(command.run_workers(settings, None, flags))
"""


async def start(directory: Path, *plan: Sequence[str], settings: str = "{}") -> Process:
    """Start a supervisor with two workers, and wait until both have joined."""
    planned = Planned(directory, *plan)
    flags = msgspec.json.encode({"plan": plan, "journal": str(planned.journal)}).decode()
    process = await anyio.open_process(
        [sys.executable, "-c", COMMAND, flags, settings, WORKER],
        stdout=subprocess.DEVNULL,
    )
    for index in range(2):
        await planned.until(f"{index} joined")
    return process


async def errors_of(process: Process) -> str:
    """Return what a process writes to stderr until its end."""
    assert process.stderr is not None
    with anyio.fail_after(60):
        return b"".join([chunk async for chunk in process.stderr]).decode()


async def test_a_worker_that_hangs_ends_with_the_supervisor_at_its_deadline(tmp_path: Path) -> None:
    process = await start(tmp_path, ["runs"], ["hangs"], settings='{"shutdown_deadline": "300ms"}')
    process.send_signal(signal.SIGTERM)
    errors = await errors_of(process)
    assert await process.wait() == 3
    assert "kmr: worker 1 (process" in errors
    assert "has not ended within shutdown_deadline (0.3 s) and was killed" in errors


async def test_sighup_rolls_and_sigterm_drains(tmp_path: Path) -> None:
    process = await start(tmp_path, ["runs"], ["runs"])
    process.send_signal(signal.SIGHUP)
    planned = Planned(tmp_path)
    await planned.until("1 joined", 2)
    process.send_signal(signal.SIGTERM)
    await errors_of(process)
    assert await process.wait() == 0
    assert planned.lines().count("0 stops") == 2
