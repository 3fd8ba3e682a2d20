"""Calls in daemon threads."""

from __future__ import annotations

import subprocess
import sys
import threading

import anyio
import pytest

from kmr.service.deadline import end_shields
from kmr.service.threads import run_in_thread

HANGS = """
import anyio, threading
from kmr.service.threads import run_in_thread

async def main():
    with anyio.move_on_after(0.1):
        await run_in_thread(threading.Event().wait, abandon_on_cancel=True)

anyio.run(main)
"""


async def test_it_returns_what_the_function_returns_and_raises_what_it_raises() -> None:
    assert await run_in_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await run_in_thread(divmod, 7, 0)


async def test_the_function_can_run_an_event_loop() -> None:
    await run_in_thread(anyio.run, anyio.sleep, 0)


async def test_one_call_after_the_other_needs_one_thread() -> None:
    threads = {await run_in_thread(threading.get_ident) for _ in range(20)}
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_a_cancellation_waits_for_the_function_until_shields_end() -> None:
    begun, go_on, left = threading.Event(), threading.Event(), []

    def hang() -> None:
        begun.set()
        go_on.wait()

    async def call() -> None:
        try:
            await run_in_thread(hang)
        finally:
            left.append(True)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await anyio.to_thread.run_sync(begun.wait)
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await anyio.wait_all_tasks_blocked()
            assert not left
            end_shields()
    assert left
    go_on.set()


def test_a_call_that_hangs_does_not_keep_the_process() -> None:
    subprocess.run([sys.executable, "-c", HANGS], check=True, timeout=60)
