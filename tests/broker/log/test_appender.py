"""Appends: offsets, rolls, duplicates, and writes that fail."""

import errno
import os
import resource
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from kmr.broker.log.disk_work import do_now
from kmr.broker.log.log_config import LogConfig
from kmr.broker.log.partition import PartitionLog
from kmr.broker.log.producers import (
    InvalidProducerEpoch,
    OutOfOrderSequence,
    ProducerIdentity,
)
from kmr.broker.log.records import (
    InvalidBatch,
    NewRecord,
    build_batch,
    read_records,
    split_batches,
)
from kmr.broker.log.results import Appended, LogFailed
from tests.examples import examples

Append = Callable[..., Appended]
OpenLog = Callable[..., PartitionLog]
ReadAll = Callable[[PartitionLog], list[bytes]]
NOW_MS = 1_700_000_000_000
SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=100)


def values_in(data: bytes) -> list[bytes | None]:
    return [record.value for header in split_batches(data) for record in read_records(data, header)]


def test_offsets_are_assigned_in_order_of_appends(open_log: OpenLog, append: Append) -> None:
    log = open_log()
    assert append(log, [b"a", b"b"]).first_offset == 0
    appended = append(log, [b"c"] * 5)
    assert (appended.first_offset, appended.last_offset) == (2, 6)
    assert (appended.log_append_time_ms, appended.log_start_offset) == (-1, 0)
    assert (log.next_offset, log.last_stable_offset) == (7, 7)


def test_several_batches_are_appended_at_once(open_log: OpenLog) -> None:
    log = open_log()
    data = build_batch([NewRecord(None, b"a")] * 2) + build_batch([NewRecord(None, b"b")])
    appended = log.append(data, split_batches(data), now_ms=NOW_MS)
    assert (appended.first_offset, appended.last_offset) == (0, 2)
    assert values_in(bytes(log.read(0, 1000, min_one=False).data)) == [b"a", b"a", b"b"]


def test_many_appends_are_written_by_one_flush(open_log: OpenLog, append: Append) -> None:
    log = open_log()
    for number in range(3000):  # more buffers than one system call takes
        append(log, [str(number).encode()], flush=False)
    log.flush_pending()
    data = bytes(log.read(0, log.size_bytes, min_one=False).data)
    assert values_in(data) == [str(number).encode() for number in range(3000)]


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


def test_append_time_is_stamped_and_answered(open_log: OpenLog, append: Append) -> None:
    log = open_log(LogConfig(message_timestamp_type="LogAppendTime"))
    appended = append(log, [b"a", b"b"], timestamps=[1, 2], now_ms=5000, producer=(1, 0, 0))
    assert appended.log_append_time_ms == 5000
    assert do_now(log.search(3)) == (0, 5000)
    assert do_now(log.search()) == (0, 5000)
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


@contextmanager
def full_disk() -> Iterator[None]:
    def fail(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "no space")

    with patch.object(os, "pwritev", fail):
        yield


