"""Processes that a supervisor takes for workers: they begin in 20 ms, and end as a test plans."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import anyio

from kmr.settings import Settings
from kmr.supervisor.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

WORKER: Final = r"""
import json, os, signal, socket, sys, time

channel = socket.socket(fileno=int(sys.argv[1]))
lines = channel.makefile("r")
job = json.loads(next(lines))
index, flags = job["index"], job["flags"]
journal = os.open(flags["journal"], os.O_RDWR | os.O_APPEND | os.O_CREAT)
earlier = os.read(journal, 1 << 20).decode().split("\n").count(f"{index} begins")
leaves = job["leaves"]
stopped = False  # no Event: a handler that interrupts wait() must not take the lock of wait() in set()

def note(text):
    os.write(journal, f"{index} {text}\n".encode())

def tell(**message):
    channel.sendall(json.dumps(message).encode() + b"\n")

def stop(*_):
    global stopped
    note("stops")
    stopped = True

signal.signal(signal.SIGTERM, stop)
note("begins")
plan = flags["plan"][index]
end = plan[min(earlier, len(plan) - 1)]
if end == "refused":
    tell(type="failed", reason="wrong usage")
    sys.exit(2)
if end == "never prepared":
    tell(type="failed", reason="no such module")
    sys.exit(1)
note("prepared")
tell(type="prepared")
if end == "not begun":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
for line in lines:
    message = json.loads(line)["type"]
    if message == "admit":
        break
if end == "fails":
    tell(type="failed", reason="no such topic")
    sys.exit(1)
if end == "serves":
    tell(type="serve", path=flags["journal"])
    note("served " + str(json.loads(next(lines))["problem"]))
if end in ("not live", "silent"):  # a silent one answers nothing
    tell(type="reports")
note("joined")
tell(type="joined")
while end == "not live":
    asked = json.loads(next(lines))
    if asked["type"] == "ask":
        status = dict(
            state="running", live=False, ready=True, problem="map hangs", group="g", topics=[], stages=[],
            partitions=[], inflight_bytes=0, inflight_limit=0, consumed=0, settled=0, uptime=1,
        )
        tell(type="report", number=asked["number"], status=status)
if end == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if end == "breaks":
    tell(type="failed", reason=f"broken {earlier}")
    sys.exit(1)
if end == "done":
    tell(type="done")
    sys.exit(0)
if end == "exits":  # as user code may, with sys.exit(0)
    sys.exit(0)
while not stopped:
    time.sleep(0.01)
while end == "hangs":
    time.sleep(60)
sys.exit(3 if end == "late" else 0)
"""


class Planned:
    """A supervisor of such processes.

    Args:
        plan: for each worker, how its processes end, one after the other; the last one again and again.
    """

    def __init__(self, directory: Path, *plan: Sequence[str], **settings: object) -> None:
        self.journal = directory / "journal"
        self.settings = Settings.load(
            flags={"topics": "t", "group": "g", "workers": len(plan) or 1, **settings}
        )
        self.supervisor = Supervisor(
            self.settings,
            flags={"plan": plan, "journal": str(self.journal)},
            command=(sys.executable, "-I", "-S", "-c", WORKER),
        )

    def lines(self) -> list[str]:
        """Return what the processes have noted."""
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    async def until(self, line: str, times: int = 1) -> None:
        """Wait until a line is in the journal so often."""
        with anyio.fail_after(60):
            while self.lines().count(line) < times:  # noqa: ASYNC110  another process writes it
                await anyio.sleep(0.01)
