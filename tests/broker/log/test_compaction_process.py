"""A pass in another process: it does the same as in a thread, and ends with its broker."""

import gc
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kmr.broker.log.compaction import Compaction, CompactionPlan, plan_compaction
from kmr.broker.log.compaction_process import CompactionProcess
from kmr.broker.log.partition import PartitionLog
from kmr.broker.log.results import LogCorrupt
from kmr.broker.log.swap import swap_source
from tests.broker.log.compacting import CONFIG, NOW, Open, end_transaction, pairs, put

LARGE = "x" * 200_000  # more than a pipe takes


def never() -> bool:
    return False


def nothing() -> None:
    pass


@contextmanager
def process(
    plan: CompactionPlan, *, stopped: Callable[[], bool] = never, beat: Callable[[], None] = nothing
) -> Iterator[CompactionProcess]:
    compaction = CompactionProcess(plan, stopped=stopped, beat=beat)
    try:
        yield compaction
    finally:
        compaction.close()


def pid(compaction: CompactionProcess) -> int:
    assert compaction._process is not None
    return compaction._process.pid


def filled(open_log: Open) -> tuple[PartitionLog, CompactionPlan]:
    """Three segments with updates, a tombstone and an aborted transaction."""
    log = open_log(CONFIG)
    for n in range(3):
        put(log, ("a", str(n)), ("b", str(n)), (f"only-{n}", None), codec="lz4")
        put(log, (f"large-{n}", LARGE))
        put(log, ("a", "aborted"), producer=(7, 0, n), transactional=True)
        end_transaction(log, 7, commit=False)
        log.roll()
    put(log, ("c", "active"))
    log.checkpoint()
    plan = plan_compaction(log, NOW)
    assert plan is not None
    return log, plan


def outcome(compaction: Compaction | CompactionProcess, plan: CompactionPlan) -> list[object]:
    """Return the files that a pass writes, and its answers to the broker."""
    compaction.read_keys()
    found: list[object] = []
    for segment in plan.segments:
        rewritten = compaction.rewrite((segment,))
        if rewritten is not None:
            source = swap_source(plan.directory, segment.base_offset)
            found += [rewritten.group, rewritten.size, rewritten.index.entries()]
            found += [rewritten.index.max_timestamp, source.read_bytes()]
            source.unlink()
    return [*found, compaction.clean_to, compaction.tombstones]


def test_a_process_does_the_same_as_a_thread(open_log: Open) -> None:
    _, plan = filled(open_log)
    beats: list[int] = []
    with process(plan, beat=lambda: beats.append(1)) as compaction:
        found = outcome(compaction, plan)
        assert os.getpriority(os.PRIO_PROCESS, pid(compaction)) > os.getpriority(os.PRIO_PROCESS, 0)
    assert found == outcome(Compaction(plan), plan)
    assert len(found) > 10
    assert beats, "health would not notice a disk that hangs"


def test_the_errors_of_a_process_are_those_of_a_thread(open_log: Open) -> None:
    log, plan = filled(open_log)
    with process(plan) as compaction:
        compaction.read_keys()
        with plan.segments[1].path.open("rb+") as file:
            file.seek(80)
            file.write(b"damage")
        with pytest.raises(LogCorrupt) as here:
            Compaction(plan).read_keys()
        with pytest.raises(LogCorrupt) as there:
            compaction.rewrite((plan.segments[1],))
        assert str(there.value) == str(here.value)
    plan.segments[0].path.unlink()
    with process(plan) as compaction, pytest.raises(FileNotFoundError):
        compaction.read_keys()
    assert list(log.directory.glob("*.tmp")) == []


def test_a_process_that_is_killed_in_the_middle_leaves_the_log_as_it_was(open_log: Open) -> None:
    log, plan = filled(open_log)
    before = pairs(log)
    group = (plan.segments[1],)
    source = swap_source(plan.directory, group[0].base_offset)
    os.mkfifo(source)
    readers: list[int] = []

    def kill() -> bool:
        if compaction.clean_to and not readers:  # it has read the keys
            readers.append(os.open(source, os.O_RDONLY))  # returns when the process has opened it
            os.kill(pid(compaction), signal.SIGKILL)  # it cannot have written everything
        return False

    with process(plan, stopped=kill) as compaction:
        compaction.read_keys()
        with pytest.raises(ChildProcessError, match=r"ended early \(exit code -9\)"):
            compaction.rewrite(group)
    os.close(*readers)
    assert list(log.directory.glob("*.tmp")) == []
    assert pairs(log) == before


def test_the_error_of_a_process_that_is_gone_is_collected_as_garbage_without_a_complaint(
    open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, plan = filled(open_log)
    ignored: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda hook: ignored.append(str(hook.exc_value)))
    with process(plan) as compaction:
        compaction.read_keys()
        os.kill(pid(compaction), signal.SIGKILL)
        assert compaction._process is not None
        compaction._process.wait()
        try:
            compaction.rewrite(next(plan.groups))
        except ChildProcessError as error:
            error.args = (error,)  # what is in a cycle is left to the collector
        else:
            pytest.fail("a process that is gone cannot answer")
    gc.collect()
    assert ignored == []


def test_a_process_that_cannot_start_is_an_error_of_the_disk(
    open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, plan = filled(open_log)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with process(plan) as compaction, pytest.raises(OSError, match="/nowhere/python"):
        compaction.read_keys()


BROKER = """
import pickle, sys
from pathlib import Path
from kmr.broker.log.compaction_process import CompactionProcess
plan = pickle.loads(Path(sys.argv[1]).read_bytes())
compaction = CompactionProcess(plan, stopped=lambda: False, beat=lambda: None)
compaction.read_keys()
print("read", flush=True)
compaction.rewrite((plan.segments[0],))
"""


def test_a_process_ends_with_its_broker_however_that_ends(open_log: Open, tmp_path: Path) -> None:
    log, plan = filled(open_log)
    (tmp_path / "plan").write_bytes(pickle.dumps(plan))
    source = swap_source(plan.directory, plan.segments[0].base_offset)
    os.mkfifo(source)
    with subprocess.Popen(
        [sys.executable, "-c", BROKER, tmp_path / "plan"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as broker:
        assert broker.stdout is not None
        assert broker.stderr is not None
        assert broker.stdout.readline() == b"read\n"
        reader = os.open(source, os.O_RDONLY)  # returns when the process has opened it
        broker.kill()
        broker.wait()
        with os.fdopen(reader, "rb") as file:
            file.read()
        assert broker.stderr.read() == b""  # ends when the process has ended
    assert list(log.directory.glob("*.tmp")) == []
