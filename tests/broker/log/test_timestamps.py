from collections.abc import Callable
from pathlib import Path
from struct import pack_into
from tempfile import TemporaryDirectory

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.log.config import LogConfig
from broker.log.partition import Appended, PartitionLog
from broker.records import (
    CODECS,
    CRC_START,
    HEADER_BYTES,
    Codec,
    NewRecord,
    build_batch,
    split_batches,
)

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
            log.truncate_start(start)
            visible = records[start:]
            for timestamp in range(62):
                assert log.offset_for_timestamp(timestamp) == first_since(visible, timestamp)
            latest = max((time for _, time in visible), default=None)
            assert log.offset_of_max_timestamp() == (
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
        assert log.offset_for_timestamp(timestamp) == (timestamp - 1000, timestamp)
    assert log.offset_for_timestamp(1100) is None


def test_records_without_timestamps_are_never_found(
    open_log: Callable[..., PartitionLog], append: Append
) -> None:
    log = open_log()
    append(log, [b"a"], timestamps=[-1])
    assert log.offset_for_timestamp(0) is None
    assert log.offset_of_max_timestamp() is None


def test_a_batch_whose_records_nobody_can_read_is_found_by_its_header(
    open_log: Callable[..., PartitionLog], append: Append
) -> None:
    log = open_log()
    append(log, [b"before"], timestamps=[1_000])
    batch = build_batch([NewRecord(None, b"value", (), 2_000)])
    batch[HEADER_BYTES:] = b"\xff" * (len(batch) - HEADER_BYTES)
    pack_into(">I", batch, 17, crc32c(batch[CRC_START:]))  # a client that errs computes it after
    log.append(batch, split_batches(batch), now_ms=0)
    append(log, [b"after"], timestamps=[3_000])
    assert log.offset_for_timestamp(1_500) == (1, 2_000)
    assert log.offset_for_timestamp(2_500) == (2, 3_000)
    assert log.offset_of_max_timestamp() == (2, 3_000)
