"""Faults of several workers under one command: single ones are killed, all are replaced one by one."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from chaos.site import Site
from kmr.chaos.faults import StormFault

if TYPE_CHECKING:
    from random import Random

    from chaos.site import Worker

_INTERVAL: Final = 0.05  # seconds


class KillOneOfMany(StormFault[Site]):
    """SIGKILL of one worker of a command; its supervisor starts it again."""

    name = "kill-one-of-many"

    async def strike(self, site: Site, random: Random) -> str:
        command = random.choice(site.workers)
        await site.until_joined(command)
        victim = random.choice(sorted(_processes(command)))
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        await _until_gone(command, {victim})
        await site.until_settled(command.group)
        return f"process {victim} of {command.name}"


class RollWorkers(StormFault[Site]):
    """SIGHUP of a supervisor: it replaces one worker after the other."""

    name = "roll-workers"

    async def strike(self, site: Site, random: Random) -> str:
        command = random.choice(site.workers)
        await site.until_joined(command)
        before = _processes(command)
        os.kill(command.service.pid, signal.SIGHUP)
        await _until_gone(command, before)
        await site.until_settled(command.group)
        return f"{len(before)} workers of {command.name}"


def _processes(command: Worker) -> set[int]:
    """Return the processes of a command's workers: not its watchdog, which is a child, too."""
    pid = command.service.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {int(child) for child in children if _is_worker(Path(f"/proc/{child}/cmdline"))}


def _is_worker(command_line: Path) -> bool:
    try:
        return b"kmr.supervisor.supervised" in command_line.read_bytes()
    except OSError:
        return False


async def _until_gone(command: Worker, processes: set[int]) -> None:
    while _processes(command) & processes:  # noqa: ASYNC110  there is no event to wait for
        await anyio.sleep(_INTERVAL)
