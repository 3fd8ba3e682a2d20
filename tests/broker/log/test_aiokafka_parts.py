"""The parts of aiokafka are imported late, and by any number of threads at the same time."""

from __future__ import annotations

import subprocess
import sys

THREADS = """
import sys, threading
from kmr.broker.log.records import NewRecord, build_batch, parse_header, read_records

assert "aiokafka" not in sys.modules
sys.setswitchinterval(1e-6)
ready, failed = threading.Barrier(8), []

def build_and_read(number):
    ready.wait()
    try:
        if number % 2:
            read_records(PLAIN, parse_header(PLAIN))
        else:
            build_batch([NewRecord(None, b"v", timestamp=0)])
    except BaseException as error:
        failed.append(repr(error))

PLAIN = bytes.fromhex(sys.argv[1])
threads = [threading.Thread(target=build_and_read, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(failed)
"""


def test_threads_that_need_aiokafka_first_at_the_same_time_all_get_it() -> None:
    from kmr.broker.log.records import NewRecord, build_batch

    plain = build_batch([NewRecord(None, b"v", timestamp=0)]).hex()
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", THREADS, plain], capture_output=True, text=True, check=False
        )
        assert (done.stdout, done.stderr) == ("[]\n", "")
