"""What a process holds, as /proc and its metrics show it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from chaos.resources import resources_of, tasks_in

HOLDS_MORE = """
import os, threading
print(flush=True)
input()
os.pipe()
threading.Thread(target=threading.Event().wait, daemon=True).start()
print(flush=True)
input()
"""


def test_descriptors_and_a_thread_more_are_seen() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS_MORE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        before = resources_of(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
        after = resources_of(process.pid)
        process.communicate("\n")
    assert after.descriptors == before.descriptors + 2
    assert after.threads == before.threads + 1


def test_memory_is_in_bytes_and_shared_pages_count_for_less() -> None:
    before = resources_of(os.getpid())
    kept = bytearray(64 * 2**20)
    kept[:: os.sysconf("SC_PAGE_SIZE")] = b"x" * len(kept[:: os.sysconf("SC_PAGE_SIZE")])
    after = resources_of(os.getpid())
    assert after.rss - before.rss >= 32 * 2**20
    assert after.pss <= after.rss


def test_a_process_that_has_ended_has_nothing() -> None:
    with pytest.raises(OSError, match="No such file"):
        resources_of(2**22 + 1)


def test_the_tasks_of_workers_and_brokers_are_counted() -> None:
    assert tasks_in("# HELP\nkmr_event_loop_tasks 27.0\n") == 27
    assert tasks_in("kmr_broker_event_loop_tasks 11.0\n") == 11
    assert tasks_in("kmr_lag 1.0\n") is None
