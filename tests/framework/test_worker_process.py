"""A worker as a process: the garbage collector skips the objects of the start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

import kmr.worker_process
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryConsumer, MemoryWriter, VirtualTimeLoop
from kmr.worker_process import freeze_when_ready

from .workers import P0, locate, running

if TYPE_CHECKING:
    from kmr.testing import VirtualClock


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


async def test_what_the_start_has_imported_is_not_traversed_by_the_garbage_collector(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen: list[int] = []
    monkeypatch.setattr(kmr.worker_process, "freeze_modules", lambda: frozen.append(1))
    async with running(
        Strategy(locate, [MemoryWriter(Journal())]), consumer := MemoryConsumer()
    ) as worker:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(freeze_when_ready, worker)
            await clock.settle()
            assert not frozen
            await consumer.rebalance([P0])
        assert frozen
