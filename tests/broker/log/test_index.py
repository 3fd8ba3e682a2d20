from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from broker.log.index import SegmentIndex

# batches as (records, bytes, timestamp)
batches = st.lists(
    st.tuples(st.integers(1, 5), st.integers(61, 300), st.integers(-1, 30)), max_size=60
)
BASE = 1000


@given(batches, st.sampled_from([0, 100, 500]), st.integers(BASE, BASE + 300), st.integers(-1, 31))
def test_an_index_points_to_a_batch_at_or_before_what_is_wanted(
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
