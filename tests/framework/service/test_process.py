"""Freed memory is kept and reused instead of being returned to the kernel."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from kmr.service import process

CHURN = """
import resource, sys
from kmr.service.process import keep_freed_memory

if sys.argv[1] == "kept":
    assert keep_freed_memory()

def churn():
    for _ in range(10):
        blocks = [b"x" * (4 << 20) for _ in range(8)]
        del blocks

churn()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
churn()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="tunes glibc")
def test_blocks_of_megabytes_cost_no_page_faults_once_they_were_used() -> None:
    def faults(how: str) -> int:
        command = [sys.executable, "-c", CHURN, how]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert faults("kept") < 1000 < faults("as ever")


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not process.keep_freed_memory()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    assert not process.keep_freed_memory()