def test_a_failed_write_is_undone_without_reading_the_log(
    open_log: OpenLog, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log may have gigabytes, and this is the event loop."""
    log = open_log(LogConfig(index_interval_bytes=100))
    for number in range(20):
        append(log, [b"kept"], timestamps=[number], producer=(5, 0, number))
    append(log, [b"lost"], timestamps=[50], producer=(5, 0, 20), flush=False)
    append(log, [b"lost"], timestamps=[51], producer=(6, 0, 0), flush=False)

    def read(*_: Any) -> int:
        raise AssertionError("the log is read")

    with monkeypatch.context() as unreadable:
        unreadable.setattr(os, "preadv", read)
        with full_disk(), pytest.raises(LogFailed, match="no space; nothing was appended"):
            log.flush_pending()
        retried = append(log, [b"again"], timestamps=[30], producer=(5, 0, 20))
    assert (retried.first_offset, retried.duplicate) == (20, False)
    assert list(log.producers.ids) == [5]
    assert do_now(log.search()) == (20, 30)
    assert do_now(log.search(10)) == (10, 10)
    assert do_now(log.search(40)) is None


def test_a_failed_write_after_a_roll_leaves_an_empty_segment_as_it_was(
    open_log: OpenLog, append: Append, read_all: ReadAll
) -> None:
    log = open_log(SMALL)
    append(log, [b"x" * 800])
    append(log, [b"y" * 800], flush=False)  # begins the second segment
    with full_disk(), pytest.raises(LogFailed):
        log.flush_pending()
    assert (log.next_offset, log.segment_count, log.size_bytes) == (1, 2, 870)
    assert append(log, [b"z" * 800]).first_offset == 1
    assert (len(read_all(log)), log.segment_count) == (2, 2)


KNOWN = ProducerIdentity(5, 1)
"""A producer that has sent sequences 0 and 1 to the log of `begun`."""


def plain(**changes: Any) -> bytearray:
    """A batch that most topics take without a closer look, but for the changes."""
    values = changes.pop("values", (b"a", b"b"))
    timestamp = changes.pop("timestamp", NOW_MS)
    return build_batch([NewRecord(b"k", each, (), timestamp) for each in values], **changes)


def of_known(sequence: int, epoch: int = KNOWN.epoch) -> bytearray:
    return plain(producer_id=KNOWN.producer_id, producer_epoch=epoch, base_sequence=sequence)


def changed(batch: bytearray, at: int, value: int) -> bytearray:
    """The batch with another byte, and the CRC that it has to have then."""
    batch[at] = value
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


def begun(log: PartitionLog) -> PartitionLog:
    data = of_known(0)
    log.append(data, split_batches(data), now_ms=NOW_MS)
    log.flush_pending()
    return log


def state(log: PartitionLog) -> tuple[Any, ...]:
    dump = msgspec.msgpack.decode(log.producers.dump())
    producers = {key: {**each, "last_seen_ms": 0} for key, each in dump["producers"].items()}
    data = bytes(log.read(0, 2**20, min_one=True).data)
    return log.next_offset, data, log.segment_count, producers, do_now(log.search())


@pytest.mark.parametrize(
    ("config", "data"),
    [
        pytest.param(LogConfig(), b"", id="nothing"),
        pytest.param(LogConfig(), plain()[:-1], id="cut"),
        pytest.param(LogConfig(), plain()[:60], id="shorter than a header"),
        pytest.param(LogConfig(), plain() + b"x", id="with more bytes"),
        pytest.param(LogConfig(), plain() * 2, id="two batches"),
        pytest.param(LogConfig(), plain()[:-1] + b"?", id="wrong CRC"),
        pytest.param(LogConfig(), changed(plain(), 16, 1), id="older format"),
        pytest.param(LogConfig(), changed(plain(), 22, 0x08), id="time of a broker"),
        pytest.param(LogConfig(), changed(plain(), 22, 0x07), id="unknown codec"),
        pytest.param(LogConfig(), changed(plain(), 26, 9), id="more offsets than records"),
        pytest.param(LogConfig(), plain(control=True), id="marker"),
        pytest.param(
            LogConfig(),
            plain(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True),
            id="transactional",
        ),
        pytest.param(LogConfig(), plain(producer_id=7, producer_epoch=0), id="no sequence"),
        pytest.param(LogConfig(), of_known(0), id="duplicate"),
        pytest.param(LogConfig(), of_known(4), id="out of sequence"),
        pytest.param(LogConfig(), of_known(2, epoch=0), id="fenced producer"),
        pytest.param(LogConfig(), plain(timestamp=NOW_MS + 3_601_001), id="ahead of the clock"),
        pytest.param(LogConfig(max_message_bytes=len(plain()) - 1), plain(), id="too large"),
        pytest.param(LogConfig(segment_bytes=len(plain()) * 2 - 1), plain(), id="segment full"),
        pytest.param(LogConfig(segment_ms=1_000), plain(), id="segment old"),
        pytest.param(LogConfig(cleanup_policy="compact"), plain(), id="compacted topic"),
        pytest.param(LogConfig(compression_type="zstd"), plain(), id="topic with a codec"),
        pytest.param(
            LogConfig(message_timestamp_type="LogAppendTime"), plain(), id="topic with own times"
        ),
        pytest.param(
            LogConfig(message_timestamp_before_max_ms=1_000), plain(), id="topic with earliest time"
        ),
    ],
)
def test_a_special_batch_is_not_appended_as_a_plain_one(
    open_log: OpenLog, config: LogConfig, data: bytes
) -> None:
    log = begun(open_log())
    log.update_config(config)
    before = state(log)
    assert log.append_plain(memoryview(bytearray(data)), now_ms=NOW_MS + 1_000) is None
    log.flush_pending()
    assert state(log) == before


def test_an_empty_or_closed_log_or_one_with_a_failed_write_takes_no_plain_batch(
    open_log: OpenLog,
) -> None:
    empty = open_log()
    assert empty.append_plain(memoryview(plain()), now_ms=NOW_MS) is None
    log = begun(empty)
    assert log.append_plain(memoryview(plain()), now_ms=NOW_MS) == 2
    with full_disk():
        log.read(0, 1, min_one=True)  # comes upon the failure
    assert log.append_plain(memoryview(plain()), now_ms=NOW_MS) is None
    with pytest.raises(LogFailed):
        log.flush_pending()
    assert log.append_plain(memoryview(plain()), now_ms=NOW_MS) == 2
    log.close()
    assert log.append_plain(memoryview(plain()), now_ms=NOW_MS) is None


@settings(max_examples=examples(180))
@given(
    st.lists(
        st.builds(
            plain,
            values=st.lists(st.binary(max_size=40), min_size=1, max_size=30),
            timestamp=st.integers(-1, NOW_MS + 3_600_000),
            codec=st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"]),
        )
        | st.builds(of_known, st.integers(2, 6), epoch=st.integers(KNOWN.epoch, KNOWN.epoch + 1)),
        min_size=1,
        max_size=8,
    )
)
def test_a_plain_batch_is_appended_as_by_append(batches: list[bytearray]) -> None:
    with TemporaryDirectory() as directory:
        config = LogConfig(index_interval_bytes=100)
        one, other = (
            begun(PartitionLog.open(Path(directory) / name, config, clean=True))
            for name in ("one", "other")
        )
        for batch in batches:
            data = bytes(batch)
            offset = one.append_plain(memoryview(bytearray(data)), now_ms=NOW_MS)
            if offset is None:
                continue  # a sequence that does not fit; see above
            same = bytearray(data)
            appended = other.append(same, split_batches(same), now_ms=NOW_MS)
            assert (appended.first_offset, appended.duplicate) == (offset, False)
        one.flush_pending()
        other.flush_pending()
        assert state(one) == state(other)
        one.close()
        other.close()
        assert [path.read_bytes() for path in sorted(one.directory.glob("*index"))] == [
            path.read_bytes() for path in sorted(other.directory.glob("*index"))
        ]
