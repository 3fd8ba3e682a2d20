"""Freed memory is kept and reused; memory is limited by control groups; children end with their parent."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kmr.service import process

if TYPE_CHECKING:
    from pathlib import Path

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


def test_young_objects_are_collected_rarely_unless_the_user_says_how_often() -> None:
    code = (
        "import gc\n"
        "from kmr.service.process import freeze_modules\n"
        "freeze_modules()\n"
        "print(gc.get_threshold()[0])\n"
        "for own in (0, 100):\n"
        "    gc.set_threshold(own)\n"
        "    freeze_modules()\n"
        "    print(gc.get_threshold()[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["20000", "0", "100"]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="tunes glibc")
def test_blocks_of_megabytes_cost_no_page_faults_once_they_were_used() -> None:
    def faults(how: str) -> int:
        command = [sys.executable, "-c", CHURN, how]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert faults("kept") < 1000 < faults("as ever")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="tunes glibc")
def test_columns_are_allocated_by_malloc_unless_the_user_has_chosen() -> None:
    code = (
        "import pyarrow as pa\n"
        "from kmr.service.process import keep_freed_memory\n"
        "keep_freed_memory()\n"
        "print(pa.default_memory_pool().backend_name)\n"
    )

    def allocator(**chosen: str) -> str:
        command, env = [sys.executable, "-c", code], os.environ | chosen
        return subprocess.run(
            command, env=env, capture_output=True, text=True, check=True
        ).stdout.strip()

    assert allocator() == "system"
    assert allocator(ARROW_DEFAULT_MEMORY_POOL="mimalloc") == "mimalloc"


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not process.keep_freed_memory()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    assert not process.keep_freed_memory()


GIB = 1 << 30


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{GIB // 2}\n"}, GIB // 2),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/memory.max": "max\n",
                "sys/fs/cgroup/a/memory.max": f"{GIB // 4}\n",
                "sys/fs/cgroup/a/b/memory.max": f"{GIB // 2}\n",
            },
            GIB // 4,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu:/\n4:memory:/docker/1\n0::/\n",
                "sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": f"{GIB // 2}\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2**63 - 4096}\n",
            },
            GIB // 2,
        ),
        (  # in a container, the path is that of the host
            {
                "proc/self/cgroup": "4:memory:/docker/1\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GIB // 2}\n",
            },
            GIB // 2,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, None),
        ({}, None),
    ],
    ids=["v2", "v2, a group above", "v1", "v1 in a container", "no limit", "no control groups"],
)
def test_the_least_limit_of_the_control_groups_is_the_memory_limit(
    tmp_path: Path, files: dict[str, str], limit: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert process.memory_limit(tmp_path) == min(physical, limit or physical)


CHILD = """
import os, sys, threading
from kmr.service.process import end_with_parent

end_with_parent(int(sys.argv[1]))
print("ready", flush=True)
threading.Event().wait()
"""
PARENT = """
import os, subprocess, sys

subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())])
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux")
def test_a_child_ends_when_its_parent_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        parent.kill()
        output, _ = parent.communicate(timeout=60)  # to its end: the child has closed it, too
        assert output == b""


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "20000 100000\n"}, 1.0),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/a\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "100000\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            },
            1.0,
        ),
    ],
    ids=["v2", "a part of one", "no limit", "v1"],
)
def test_the_least_limit_of_the_control_groups_is_the_processor_limit(
    tmp_path: Path, files: dict[str, str], limit: float | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    ours = len(os.sched_getaffinity(0))
    assert process.processor_limit(tmp_path) == min(ours, int(limit or ours))
