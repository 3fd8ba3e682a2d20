"""The end of a process; with signals and a worker it is in `guarantees/test_signals_and_exit_codes.py`."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

BEGIN = """
import sys, threading, time
from kmr.service.deadline import Deadline
from kmr.service.process_end import ProcessEnd

deadline = Deadline(float(sys.argv[1]))
ProcessEnd(deadline, print, lambda: "the oven is on").arm()
"""
PASSED = (3, "kmr: the oven is on\n")
ENDS = {
    "deadline.begin(); time.sleep(600)": (0.2, PASSED),
    "deadline.begin(); threading.Thread(target=time.sleep, args=[600]).start()": (0.2, PASSED),
    "deadline.begin()": (60, (0, "")),
    "time.sleep(0.5)": (0.2, (0, "")),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_process_ends_at_the_deadline_unless_it_ends_before(end: str) -> None:
    deadline, expected = ENDS[end]
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + end, str(deadline)],
        check=False,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == expected


SIGNALLED = """
import os, signal, sys, time
from kmr.service.deadline import Deadline
from kmr.service.process_end import ProcessEnd

def asked(name):
    print(name, flush=True)

number = signal.Signals[sys.argv[1]]
ProcessEnd(Deadline(60), asked, str).arm()
while True:  # a second signal right after the first counts as the same
    os.kill(os.getpid(), number)
    time.sleep(0.1)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_first_signal_asks_for_a_shutdown_and_the_second_one_ends_the_process(
    number: signal.Signals,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED, number.name],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (128 + number, f"{number.name}\n")
    assert f"second signal ({number.name})" in done.stderr


HANGUPS = """
import os, signal, sys, time
from kmr.service.deadline import Deadline
from kmr.service.process_end import ProcessEnd

asked = []
if sys.argv[1] == "nohup":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
ProcessEnd(Deadline(60), asked.append, str, once=sys.argv[1] == "once").arm()
os.kill(os.getpid(), signal.SIGHUP)
os.kill(os.getpid(), signal.SIGTERM)
while not asked:
    time.sleep(0.01)
print(*asked)
"""


@pytest.mark.parametrize("why", ["once", "nohup"])
def test_one_of_several_workers_and_a_process_of_nohup_stay_when_the_terminal_goes(
    why: str,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGUPS, why],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "SIGTERM\n")


def test_output_that_nobody_reads_does_not_keep_the_process() -> None:
    script = (
        "import sys\nfrom kmr.service.process_end import exit_now\nexit_now(3, 'x' * 10_000_000)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE) as process:
        assert process.wait(60) == 3
