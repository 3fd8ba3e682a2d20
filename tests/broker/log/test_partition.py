from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from struct import pack_into
from typing import Any

import pytest
from crc32c import crc32c

from kmr.broker.log.disk_work import do_now
from kmr.broker.log.durability import Checkpoint
from kmr.broker.log.log_config import DEFAULT_PRODUCER_EXPIRATION_MS, LogConfig
from kmr.broker.log.partition import DeletedSegment, PartitionLog
from kmr.broker.log.producers import OutOfOrderSequence
from kmr.broker.log.records import (
    CRC_START,
    read_records,
    split_batches,
)
from kmr.broker.log.results import Appended, LogCorrupt, LogFailed, OffsetNotInLog
from tests.broker.log.compacting import CONFIG, compact, put

Append = Callable[..., Appended]
OpenLog = Callable[..., PartitionLog]
ReadAll = Callable[[PartitionLog], list[bytes]]
SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=100)
NOW_MS = 1_700_000_000_000
KEEP = LogConfig(retention_ms=-1)


def values_in(data: bytes) -> list[bytes | None]:
    return [record.value for header in split_batches(data) for record in read_records(data, header)]


def test_a_new_log_is_empty(open_log: OpenLog) -> None:
    log = open_log()
    assert (log.log_start_offset, log.next_offset, log.size_bytes) == (0, 0, 0)
    assert not log.dirty
    assert not log.recovery.lost_data
    result = log.read(0, 1000, min_one=True)
    assert (bytes(result.data), result.first_offset, result.next_offset) == (b"", 0, 0)


def test_appended_batches_are_readable_before_they_are_flushed(
    open_log: OpenLog, append: Append
) -> None:
    log = open_log()
    append(log, [b"a"], flush=False)
    append(log, [b"b"], flush=False)
    assert values_in(bytes(log.read(1, 1000, min_one=True).data)) == [b"b"]


@pytest.mark.parametrize("clean", [True, False])
def test_a_duplicate_is_recognised_after_a_restart(
    open_log: OpenLog, append: Append, *, clean: bool
) -> None:
    log = open_log(SMALL)
    for sequence in range(30):
        append(log, [b"x" * 100], producer=(5, 0, sequence))
    log.close()
    log = open_log(SMALL, clean=clean)
    assert append(log, [b"x" * 100], producer=(5, 0, 27)).first_offset == 27
    with pytest.raises(OutOfOrderSequence):
        append(log, [b"x"], producer=(5, 0, 31))


def test_a_batch_that_ends_behind_the_end_of_the_log_is_damage(
    open_log: OpenLog, append: Append
) -> None:
    """Reading it would get nowhere, for ever."""
    log = open_log()
    append(log, [b"a"])
    append(log, [b"b"])
    log.close()
    (path,) = log.directory.glob("*.log")
    content = bytearray(path.read_bytes())
    second = len(content) // 2
    pack_into(">i", content, second + 23, 700)  # the last offset's delta
    pack_into(">I", content, second + 17, crc32c(content[second + CRC_START :]))
    path.write_bytes(content)
    log = open_log(clean=True)
    assert log.next_offset == 2
    with pytest.raises(LogCorrupt, match="ends behind the end of the log, 2"):
        list(log.batches(1))


def test_a_closed_log_takes_no_appends(open_log: OpenLog, append: Append) -> None:
    log = open_log()
    log.close()
    log.close()
    with pytest.raises(LogFailed, match="the log is closed"):
        append(log, [b"a"])


def test_a_deleted_log_leaves_nothing(open_log: OpenLog, append: Append) -> None:
    log = open_log()
    append(log, [b"a"])
    log.delete()
    assert list(log.directory.parent.iterdir()) == []


def test_closing_and_opening_again_needs_no_scan(
    open_log: OpenLog, append: Append, read_all: ReadAll
) -> None:
    log = open_log(SMALL)
    for number in range(30):
        append(log, [b"%d" % number * 50])
    batches = read_all(log)
    log.close()
    log = open_log(SMALL)
    assert log.recovery.scanned_bytes == 0
    assert (log.next_offset, log.recovery_point, log.dirty) == (30, 30, False)
    assert read_all(log) == batches
    append(log, [b"more"])
    assert read_all(log)[:-1] == batches


def fill(log: PartitionLog, append: Append, segments: int) -> int:
    """One record a segment, a second apart; returns the bytes of each."""
    for number in range(segments):
        log.roll()
        append(log, [b"x" * 100], timestamps=[NOW_MS + number * 1000])
    return log.size_bytes // segments


