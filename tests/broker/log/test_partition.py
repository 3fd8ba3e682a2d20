import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.log.config import LogConfig
from broker.log.errors import LogFailed, OffsetOutOfRange
from broker.log.partition import Appended, PartitionLog
from broker.producers.states import InvalidProducerEpoch, OutOfOrderSequence
from broker.records import InvalidBatch, NewRecord, build_batch, read_records, split_batches

Append = Callable[..., Appended]
OpenLog = Callable[..., PartitionLog]
ReadAll = Callable[[PartitionLog], list[bytes]]
NOW_MS = 1_700_000_000_000
SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=100)


def values_in(data: bytes) -> list[bytes | None]:
    return [record.value for header in split_batches(data) for record in read_records(data, header)]


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_new_log_is_empty(open_log: OpenLog) -> None:
    log = open_log()
    assert (log.log_start_offset, log.next_offset, log.size_bytes) == (0, 0, 0)
    assert not log.dirty
    assert not log.recovery.lost_data
    result = log.read(0, 1000, min_one=True)
    assert (bytes(result.data), result.first_offset, result.next_offset) == (b"", 0, 0)


def test_offsets_are_assigned_in_order_of_appends(open_log: OpenLog, append: Append) -> None:
    log = open_log()
    assert append(log, [b"a", b"b"]).first_offset == 0
    appended = append(log, [b"c"] * 5)
    assert (appended.first_offset, appended.last_offset) == (2, 6)
    assert (appended.log_append_time_ms, appended.log_start_offset) == (-1, 0)
    assert (log.next_offset, log.high_watermark, log.last_stable_offset) == (7, 7, 7)


def test_several_batches_are_appended_at_once(open_log: OpenLog) -> None:
    log = open_log()
    data = build_batch([NewRecord(None, b"a")] * 2) + build_batch([NewRecord(None, b"b")])
    appended = log.append(data, split_batches(data), now_ms=NOW_MS)
    assert (appended.first_offset, appended.last_offset) == (0, 2)
    assert values_in(bytes(log.read(0, 1000, min_one=False).data)) == [b"a", b"a", b"b"]


def test_appended_batches_are_readable_before_they_are_flushed(
    open_log: OpenLog, append: Append
) -> None:
    log = open_log()
    append(log, [b"a"], flush=False)
    append(log, [b"b"], flush=False)
    assert values_in(bytes(log.read(1, 1000, min_one=True).data)) == [b"b"]


def test_many_appends_are_written_by_one_flush(open_log: OpenLog, append: Append) -> None:
    log = open_log()
    for number in range(3000):  # more buffers than one system call takes
        append(log, [str(number).encode()], flush=False)
    log.flush_pending()
    data = bytes(log.read(0, log.size_bytes, min_one=False).data)
    assert values_in(data) == [str(number).encode() for number in range(3000)]


