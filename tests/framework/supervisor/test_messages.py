"""The lines between a supervisor and its workers."""

from __future__ import annotations

import msgspec
import pytest

from kmr.supervisor.messages import (
    Job,
    Served,
    Stay,
    WorkerFailed,
    decode_from_supervisor,
    decode_from_worker,
    encode,
)

JOB = Job(1, "flow:strategy", None, {"topics": ["a", "b"], "fetch.max_bytes": "1MiB"}, leaves=True)


@pytest.mark.parametrize("message", [JOB, Stay(), Served(None, "no room")])
def test_a_worker_reads_what_its_supervisor_has_written(message: Job | Stay | Served) -> None:
    line = encode(message)
    assert line.count(b"\n") == 1
    assert decode_from_supervisor(line) == message


def test_a_message_of_several_lines_stays_one_line() -> None:
    line = encode(WorkerFailed("one\ntwo"))
    assert line.count(b"\n") == 1
    assert decode_from_worker(line) == WorkerFailed("one\ntwo")


def test_a_worker_cannot_send_what_only_its_supervisor_may() -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_from_worker(encode(JOB))