def files(log: PartitionLog, suffix: str) -> list[int]:
    return sorted(int(path.stem) for path in log.directory.glob(f"*{suffix}"))


def test_old_segments_are_deleted_by_the_age_of_their_newest_record(
    open_log: OpenLog, append: Append
) -> None:
    log = open_log(replace(KEEP, retention_ms=2500))
    size = fill(log, append, 5)
    deleted = do_now(log.retention(NOW_MS + 4000))
    assert deleted == [DeletedSegment(0, 1, size), DeletedSegment(1, 2, size)]
    assert (log.log_start_offset, log.next_offset, log.size_bytes) == (2, 5, 3 * size)
    assert files(log, ".log") == [2, 3, 4]
    assert 0 not in files(log, ".index")
    with pytest.raises(OffsetNotInLog):
        log.read(1, 1000, min_one=True)


def test_the_active_segment_is_rolled_when_all_of_it_is_too_old(
    open_log: OpenLog, append: Append
) -> None:
    log = open_log(replace(KEEP, retention_ms=1000))
    fill(log, append, 2)
    assert len(do_now(log.retention(NOW_MS + 60_000))) == 2
    assert (log.log_start_offset, log.next_offset, log.size_bytes) == (2, 2, 0)
    assert do_now(log.retention(NOW_MS + 60_000)) == []
    assert append(log, [b"y"]).first_offset == 2


def test_old_segments_are_deleted_while_the_others_hold_enough(
    open_log: OpenLog, append: Append
) -> None:
    log = open_log(KEEP)
    size = fill(log, append, 5)
    log.update_config(replace(KEEP, retention_bytes=3 * size - 1))
    assert [segment.base_offset for segment in do_now(log.retention(NOW_MS))] == [0, 1]
    log.update_config(replace(KEEP, retention_bytes=0))
    assert [segment.base_offset for segment in do_now(log.retention(NOW_MS))] == [2, 3]
    assert log.log_start_offset == 4


def test_without_limits_everything_is_kept(open_log: OpenLog, append: Append) -> None:
    log = open_log(KEEP)
    fill(log, append, 3)
    assert do_now(log.retention(NOW_MS * 2)) == []


def test_records_without_timestamps_age_by_their_file(open_log: OpenLog, append: Append) -> None:
    log = open_log(replace(KEEP, retention_ms=3_600_000))
    append(log, [b"x"], timestamps=[-1])
    written_ms = int(next(log.directory.glob("*.log")).stat().st_mtime * 1000)
    assert do_now(log.retention(written_ms + 3_600_000)) == []
    assert len(do_now(log.retention(written_ms + 3_600_001))) == 1


def test_deleted_segments_stay_deleted_after_a_kill(open_log: OpenLog, append: Append) -> None:
    log = open_log(KEEP)
    size = fill(log, append, 4)
    log.fsync()
    log.update_config(replace(KEEP, retention_bytes=2 * size))
    do_now(log.retention(NOW_MS))
    log = open_log(KEEP, clean=False)
    assert (log.log_start_offset, log.next_offset, log.recovery.lost_data) == (2, 4, False)


def test_records_below_a_new_start_are_gone_for_good(open_log: OpenLog, append: Append) -> None:
    log = open_log(KEEP)
    append(log, [b"a"] * 10)
    log.roll()
    append(log, [b"b"] * 10)
    do_now(log.truncation(5))
    assert (log.log_start_offset, files(log, ".log")) == (5, [0, 10])
    do_now(log.truncation(3))
    assert log.log_start_offset == 5
    log = open_log(KEEP, clean=False)  # as after a kill
    assert log.log_start_offset == 5
    do_now(log.truncation(12))
    assert (log.log_start_offset, files(log, ".log")) == (12, [10])
    with pytest.raises(OffsetNotInLog):
        do_now(log.truncation(21))


def test_a_search_leaves_out_the_segments_that_are_being_deleted(
    open_log: OpenLog, append: Append
) -> None:
    log = open_log(KEEP)
    for value in (b"a", b"b", b"c", b"d"):
        append(log, [value] * 10)
        log.roll()
    log = open_log(KEEP, clean=False)
    deleting: Any = log.truncation(30)
    save_log_start = next(deleting)
    delete_first = deleting.send(save_log_start())
    assert (log.log_start_offset, files(log, ".log")) == (30, [0, 10, 20, 30, 40])
    search: Any = log.search(0)
    read = next(search)
    do_now(_rest(deleting, delete_first))
    found = do_now(_rest(search, read))
    assert found is not None
    assert found[0] == 30


