"""The process that ends another one; with a worker it is in `guarantees/test_signals_and_exit_codes.py`."""

from __future__ import annotations

import subprocess
import sys

BEGIN = """
import re, signal
from kmr.service.watchdog import begin, note, watch
watch({deadline}, [signal.SIGTERM])
note("map of the oven")
begin()
"""


def ended(deadline: float, script: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN.format(deadline=deadline) + script],
        check=False,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stderr


def test_a_call_that_never_frees_the_interpreter_lock_ends_with_its_stack_and_name() -> None:
    code, errors = ended(0.1, "re.match('(a+)+$', 'a' * 60 + 'b')")
    assert code == 3
    assert "the last that began: map of the oven)" in errors
    assert "most recent call first" in errors


def test_a_process_that_ends_in_time_is_left_alone() -> None:
    assert ended(60, "") == (0, "")


HANGUPS = """
import os, signal, time
from kmr.service.watchdog import watch
signal.signal(signal.SIGHUP, lambda *_: None)
watch(0.1, [signal.SIGTERM], once=True)
for _ in range(2):
    os.kill(os.getpid(), signal.SIGHUP)
    time.sleep(0.6)
"""


def test_a_signal_that_does_not_end_the_process_begins_no_deadline() -> None:
    done = subprocess.run([sys.executable, "-c", HANGUPS], check=False, timeout=60)
    assert done.returncode == 0
