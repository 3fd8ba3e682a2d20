"""A SIGHUP that comes while a process starts."""

from __future__ import annotations

import subprocess
import sys

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
    held = "import sys; import kmr.cli; print(sorted({'asyncio', 'cyclopts', 'pyarrow'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", held], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "[]\n"
