"""Damage in a segment is reported when it is read; its index is rebuilt."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.broker.log.log_config import LogConfig
from kmr.broker.log.partition import PartitionLog
from kmr.broker.log.results import Appended, LogCorrupt
from kmr.broker.log.segment import SegmentIndex, segment_path

Append = Callable[..., Appended]
OpenLog = Callable[..., PartitionLog]
ReadAll = Callable[[PartitionLog], list[bytes]]
CONFIG = LogConfig(index_interval_bytes=200)
# batches as (records, bytes, timestamp)
batches = st.lists(
    st.tuples(st.integers(1, 5), st.integers(61, 300), st.integers(-1, 30)), max_size=60
)
BASE = 1000


def reopen(directory: Path, *, clean: bool = False) -> PartitionLog:
    return PartitionLog.open(directory, CONFIG, clean=clean)


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def fill(log: PartitionLog, append: Append, batches: int, *, roll_every: int = 0) -> None:
    for number in range(batches):
        if roll_every and number and number % roll_every == 0:
            log.roll()
        append(log, [b"%d" % number] * 3)


@pytest.mark.parametrize("clean", [True, False])
def test_a_bit_flip_below_the_recovery_point_is_reported_when_read(
    open_log: OpenLog, append: Append, read_all: ReadAll, *, clean: bool
) -> None:
    log = open_log(CONFIG)
    fill(log, append, 20, roll_every=10)
    batches = read_all(log)
    log.close()
    for base_offset, number in ((0, 4), (30, 15)):  # an old segment and the active one
        path = segment_path(log.directory, base_offset)
        position = sum(map(len, batches[base_offset // 3 : number]))
        flip(path, position + 70)
        log = open_log(CONFIG, clean=clean)
        assert log.next_offset == 60
        assert not log.recovery.lost_data
        if base_offset == 30 and not clean:
            assert f"{path} is corrupt at byte {position}: its CRC" in log.recovery.damaged
        for offset in range(60):
            if offset // 3 == number:
                with pytest.raises(LogCorrupt, match=f"{path} is corrupt at byte {position}: "):
                    log.read(offset, 1, min_one=True)
            else:
                data = log.read(offset, 1, min_one=True).data
                assert data == batches[offset // 3]
        log.close()
        flip(path, position + 70)


def test_intact_batches_before_a_bad_one_are_still_read(
    open_log: OpenLog, append: Append, read_all: ReadAll
) -> None:
    log = open_log(CONFIG)
    fill(log, append, 5)
    batches = read_all(log)
    log.close()
    flip(segment_path(log.directory, 0), log.size_bytes - 1)
    log = open_log(CONFIG)
    result = log.read(0, 10_000, min_one=True)
    assert bytes(result.data) == b"".join(batches[:4])
    with pytest.raises(LogCorrupt):
        log.read(result.next_offset, 10_000, min_one=True)


def test_a_damaged_length_does_not_cost_memory(
    open_log: OpenLog, append: Append, tmp_path: Path
) -> None:
    log = open_log(CONFIG)
    append(log, [b"first"])
    log.close()
    path = segment_path(log.directory, 0)
    with path.open("r+b") as file:
        file.truncate(200 * 2**20)  # sparse
        file.seek(8)
        file.write((150 * 2**20).to_bytes(4, "big"))
    tracemalloc.start()
    try:
        recovered = reopen(log.directory)
        assert recovered.recovery.truncated_bytes > 190 * 2**20
        assert recovered.next_offset == 1
        with pytest.raises(LogCorrupt):
            recovered.read_into(0, memoryview(bytearray(100)))
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "empty", "torn", "flipped", "stale"])
def test_a_bad_index_is_rebuilt(
    open_log: OpenLog, append: Append, read_all: ReadAll, suffix: str, damage: str
) -> None:
    log = open_log(CONFIG)
    fill(log, append, 60, roll_every=20)
    batches = read_all(log)
    log.close()
    stale = segment_path(log.directory, 60).with_suffix(suffix).read_bytes()
    for path in log.directory.glob(f"*{suffix}"):
        data = path.read_bytes()
        if damage == "missing":
            path.unlink()
        elif damage == "stale":
            path.write_bytes(stale)
        elif damage == "flipped":
            flip(path, len(data) // 2)
        else:
            path.write_bytes(data[: len(data) // 2 if damage == "torn" else 0])
    log = open_log(CONFIG)
    for offset in range(180):
        assert log.read(offset, 1, min_one=True).data == batches[offset // 3]


@given(batches, st.sampled_from([0, 100, 500]), st.integers(BASE, BASE + 300), st.integers(-1, 31))
def test_an_index_points_to_a_batch_at_or_before_the_wanted_one(
    batches: list[tuple[int, int, int]], interval: int, wanted_offset: int, wanted_time: int
) -> None:
    index = SegmentIndex(BASE)
    positions, times = {BASE: 0}, []
    offset, position = BASE, 0
    for count, size, timestamp in batches:
        positions[offset] = position
        times.append((offset, timestamp))
        index.add(offset, position, timestamp, interval)
        offset, position = offset + count, position + size
    found_offset, found_position = index.position_before(wanted_offset)
    assert found_offset <= wanted_offset
    assert positions[found_offset] == found_position
    between = [p for o, p in positions.items() if found_offset < o <= wanted_offset]
    assert max(between, default=0) - found_position <= interval + 600  # sparse, but not too sparse
    start = index.offset_before(wanted_time)
    assert all(time < wanted_time for first, time in times if first < start)
    assert index.max_timestamp == max((time for _, time in times), default=-1)


def test_a_saved_index_is_loaded_for_its_own_segment_only(tmp_path: Path) -> None:
    log_path = tmp_path / "segment.log"
    index = SegmentIndex(BASE)
    for number in range(10):
        index.add(BASE + number, number * 100, 50 + number, 250)
    index.save(log_path, log_size=1000, next_offset=BASE + 10)
    loaded = SegmentIndex.load(log_path, BASE, log_size=1000, next_offset=BASE + 10)
    assert loaded is not None
    assert loaded.max_timestamp == 59
    for offset in range(BASE, BASE + 10):
        assert loaded.position_before(offset) == index.position_before(offset)
    for timestamp in range(49, 61):
        assert loaded.offset_before(timestamp) == index.offset_before(timestamp)
    assert SegmentIndex.load(log_path, BASE, log_size=1001, next_offset=BASE + 10) is None
    assert SegmentIndex.load(log_path, BASE, log_size=1000, next_offset=BASE + 11) is None
    assert SegmentIndex.load(log_path, BASE - 1, log_size=1000, next_offset=BASE + 10) is None
    log_path.with_suffix(".timeindex").unlink()
    assert SegmentIndex.load(log_path, BASE, log_size=1000, next_offset=BASE + 10) is None