def test_a_search_begins_again_when_compaction_replaces_what_it_reads(
    open_log: OpenLog, append: Append
) -> None:
    log = open_log(CONFIG)
    append(log, [b"latest", b"kept"], timestamps=[9, 1])
    for _ in range(20):
        put(log, ("same", "x" * 100), timestamp=2)
    last = put(log, ("same", "y"), timestamp=7)
    log.roll()
    do_now(log.truncation(1))
    search: Any = log.search(5)
    read = next(search)
    assert compact(log)
    assert log.size_bytes < 1000
    assert do_now(_rest(search, read)) == (last, 7)


def test_a_file_that_could_not_be_deleted_is_deleted_the_next_time(
    open_log: OpenLog, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(KEEP)
    for value in (b"a", b"b", b"c"):
        append(log, [value] * 10)
        log.roll()
    with monkeypatch.context() as failing:
        failing.setattr(Path, "unlink", _fail)
        with pytest.raises(OSError, match="Input/output error"):
            do_now(log.truncation(10))
    assert (log.log_start_offset, files(log, ".log")) == (10, [0, 10, 20, 30])
    do_now(log.retention(NOW_MS))
    assert files(log, ".log") == [10, 20, 30]
    with monkeypatch.context() as failing:
        failing.setattr(Path, "unlink", _fail)
        with pytest.raises(OSError, match="Input/output error"):
            do_now(log.truncation(20))
    do_now(log.truncation(20))
    assert (log.log_start_offset, files(log, ".log")) == (20, [20, 30])


def _fail(*_: object, **__: object) -> None:
    raise OSError(5, "Input/output error")


def _rest(work: Any, step: Callable[[], object]) -> Any:
    """Go on with begun work, whose next step is `step`."""
    while True:
        done = yield step
        try:
            step = work.send(done)
        except StopIteration as end:
            return end.value


def test_a_log_that_is_emptied_goes_on_with_its_offsets(open_log: OpenLog, append: Append) -> None:
    log = open_log(KEEP)
    append(log, [b"a"] * 10)
    do_now(log.truncation(10))
    assert (log.log_start_offset, log.next_offset, log.size_bytes) == (10, 10, 0)
    for clean in (True, False):
        log.close()
        log = open_log(KEEP, clean=clean)
        assert (log.log_start_offset, log.next_offset) == (10, 10)
        assert log.recovery.lost_durable_records == 0
    assert append(log, [b"b"]).first_offset == 10


def test_retention_forgets_idle_producers(open_log: OpenLog, append: Append) -> None:
    log = open_log(KEEP)
    append(log, [b"a"], producer=(1, 0, 0), now_ms=NOW_MS)
    do_now(log.retention(NOW_MS + DEFAULT_PRODUCER_EXPIRATION_MS - 1))
    assert len(log.producers.ids) == 1
    do_now(log.retention(NOW_MS + DEFAULT_PRODUCER_EXPIRATION_MS))
    assert len(log.producers.ids) == 0


def test_retention_makes_room_on_a_full_disk(
    open_log: OpenLog, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    log = open_log(LogConfig(retention_bytes=0))
    for _ in range(3):
        append(log, [b"a"])
        log.roll()
    with monkeypatch.context() as full:
        full.setattr(Checkpoint, "save", fail)
        deleted = do_now(log.retention(NOW_MS))
    assert [each.base_offset for each in deleted] == [0, 1, 2]
    assert (log.log_start_offset, files(log, ".log")) == (3, [3])


def test_records_are_deleted_on_a_full_disk_if_that_makes_room(
    open_log: OpenLog, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(KEEP)
    for _ in range(3):
        append(log, [b"a"] * 10)
        log.roll()
    save, room = Checkpoint.save, [2, 3]

    def save_if_there_is_room(checkpoint: Checkpoint, directory: Path) -> None:
        if len(files(log, ".log")) > room[0]:
            raise OSError(28, "No space left on device")
        save(checkpoint, directory)

    monkeypatch.setattr(Checkpoint, "save", save_if_there_is_room)
    with pytest.raises(LogFailed, match="No space left"):
        do_now(log.truncation(15))
    room.pop(0)
    do_now(log.truncation(15))
    assert (log.log_start_offset, files(log, ".log")) == (15, [10, 20, 30])
    room[0] = 2
    do_now(log.truncation(25))
    assert (log.log_start_offset, files(log, ".log")) == (25, [20, 30])
    assert open_log(KEEP, clean=False).log_start_offset == 25
