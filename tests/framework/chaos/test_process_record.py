"""What is kept of a storm: processes, and what was noticed."""

from __future__ import annotations

from kmr.chaos.process_record import ProcessRecord


def test_only_processes_that_ended_without_a_signal_of_ours_have_died() -> None:
    journal = ProcessRecord(lambda text: None)
    one = journal.line("processes", name="worker-1", pid=7, ending="running", code=None)
    journal.line("processes", name="worker-2", pid=8, ending="killed", code=-9)
    journal.line("commits", name="worker-2", offset=3)
    assert journal.died() == []
    one |= {"ending": "died", "code": 1}
    assert journal.died() == ["worker-1 (process 7) with exit code 1"]


def test_what_was_noticed_is_said_at_once_by_its_first_line() -> None:
    said: list[str] = []
    journal = ProcessRecord(said.append)
    journal.event("fault", "kill-worker")
    journal.event("noticed", "worker-1", "ended\nTraceback")
    assert said == ["noticed: worker-1 ended"]
    assert journal.noticed == ["worker-1: ended\nTraceback"]
