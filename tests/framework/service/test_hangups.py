"""Signals that come while a process starts."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

EARLY = """
import os, signal, time
from kmr.service.hangups import hold_hangups
hold_hangups()
os.kill(os.getpid(), signal.SIGHUP)
from kmr.service.deadline import Deadline
from kmr.service.process_end import ProcessEnd
asked = []
ProcessEnd(Deadline(60), asked.append, str).arm()
while not asked:
    time.sleep(0.01)
print(*asked)
"""


def test_a_hangup_while_a_process_starts_is_remembered() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EARLY], check=False, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "SIGHUP\n")


IGNORED = """
import os, signal
signal.signal(signal.SIGHUP, signal.SIG_IGN)
from kmr.service.hangups import hold_hangups, take_hangup
hold_hangups()
os.kill(os.getpid(), signal.SIGHUP)
print(take_hangup())
"""


def test_a_hangup_that_is_ignored_is_not_remembered() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IGNORED], check=False, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "False\n")


def test_the_command_line_holds_it_before_it_imports_what_takes_long() -> None:
    slow = ("ast", "asyncio", "cyclopts", "difflib", "pyarrow", "tokenize", "traceback")
    held = f"import sys; import kmr.cli; print(sorted(set({slow}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", held], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "[]\n"


STARTED = """
import os, sys
from kmr.cli import hold_hangups, main
hold_hangups()
print("started", flush=True)
sys.argv = ["kmr", "run", "early:strategy", "--topic", "t", "--group", "g", *sys.argv[1:]]
main()
"""
STRATEGY = """
from kmr import Bytes, Strategy
from kmr.sinks import StreamWriter
strategy = Strategy(value=Bytes(), reduce=[StreamWriter("stdout")])
"""
CODES = {signal.SIGHUP: {129}, signal.SIGTERM: {0, -signal.SIGTERM}, signal.SIGINT: {0, 130}}


@pytest.mark.parametrize("number", list(CODES))
def test_a_signal_at_any_time_of_a_start_ends_it_as_later(
    number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "early.py").write_text(STRATEGY)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # a broker that never answers
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        for delay in (0.05, 0.2, 0.9):
            worker = subprocess.Popen(
                [sys.executable, "-c", STARTED, "--bootstrap-servers", address],
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            assert worker.stdout is not None
            assert worker.stdout.readline() == "started\n"
            time.sleep(delay)
            worker.send_signal(number)
            said, _ = worker.communicate(timeout=60)
            assert worker.returncode in CODES[number], (delay, said)
            assert "Traceback" not in said


def test_no_hangup_ends_a_supervisor_that_starts(tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text(STRATEGY)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        supervisor = subprocess.Popen(
            [sys.executable, "-c", STARTED, "--bootstrap-servers", address, "--workers", "2"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == "started\n"
        began = time.monotonic()
        while (left := 3.0 - (time.monotonic() - began)) > 0:
            supervisor.send_signal(signal.SIGHUP)
            time.sleep(min(left, 0.05))
        supervisor.send_signal(signal.SIGTERM)
        said, _ = supervisor.communicate(timeout=60)
        assert supervisor.returncode in CODES[signal.SIGTERM], said
        assert "Traceback" not in said
