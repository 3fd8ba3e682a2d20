"""kmr top, against a worker's real HTTP endpoints."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
import pytest
from anyio import to_thread

from kmr.chaos.services import free_port
from kmr.cli.top import StatusPoller
from kmr.observe.failures import FailureSummary
from tests.framework.cli.watched_worker import STUCK, Worker
from tests.framework.workers import summary_of

if TYPE_CHECKING:
    from collections.abc import Callable


async def test_once_prints_state_rates_lag_and_the_reason(kmr: Callable[..., Any]) -> None:
    async with Worker().serving() as url:
        run = partial(kmr, "top", "--once", "--interval", "0.01", "--url", url)
        output = await to_thread.run_sync(run)
    assert output.code == 0
    text = output.out
    assert "flights-group  running  flights" in text
    assert "consumed 200/s (290)  settled 100/s (150)  lag 1,200  in flight 1.0 MiB (50%)" in text
    assert "reduce-1: no answer from the database" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["reduce-1", "retrying", "4.5", "s", "3", "1,000", "2,000", "no", "answer"] in rows
    assert ["flights-0", "1,200", "50", "40", "90", "1,250", "paused"] in rows


async def test_several_workers_have_a_row_each(kmr: Callable[..., Any]) -> None:
    worker = Worker()
    summary = summary_of()
    worker.now = msgspec.structs.replace(worker.now, workers=(summary,))
    async with worker.serving() as url:
        run = partial(kmr, "top", "--once", "--interval", "0.01", "--url", url)
        output = await to_thread.run_sync(run)
    rows = [line.split() for line in output.out.splitlines()]
    assert ["1", "(process", "7)", "running", "60", "s", "3", "999", "2"] in rows


async def test_the_latest_failures_have_a_row_each_with_their_reason(
    kmr: Callable[..., Any],
) -> None:
    worker = Worker()
    failure = FailureSummary(time.time() - 7, "record failed", "map", "no number", 3, worker=1)
    worker.now = msgspec.structs.replace(worker.now, failed=3, repeated=1, failures=(failure,))
    async with worker.serving() as url:
        run = partial(kmr, "top", "--once", "--interval", "0.01", "--url", url)
        output = await to_thread.run_sync(run)
    assert "failed 3  repeated 1" in output.out
    [row] = [line.split() for line in output.out.splitlines() if "no number" in line]
    assert row[2:] == ["ago", "record", "failed", "map,", "worker", "1", "3", "no", "number"]


async def test_the_screen_waits_for_a_worker_follows_it_and_ends_by_ctrl_c() -> None:
    worker, port = Worker(), free_port()
    url = f"http://127.0.0.1:{port}"
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "kmr", "top", "--interval", "0.05", "--url", url]
    with os.fdopen(ours, "rb", buffering=0) as screen:
        process = subprocess.Popen(command, stdin=theirs, stdout=theirs)  # noqa: ASYNC220
        os.close(theirs)
        try:
            await to_thread.run_sync(_read_until, screen, b"no worker answers at")
            async with worker.serving(port):
                await to_thread.run_sync(_read_until, screen, b"settled 100/s")
                process.send_signal(signal.SIGINT)
                await to_thread.run_sync(_read_until, screen, None)
                assert await to_thread.run_sync(process.wait) == 0
        finally:
            process.kill()
            process.wait()


def _read_until(screen: BinaryIO, text: bytes | None) -> None:
    """Read what is shown until it has the text; None: until the end."""
    seen = b""
    while text is None or text not in seen:
        try:
            seen += screen.read(4096)
        except OSError:  # the end of a terminal
            assert text is None, seen
            return


async def test_no_rates_across_a_restart_of_the_worker() -> None:
    worker = Worker()
    async with worker.serving() as url:
        watch = StatusPoller(url)
        first = await to_thread.run_sync(watch.look)
        second = await to_thread.run_sync(watch.look)
        worker.now = msgspec.structs.replace(STUCK, uptime=0.0, consumed=0, settled=0)
        third = await to_thread.run_sync(watch.look)
    assert (first.consumed_rate, second.consumed_rate, third.consumed_rate) == (None, 200.0, None)


@pytest.mark.parametrize(
    ("url", "code", "message"),
    [
        ("http://127.0.0.1:1", 1, "no worker answers at http://127.0.0.1:1 "),
        ("127.0.0.1:8080", 2, "--url must begin with http:// or https://, not '127.0.0.1:8080'"),
    ],
)
def test_an_address_without_a_worker_is_one_message(
    kmr: Callable[..., Any], url: str, code: int, message: str
) -> None:
    output = kmr("top", "--once", "--url", url)
    assert output.code == code
    assert output.err.startswith(f"kmr: {message}")
    assert output.err.count("\n") == 1
