"""Processes that user code forks in a process that handles signals."""

from __future__ import annotations

import subprocess
import sys

import pytest

ARMED = """
import multiprocessing, os, signal, sys
import anyio
from kmr.service.deadline import Deadline
from kmr.service.process_end import ProcessEnd
from kmr.service.threads import run_in_thread

ProcessEnd(Deadline(60), print, str).arm()

def in_child(function):
    if (child := os.fork()) == 0:
        function()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""

SIGNALS = """
def show():
    names = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT")
    print(*(signal.getsignal(signal.Signals[name]) for name in names), signal.set_wakeup_fd(-1), flush=True)

in_child(show)
"""

POOL = """
with multiprocessing.get_context("fork").Pool(1) as pool:
    print(pool.map(abs, [-1]))
"""

FORKS = """
def forks():
    child = os.fork()
    return child if child == 0 else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""

RETURNS = {
    "in a thread": "print(anyio.run(run_in_thread, forks))",
    "in a map of the event loop or of a process": """
from kmr.mapping.functions import apply, map_record
from kmr.testing import batch_of
rows = apply(map_record(lambda record: {"code": forks()}), batch_of("t", 0, 0, [b"a"]).records)
print(rows.table["code"][0])
""",
}


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ARMED + script],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_fork_ends_by_sigterm_and_does_not_signal_for_the_process_that_it_is_of() -> None:
    default, ignored = "0", "1"
    assert run(SIGNALS).stdout.split() == [default, ignored, ignored, *3 * [default], "-1"]


def test_a_pool_of_forks_ends_when_it_is_left() -> None:
    assert run(POOL).stdout == "[1]\n"


@pytest.mark.parametrize("where", RETURNS)
def test_a_fork_that_returns_from_a_function_of_the_strategy_ends(where: str) -> None:
    done = run(FORKS + RETURNS[where])
    assert done.stdout == "1\n"
    assert done.stderr == (
        "kmr: a function of the strategy called os.fork, and its child returned: the child ends\n"
    )
