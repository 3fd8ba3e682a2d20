"""Reads and searches across the segments of a log."""

from collections.abc import Callable
from pathlib import Path
from struct import pack_into
from tempfile import TemporaryDirectory

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from kmr.broker.log.disk_work import do_now
from kmr.broker.log.log_config import LogConfig
from kmr.broker.log.partition import PartitionLog
from kmr.broker.log.records import (
    CODECS,
    CRC_START,
    HEADER_BYTES,
    Codec,
    NewRecord,
    build_batch,
    read_records,
    split_batches,
)
from kmr.broker.log.results import Appended, OffsetNotInLog

Append = Callable[..., Appended]
batches = st.lists(
    st.tuples(
        st.lists(st.integers(min_value=0, max_value=60), min_size=1, max_size=6),
        st.sampled_from(list(CODECS)),
        st.sampled_from(["", "roll", "reopen"]),
    ),
    max_size=25,
)


def first_since(records: list[tuple[int, int]], timestamp: int) -> tuple[int, int] | None:
    return next(((offset, time) for offset, time in records if time >= timestamp), None)


@settings(deadline=None)
@given(batches, st.integers(min_value=0, max_value=100), st.sampled_from([0, 60, 300]))
def test_lookups_by_timestamp_agree_with_a_search_of_all_records(
    append: Append,
    batches: list[tuple[list[int], Codec, str]],
    start_percent: int,
    index_interval_bytes: int,
) -> None:
    config = LogConfig(segment_bytes=600, index_interval_bytes=index_interval_bytes)
    records: list[tuple[int, int]] = []
    with TemporaryDirectory() as name:
        log = PartitionLog.open(Path(name), config, clean=True)
        for timestamps, codec, then in batches:
            values = [b"value value value"] * len(timestamps)
            first = append(log, values, timestamps=timestamps, codec=codec).first_offset
            records += [(first + i, time) for i, time in enumerate(timestamps)]
            if then == "roll":
                log.roll()
            elif then == "reopen":
                log.close()
                log = PartitionLog.open(Path(name), config, clean=True)
        for start in (0, log.next_offset * start_percent // 100):
            do_now(log.truncation(start))
            visible = records[start:]
            for timestamp in range(62):
                assert do_now(log.search(timestamp)) == first_since(visible, timestamp)
            latest = max((time for _, time in visible), default=None)
            assert do_now(log.search()) == (
                None if latest is None else first_since(visible, latest)
            )
        log.close()


@pytest.mark.parametrize("clean", [True, False])
def test_lookups_work_without_index_files(
    open_log: Callable[..., PartitionLog], append: Append, *, clean: bool
) -> None:
    config = LogConfig(segment_bytes=2000, index_interval_bytes=100)
    log = open_log(config)
    for timestamp in range(1000, 1100):
        append(log, [b"x" * 30], timestamps=[timestamp])
    log.close()
    for path in (*log.directory.glob("*.index"), *log.directory.glob("*.timeindex")):
        path.unlink()
    log = open_log(config, clean=clean)
    for timestamp in range(1000, 1100):
        assert do_now(log.search(timestamp)) == (timestamp - 1000, timestamp)
    assert do_now(log.search(1100)) is None


def test_records_without_timestamps_are_never_found(
    open_log: Callable[..., PartitionLog], append: Append
) -> None:
    log = open_log()
    append(log, [b"a"], timestamps=[-1])
    assert do_now(log.search(0)) is None
    assert do_now(log.search()) is None


def test_a_batch_with_unreadable_records_is_found_by_its_header(
    open_log: Callable[..., PartitionLog], append: Append
) -> None:
    log = open_log()
    append(log, [b"before"], timestamps=[1_000])
    batch = build_batch([NewRecord(None, b"value", (), 2_000)])
    batch[HEADER_BYTES:] = b"\xff" * (len(batch) - HEADER_BYTES)
    pack_into(">I", batch, 17, crc32c(batch[CRC_START:]))  # a client that errs computes it after
    log.append(batch, split_batches(batch), now_ms=0)
    append(log, [b"after"], timestamps=[3_000])
    assert do_now(log.search(1_500)) == (1, 2_000)
    assert do_now(log.search(2_500)) == (2, 3_000)
    assert do_now(log.search()) == (2, 3_000)


OpenLog = Callable[..., PartitionLog]
ReadAll = Callable[[PartitionLog], list[bytes]]
SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=100)


def values_in(data: bytes) -> list[bytes | None]:
    return [record.value for header in split_batches(data) for record in read_records(data, header)]


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


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


def test_a_read_into_a_small_buffer_returns_the_needed_size(
    open_log: OpenLog, append: Append
) -> None:
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
    with pytest.raises(OffsetNotInLog, match="offset 3 is out of range: the log holds 0 to 2"):
        log.read(3, 1000, min_one=True)
    do_now(log.truncation(1))
    with pytest.raises(OffsetNotInLog):
        log.read(0, 1000, min_one=True)


def test_reads_of_many_segments_keep_few_files_open(
    open_log: OpenLog, append: Append, read_all: ReadAll
) -> None:
    log = open_log(SMALL)
    before = open_descriptors()
    for _ in range(100):
        append(log, [b"x" * 900])
    log.fsync()
    read_all(log)
    assert do_now(log.search(0)) is not None
    assert open_descriptors() <= before + 5
