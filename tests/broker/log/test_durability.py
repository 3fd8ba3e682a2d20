import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kmr.broker.log.disk_work import do_now
from kmr.broker.log.durability import Checkpoint
from kmr.broker.log.log_config import LogConfig
from kmr.broker.log.partition import PartitionLog
from kmr.broker.log.results import Appended, LogFailed

Append = Callable[..., Appended]
OpenLog = Callable[..., PartitionLog]


def test_a_sync_covers_earlier_flushes(open_log: OpenLog, append: Append) -> None:
    log = open_log()
    append(log, [b"a"] * 3)
    append(log, [b"b"], flush=False)
    assert log.dirty
    assert log.fsync() == log.durable_offset == 3
    assert log.dirty
    log.flush_pending()
    assert log.fsync() == 4
    assert not log.dirty


def test_a_sync_after_a_roll_moves_the_recovery_point(open_log: OpenLog, append: Append) -> None:
    log = open_log()
    append(log, [b"a"] * 3)
    log.fsync()
    assert log.recovery_point == 0
    log.roll()
    append(log, [b"b"])
    log.fsync()
    assert log.recovery_point == 4
    reopened = open_log(clean=False)
    assert reopened.recovery.scanned_bytes == 0


def test_a_sync_reaches_rolled_segments_names_and_the_checkpoint(
    open_log: OpenLog, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    append(log, [b"a"])
    log.roll()
    append(log, [b"b"])
    synced = []

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    monkeypatch.setattr(os, "fsync", fsync)
    log.fsync()
    assert synced == [
        f"{0:020}.log",
        f"{1:020}.log",
        log.directory.name,
        log.directory.parent.name,
        "checkpoint.tmp",
        log.directory.name,
    ]
    synced.clear()
    append(log, [b"c"])
    log.fsync()
    assert synced == [f"{1:020}.log"]


@pytest.mark.parametrize(
    ("fsync", "due_after_append", "due_after_roll"),
    [("always", True, True), ("interval", True, True), ("os", False, True)],
)
def test_when_a_sync_is_due(
    open_log: OpenLog, append: Append, fsync: str, *, due_after_append: bool, due_after_roll: bool
) -> None:
    log = open_log(LogConfig(fsync=fsync))  # type: ignore[arg-type]
    assert not log.fsync_due
    append(log, [b"a"])
    assert log.fsync_due is due_after_append
    log.roll()
    assert log.fsync_due is due_after_roll
    log.fsync()
    assert not log.fsync_due


def test_syncs_in_another_thread_while_segments_come_and_go(
    open_log: OpenLog, append: Append
) -> None:
    config = LogConfig(segment_bytes=500, retention_ms=-1, retention_bytes=2000)
    log = open_log(config)
    stop, failures, synced = threading.Event(), [], []

    def sync() -> None:
        while not stop.is_set():
            try:
                synced.append(log.fsync())
            except Exception as error:  # noqa: BLE001 - any error fails the test
                failures.append(error)
                return

    thread = threading.Thread(target=sync)
    thread.start()
    while len(synced) < 20 and not failures:
        append(log, [b"x" * 100])
        log.read(log.log_start_offset, 1000, min_one=True)
        do_now(log.retention(0))
    stop.set()
    thread.join()
    assert failures == []
    assert synced == sorted(synced)
    assert log.fsync() == log.next_offset


def test_after_a_failed_sync_nothing_is_appended_until_a_restart(
    open_log: OpenLog, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    append(log, [b"a"])

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fail)
        with pytest.raises(LogFailed, match=r"failed to sync: .*Input/output error"):
            log.fsync()
    # The system may have dropped what it could not write: a second sync proves nothing.
    with pytest.raises(LogFailed):
        log.fsync()
    with pytest.raises(LogFailed):
        append(log, [b"b"])
    with pytest.raises(LogFailed):
        log.close()
    assert log.durable_offset == 0
    reopened = open_log(clean=False)
    assert append(reopened, [b"b"]).first_offset == 1


def test_closing_syncs_under_every_policy(open_log: OpenLog, append: Append) -> None:
    log = open_log(LogConfig(fsync="os"))
    append(log, [b"a"])
    log.close()
    assert log.durable_offset == 1


def test_records_of_a_failed_sync_are_written_again_when_the_log_is_opened(
    open_log: OpenLog, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    append(log, [b"on disk"])
    log.fsync()
    append(log, [b"in memory only"])

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fail)
        with pytest.raises(LogFailed):
            log.fsync()
        before = len(list(Path("/proc/self/fd").iterdir()))
        with pytest.raises(LogFailed):  # nor does the next one get so far
            open_log(clean=False)
        assert len(list(Path("/proc/self/fd").iterdir())) == before
    path, size = next(log.directory.glob("*.log")), log.size_bytes
    written: list[tuple[str, int, int]] = []
    pwrite = os.pwrite

    def note(descriptor: int, data: memoryview, position: int) -> int:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        written.append((name, position, len(data)))
        return pwrite(descriptor, data, position)

    with monkeypatch.context() as noting:
        noting.setattr(os, "pwrite", note)
        reopened = open_log(clean=False)
        assert written == [(path.name, 0, size)]
        assert reopened.durable_offset == 2
        written.clear()
        open_log(clean=False)
    assert written == []
    with pytest.raises(LogFailed):
        log.close()


def test_a_checkpoint_that_cannot_be_saved_delays_nothing_but_itself(
    open_log: OpenLog, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    log = open_log()
    append(log, [b"a"])
    log.roll()
    append(log, [b"b"])
    with monkeypatch.context() as full:
        full.setattr(Checkpoint, "save", fail)
        assert log.fsync() == log.durable_offset == 2
        assert log.recovery_point == 0
        with pytest.raises(LogFailed, match="the checkpoint cannot be saved"):
            log.checkpoint()
    assert append(log, [b"c"]).first_offset == 2
    assert log.fsync() == log.recovery_point == 3


def test_too_many_open_files_delay_a_sync(
    open_log: OpenLog, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(24, "Too many open files")

    log = open_log()
    append(log, [b"a"])
    for call in ("dup", "open"):
        with monkeypatch.context() as exhausted:
            exhausted.setattr(os, call, fail)
            with pytest.raises(LogFailed, match="cannot be opened for a sync"):
                log.fsync()
        assert log.durable_offset == 0
    assert append(log, [b"b"]).first_offset == 1
    assert log.fsync() == log.durable_offset == 2