def test_a_read_begins_with_the_batch_that_contains_the_offset(
    open_log: OpenLog, append: Append
) -> None:
    log = open_log(LogConfig(index_interval_bytes=200))
    for number in range(50):
        append(log, [b"%d-%d" % (number, i) for i in range(3)])
    for offset in range(150):
        result = log.read(offset, 300, min_one=False)
        assert result.first_offset == offset - offset % 3
        assert len(values_in(bytes(result.data))) == result.next_offset - result.first_offset
        assert values_in(bytes(result.data))[0] == b"%d-0" % (offset // 3)
        assert len(result.data) <= 300


def test_a_first_batch_over_the_limit_is_read_whole_if_asked(
    open_log: OpenLog, append: Append
) -> None:
    log = open_log()
    append(log, [b"x" * 5000])
    append(log, [b"y"])
    assert len(log.read(0, 100, min_one=False).data) == 0
    assert values_in(bytes(log.read(0, 100, min_one=True).data)) == [b"x" * 5000]
    assert values_in(bytes(log.read(0, 0, min_one=True).data)) == [b"x" * 5000]


def test_a_buffer_that_is_too_small_says_what_is_needed(open_log: OpenLog, append: Append) -> None:
    log = open_log()
    append(log, [b"x" * 5000])
    span = log.read_into(0, memoryview(bytearray(100)))
    assert span.size == 0
    buffer = memoryview(bytearray(span.needed_bytes))
    assert log.read_into(0, buffer).size == len(buffer)


def test_reading_outside_the_log_is_out_of_range(open_log: OpenLog, append: Append) -> None:
    log = open_log()
    append(log, [b"a", b"b"])
    assert len(log.read(2, 1000, min_one=True).data) == 0
    with pytest.raises(OffsetOutOfRange, match="offset 3 is out of range: the log holds 0 to 2"):
        log.read(3, 1000, min_one=True)
    log.truncate_start(1)
    with pytest.raises(OffsetOutOfRange):
        log.read(0, 1000, min_one=True)


def test_segments_are_rolled_by_size_and_read_across(
    open_log: OpenLog, append: Append, read_all: ReadAll
) -> None:
    log = open_log(SMALL)
    for number in range(40):
        append(log, [b"%d" % number * 20])
    assert len(list(log.directory.glob("*.log"))) > 4
    assert all(path.stat().st_size <= 1000 for path in log.directory.glob("*.log"))
    assert len(read_all(log)) == 40


def test_a_batch_larger_than_a_segment_gets_its_own(
    open_log: OpenLog, append: Append, read_all: ReadAll
) -> None:
    log = open_log(SMALL)
    append(log, [b"small"])
    append(log, [b"x" * 3000])
    append(log, [b"small"])
    assert len(list(log.directory.glob("*.log"))) == 3
    assert [len(batch) > 3000 for batch in read_all(log)] == [False, True, False]


def test_a_segment_is_rolled_by_age(open_log: OpenLog, append: Append) -> None:
    log = open_log(LogConfig(segment_ms=1000))
    append(log, [b"a"], now_ms=NOW_MS)
    append(log, [b"b"], now_ms=NOW_MS + 999)
    append(log, [b"c"], now_ms=NOW_MS + 1000)
    append(log, [b"d"], now_ms=NOW_MS + 1999)
    assert sorted(path.stem for path in log.directory.glob("*.log")) == [f"{0:020}", f"{2:020}"]


def test_rolling_an_empty_segment_does_nothing(open_log: OpenLog) -> None:
    log = open_log()
    log.roll()
    log.roll()
    assert len(list(log.directory.glob("*.log"))) == 1


def test_reads_of_many_segments_keep_few_files_open(
    open_log: OpenLog, append: Append, read_all: ReadAll
) -> None:
    log = open_log(SMALL)
    before = open_descriptors()
    for _ in range(100):
        append(log, [b"x" * 900])
    log.fsync()
    read_all(log)
    assert log.offset_for_timestamp(0) is not None
    assert open_descriptors() <= before + 5


def test_append_time_is_stamped_and_answered(open_log: OpenLog, append: Append) -> None:
    log = open_log(LogConfig(message_timestamp_type="LogAppendTime"))
    appended = append(log, [b"a", b"b"], timestamps=[1, 2], now_ms=5000, producer=(1, 0, 0))
    assert appended.log_append_time_ms == 5000
    assert log.offset_for_timestamp(3) == (0, 5000)
    assert log.offset_of_max_timestamp() == (0, 5000)
    again = append(log, [b"a", b"b"], timestamps=[1, 2], now_ms=6000, producer=(1, 0, 0))
    assert (again.duplicate, again.log_append_time_ms) == (True, 5000)


def test_a_duplicate_is_answered_and_not_written(open_log: OpenLog, append: Append) -> None:
    log = open_log()
    append(log, [b"other"])
    first = append(log, [b"a", b"b"], producer=(5, 0, 0), flush=False)
    again = append(log, [b"a", b"b"], producer=(5, 0, 0))
    assert (again.first_offset, again.last_offset) == (first.first_offset, first.last_offset)
    assert (first.duplicate, again.duplicate, log.next_offset) == (False, True, 3)


def test_a_batch_out_of_sequence_is_refused_and_not_written(
    open_log: OpenLog, append: Append
) -> None:
    log = open_log()
    append(log, [b"a"], producer=(5, 1, 0))
    with pytest.raises(OutOfOrderSequence):
        append(log, [b"c"], producer=(5, 1, 2))
    with pytest.raises(InvalidProducerEpoch):
        append(log, [b"c"], producer=(5, 0, 1))
    assert log.next_offset == 1


def test_producers_with_ids_append_one_batch_at_a_time(open_log: OpenLog) -> None:
    data = build_batch([NewRecord(None, b"a")], producer_id=1, producer_epoch=0, base_sequence=0)
    data += build_batch([NewRecord(None, b"b")])
    log = open_log()
    with pytest.raises(InvalidBatch, match="one batch at a time"):
        log.append(data, split_batches(data), now_ms=NOW_MS)
    assert log.next_offset == 0


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


def test_data_that_is_not_the_batches_is_a_mistake_of_the_caller(open_log: OpenLog) -> None:
    batch = build_batch([NewRecord(None, b"a")])
    with pytest.raises(ValueError, match="do not make up"):
        open_log().append(batch + b"x", split_batches(batch), now_ms=NOW_MS)


def test_a_failed_write_is_undone_and_reported(
    open_log: OpenLog, append: Append, read_all: ReadAll
) -> None:
    log = open_log()
    append(log, [b"kept"], producer=(5, 0, 0))
    kept = read_all(log)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    append(log, [b"x" * 5000], producer=(5, 0, 1), flush=False)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.size_bytes - 100, limits[1]))
    try:
        with pytest.raises(LogFailed, match="nothing was appended"):
            log.flush_pending()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert log.next_offset == 1
    assert read_all(log) == kept
    retried = append(log, [b"x" * 5000], producer=(5, 0, 1))
    assert (retried.first_offset, retried.duplicate) == (1, False)
    assert len(read_all(log)) == 2
    log.close()
    assert not open_log(clean=False).recovery.lost_data


def test_a_failed_write_is_reported_even_if_a_read_came_upon_it_first(
    open_log: OpenLog, append: Append
) -> None:
    log = open_log()
    append(log, [b"kept"])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    append(log, [b"x" * 5000], flush=False)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.size_bytes - 100, limits[1]))
    try:
        assert log.read(0, 1000, min_one=True).next_offset == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with pytest.raises(LogFailed):
        append(log, [b"y"], flush=False)
    with pytest.raises(LogFailed):
        log.flush_pending()
    assert append(log, [b"y"]).first_offset == 1


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
