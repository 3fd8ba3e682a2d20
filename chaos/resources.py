"""What each process of a run holds: memory, descriptors, threads, and the tasks of its event loop."""

from __future__ import annotations

import re
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
from anyio import to_thread

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chaos.history import Recorder
    from kmr.chaos.services import Service

_TASKS: Final = re.compile(r"^kmr_(?:broker_)?event_loop_tasks (\S+)$", re.MULTILINE)
_MEMORY: Final = re.compile(r"^(Rss|Pss): +(\d+) kB$", re.MULTILINE)
_THREADS: Final = re.compile(r"^Threads:\s+(\d+)$", re.MULTILINE)
_PATIENCE: Final = 5.0
_MEMORY_INTERVAL: Final = 0.5


@dataclass(frozen=True)
class Resources:
    """Of one process at one moment.

    Attributes:
        rss: resident bytes.
        pss: the same, but a page that several processes share is divided among them.
        descriptors: open files, sockets and pipes.
    """

    rss: int
    pss: int
    descriptors: int
    threads: int


def resources_of(pid: int) -> Resources:
    """Read them from /proc. Raises OSError when there is no such process, or it is ending."""
    proc = Path(f"/proc/{pid}")
    memory = dict(_MEMORY.findall((proc / "smaps_rollup").read_text()))
    threads = _THREADS.search((proc / "status").read_text())
    if threads is None or not memory:
        raise ProcessLookupError(pid)
    return Resources(
        rss=int(memory["Rss"]) * 1024,
        pss=int(memory["Pss"]) * 1024,
        descriptors=sum(1 for _ in (proc / "fd").iterdir()),
        threads=int(threads[1]),
    )


def tasks_in(metrics: str) -> int | None:
    """Return the tasks of the event loop by the metrics of a worker or a broker; None without them."""
    found = _TASKS.search(metrics)
    return int(float(found[1])) if found else None


async def watch_memory(services: Iterable[Service], recorder: Recorder) -> None:
    """Take down the memory of every process, until cancelled."""
    while True:
        for service in services:
            size = service.resident_bytes()
            if size is not None:
                recorder.line("memory", process=service.name, bytes=size)
        await anyio.sleep(_MEMORY_INTERVAL)


async def watch_resources(services: Iterable[Service], recorder: Recorder, every: float) -> None:
    """Take down what each process holds, every so many seconds, until cancelled."""
    while True:
        now = anyio.current_time()
        for service in services:
            if not service.running:
                continue
            with suppress(OSError):
                held = resources_of(service.pid)
                tasks = await _tasks_of(service)
                recorder.line("resources", process=service.name, tasks=tasks, **vars(held))
        await anyio.sleep_until(now + every)


async def _tasks_of(service: Service) -> int | None:
    if service.http_port is None:
        return None
    return await to_thread.run_sync(_ask, f"http://127.0.0.1:{service.http_port}/metrics")


def _ask(url: str) -> int | None:
    with urllib.request.urlopen(url, timeout=_PATIENCE) as response:  # noqa: S310  ours
        return tasks_in(response.read().decode())
