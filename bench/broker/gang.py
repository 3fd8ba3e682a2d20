"""Client processes that begin at the same moment, and how long it took from there to the last one's end."""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from anyio.streams.text import TextReceiveStream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from anyio.abc import Process

PATIENCE = 900.0
"""Seconds after which a run is given up."""

_READY = "ready"
_TOUCHED_BYTES = 3 * 1024**3


class ClientFailed(Exception):
    """A client process ended with an error; the message has what it said."""


@dataclass(frozen=True)
class Client:
    """One process: a module of this package, and the arguments of its main function."""

    module: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """The work that a gang did.

    Attributes:
        seconds: from the start that all share to the end of the last one.
        results: what each client printed.
    """

    seconds: float
    results: list[dict[str, Any]]

    @property
    def cpu(self) -> float:
        """Processor time of all clients together, in seconds."""
        return float(sum(each["cpu"] for each in self.results))


async def run_together(clients: Sequence[Client]) -> Outcome:
    """Start the processes, wait until all are ready, let them begin, wait for all. Raises ClientFailed."""
    async with AsyncExitStack() as stack:
        processes = [await stack.enter_async_context(await _start(each)) for each in clients]
        with anyio.fail_after(PATIENCE):
            lines = [_Lines(process) for process in processes]
            for each in lines:
                await each.next()  # it is ready
            await anyio.to_thread.run_sync(_touch_memory)
            started = time.monotonic()
            for process in processes:
                assert process.stdin is not None
                await process.stdin.send(b"\n")
            outcomes = [json.loads(await each.next()) for each in lines]
    ended: float = max(each["ended"] for each in outcomes)
    return Outcome(ended - started, outcomes)


def take_part(prepare: Callable[..., Callable[[], dict[str, Any]]]) -> None:
    """A client's main: prepare, say so, wait for the start, work, print the outcome.

    `prepare` gets the client's arguments and returns the work.
    """
    work = prepare(**json.loads(sys.argv[1]))
    sys.stdout.write(f"{_READY}\n")
    sys.stdout.flush()
    sys.stdin.readline()
    cpu = time.process_time()
    result = work()
    result |= {"ended": time.monotonic(), "cpu": time.process_time() - cpu}
    sys.stdout.write(f"{json.dumps(result)}\n")


async def _start(client: Client) -> Process:
    command = [sys.executable, "-m", client.module, json.dumps(client.arguments)]
    return await anyio.open_process(command, stdin=PIPE, stdout=PIPE, stderr=PIPE)


def _touch_memory() -> None:
    """Touch as much free memory as a workload writes, and free it again.

    A virtual machine's host may have taken back memory that was free for a while. The first touch of such a
    page takes several times as long as the write of a small batch into it, whoever the server is.
    """
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    mmap.mmap(-1, min(_TOUCHED_BYTES, available // 2), flags=flags).close()


class _Lines:
    """The lines that a process prints."""

    def __init__(self, process: Process) -> None:
        assert process.stdout is not None
        self._process = process
        self._stream = TextReceiveStream(process.stdout)
        self._text = ""

    async def next(self) -> str:
        while "\n" not in self._text:
            try:
                self._text += await self._stream.receive()
            except anyio.EndOfStream:
                raise ClientFailed(await self._complaint()) from None
        line, _, self._text = self._text.partition("\n")
        return line

    async def _complaint(self) -> str:
        assert self._process.stderr is not None
        said = b""
        async for chunk in self._process.stderr:
            said += chunk
        return said.decode(errors="replace").strip()[-2_000:] or "a client ended without a word"
