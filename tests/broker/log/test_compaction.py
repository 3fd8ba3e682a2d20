"""When a log is compacted, and which records, tombstones, markers and producers stay."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from kmr.broker.log.compaction import (
    COMPACTION_FILE,
    Compaction,
    CompactionState,
    Horizon,
    Stopped,
    plan_compaction,
)
from kmr.broker.log.disk_work import do_now
from kmr.broker.log.log_config import TimestampType
from kmr.broker.log.partition import PartitionLog
from kmr.broker.log.records import (
    CODECS,
    Codec,
    NewRecord,
    StoredRecord,
    build_batch,
    encode_batch,
    parse_header,
    read_records,
    split_batches,
)
from kmr.broker.log.results import LogCorrupt

from .compacting import CONFIG, NOW, Open, compact, end_transaction, log_files, pairs, put, stored


def test_only_the_latest_record_of_each_key_stays_where_it_was(open_log: Open) -> None:
    log = open_log(CONFIG)
    put(log, ("a", "1"), ("b", "1"), ("a", "2"))
    put(log, ("c", "1"))
    put(log, ("a", "3"), ("b", "2"))
    log.roll()
    put(log, ("c", "active"))
    assert compact(log)
    assert pairs(log) == {3: ("c", "1"), 4: ("a", "3"), 5: ("b", "2"), 6: ("c", "active")}
    assert (log.log_start_offset, log.next_offset) == (0, 7)
    assert not compact(log), "there is nothing new"


@pytest.mark.parametrize("max_bytes", [1, 61, 100, 1000])
def test_a_read_skips_batches_without_records(open_log: Open, max_bytes: int) -> None:
    log = open_log(replace(CONFIG, segment_bytes=1))  # a segment of its own for each batch
    for _ in range(5):
        put(log, ("a", "old"))
    put(log, ("a", "new"))
    put(log, ("b", "active"))
    assert compact(log)
    assert len(log_files(log)) == 7
    for offset in range(6):
        result = log.read(offset, max_bytes, min_one=True)
        assert (result.first_offset, result.next_offset) == (5, 6)
        assert [
            record.value for record in read_records(result.data, parse_header(result.data))
        ] == [b"new"]


def test_a_read_returns_batches_without_records_at_the_log_end(open_log: Open) -> None:
    log = open_log(CONFIG)
    batch = build_batch([NewRecord(None, b"without a key", (), NOW)])
    log.append(batch, [parse_header(batch)], now_ms=NOW)
    log.flush_pending()
    log.roll()
    assert compact(log)
    result = log.read(0, 1, min_one=True)
    assert parse_header(result.data).record_count == 0
    assert result.next_offset == log.next_offset == 1


def test_the_active_segment_is_never_touched(open_log: Open) -> None:
    log = open_log(CONFIG)
    put(log, ("a", "1"))
    put(log, ("a", "2"))
    before = log_files(log)[-1].read_bytes()
    assert not compact(log)
    assert log_files(log)[-1].read_bytes() == before


def test_a_compacted_log_is_the_same_after_a_restart(open_log: Open) -> None:
    log = open_log(CONFIG)
    for n in range(10):
        put(log, (f"k{n % 3}", str(n)))
        log.roll()
    compact(log)
    before = pairs(log)
    log.close()
    assert pairs(open_log(CONFIG)) == before
    assert pairs(open_log(CONFIG, clean=False)) == before


def test_small_segments_become_one(open_log: Open) -> None:
    log = open_log(replace(CONFIG, segment_bytes=1000))
    for n in range(30):
        put(log, ("k", str(n)))
        log.roll()
    assert len(log_files(log)) == 31
    while compact(log):
        pass
    put(log, ("k", "30"))
    log.roll()
    compact(log)
    assert len(log_files(log)) <= 4
    assert pairs(log) == {30: ("k", "30")}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_a_batch_keeps_all_but_the_records_that_went(
    open_log: Open, codec: Codec, timestamp_type: TimestampType
) -> None:
    log = open_log(replace(CONFIG, message_timestamp_type=timestamp_type))
    records = [
        NewRecord(b"k%d" % (n % 4), b"v" * 30 + b"%d" % n, [("h", b"x"), ("n", None)], time)
        for n, time in enumerate([5, -1, 3, 9, 7, 6])
    ]
    batch = build_batch(records, codec=codec, producer_id=7, producer_epoch=1, base_sequence=3)
    log.append(batch, split_batches(batch), now_ms=NOW)
    log.flush_pending()
    log.roll()
    before = {record.offset: record for record in stored(log)}
    header = parse_header(log.read(0, 1, min_one=True).data)
    compact(log)
    after = parse_header(log.read(0, 1, min_one=True).data)
    assert stored(log) == [before[offset] for offset in (2, 3, 4, 5)]
    assert (after.base_offset, after.last_offset) == (header.base_offset, header.last_offset)
    assert (after.producer_id, after.producer_epoch, after.base_sequence) == (7, 1, 3)
    assert (after.compression, after.timestamp_type) == (CODECS[codec], header.timestamp_type)
    assert after.max_timestamp == max(record.timestamp for record in stored(log))


def test_a_tombstone_stays_for_a_while_after_its_keys_records_are_gone(open_log: Open) -> None:
    log = open_log(CONFIG)
    put(log, ("a", "1"), ("b", "1"))
    put(log, ("a", None))
    log.roll()
    compact(log, NOW)
    assert pairs(log) == {1: ("b", "1"), 2: ("a", None)}
    put(log, ("c", None))
    log.roll()
    compact(log, NOW + 500)
    assert not compact(log, NOW + 999)
    assert compact(log, NOW + 1000), "the tombstone alone makes it due"
    assert pairs(log) == {1: ("b", "1"), 3: ("c", None)}
    assert compact(log, NOW + 1500)
    assert pairs(log) == {1: ("b", "1")}
    assert not compact(log, NOW + 10_000)


def test_a_tombstone_that_is_outdated_goes_at_once(open_log: Open) -> None:
    log = open_log(CONFIG)
    put(log, ("a", None))
    put(log, ("a", "1"))
    log.roll()
    compact(log)
    assert pairs(log) == {1: ("a", "1")}
    assert CompactionState.load(log.directory) == CompactionState(2, ())


def test_tombstones_of_one_pass_age_together() -> None:
    state = CompactionState().after_pass(10, [3, 4], 100).after_pass(20, [4, 15], 200)
    assert state.horizons == (Horizon(10, 100, 1), Horizon(20, 200, 1))
    assert state.expired_tombstones_end(149, 50) == 0
    assert state.expired_tombstones_end(150, 50) == 10
    assert state.expired_tombstones_end(250, 50) == 20
    assert state.after_pass(20, [], 300).horizons == ()


def test_records_without_a_key_go(open_log: Open) -> None:
    log = open_log(CONFIG)
    batch = build_batch([NewRecord(None, b"x"), NewRecord(b"a", b"1")])
    log.append(batch, split_batches(batch), now_ms=NOW)
    log.roll()
    compact(log)
    assert pairs(log) == {1: ("a", "1")}


def test_undecodable_records_stay_as_they_are(open_log: Open) -> None:
    log = open_log(CONFIG)
    whole = build_batch([NewRecord(b"a", b"1"), NewRecord(b"a", b"2")])
    header = parse_header(whole)
    broken = encode_batch(header, b"\xff" * 20)
    log.append(broken, split_batches(broken), now_ms=NOW)
    put(log, ("a", "1"))
    put(log, ("a", "2"))
    log.roll()
    compact(log)
    assert bytes(log.read(0, 1, min_one=True).data) == bytes(broken)
    assert [record.offset for record in read_all_from(log, 2)] == [3]


def read_all_from(log: PartitionLog, offset: int) -> Iterable[StoredRecord]:
    while offset < log.next_offset:
        result = log.read(offset, 1, min_one=True)
        yield from read_records(result.data, parse_header(result.data))
        offset = result.next_offset


def test_a_time_finds_the_records_that_are_left(open_log: Open) -> None:
    log = open_log(CONFIG)
    for n in range(6):
        put(log, ("a" if n % 2 else f"k{n}", str(n)), timestamp=NOW + n)
    log.roll()
    compact(log)
    assert sorted(pairs(log)) == [0, 2, 4, 5]
    assert do_now(log.search(NOW + 1)) == (2, NOW + 2)
    assert do_now(log.search(NOW + 5)) == (5, NOW + 5)
    assert do_now(log.search()) == (5, NOW + 5)
    log.close()
    assert do_now(open_log(CONFIG).search(NOW + 3)) == (4, NOW + 4)


def test_age_deletes_nothing_where_a_log_is_only_compacted(open_log: Open) -> None:
    config = replace(CONFIG, retention_ms=10, retention_bytes=1)
    log = open_log(config)
    put(log, ("a", "1"))
    log.roll()
    assert do_now(log.retention(NOW + 1000)) == []
    log.update_config(replace(config, cleanup_policy="compact,delete"))
    assert [each.base_offset for each in do_now(log.retention(NOW + 1000))] == [0]


def test_deleted_records_are_left_out(open_log: Open) -> None:
    log = open_log(CONFIG)
    put(log, *((f"k{n}", "x") for n in range(6)))
    log.roll()
    do_now(log.truncation(3))
    compact(log)
    assert sorted(pairs(log)) == [3, 4, 5]
    log.close()
    assert open_log(CONFIG).log_start_offset == 3


def test_a_lost_state_means_that_all_is_compacted_again(open_log: Open) -> None:
    log = open_log(CONFIG)
    put(log, ("a", "1"), ("a", None))
    log.roll()
    compact(log)
    (log.directory / COMPACTION_FILE).write_bytes(b"damaged")
    assert compact(log, NOW + 5000)
    assert pairs(log) == {1: ("a", None)}, "its time begins anew"
    assert compact(log, NOW + 6000)
    assert pairs(log) == {}


def test_a_log_that_lost_records_forgets_the_progress_of_compaction(open_log: Open) -> None:
    log = open_log(CONFIG)
    put(log, ("a", "1"))
    log.roll()
    put(log, ("a", "2"))
    log.roll()
    compact(log)
    log.close()
    for path in log_files(log):
        path.unlink()
    again = open_log(CONFIG)
    assert again.recovery.lost_durable_records
    assert CompactionState.load(log.directory) == CompactionState()


def test_compaction_waits_until_enough_is_new(open_log: Open) -> None:
    log = open_log(replace(CONFIG, min_cleanable_dirty_ratio=0.5))
    for n in range(8):
        put(log, (f"k{n}", "x"))
    log.roll()
    assert compact(log)
    for n in range(9):
        put(log, (f"n{n}", "x"))
        log.roll()
        assert compact(log) == (n == 8), n


def test_records_stay_as_they_are_for_the_lag(open_log: Open) -> None:
    log = open_log(replace(CONFIG, min_compaction_lag_ms=100))
    put(log, ("a", "1"))
    log.roll()
    put(log, ("a", "2"), timestamp=NOW + 50)
    log.roll()
    assert not compact(log, NOW + 99)
    compact(log, NOW + 149)
    assert sorted(pairs(log)) == [0, 1], "the newer one still has to wait"
    compact(log, NOW + 150)
    assert sorted(pairs(log)) == [1]


def test_old_records_are_compacted_however_few_there_are(open_log: Open) -> None:
    config = replace(CONFIG, min_cleanable_dirty_ratio=0.9, max_compaction_lag_ms=100)
    log = open_log(config)
    for n in range(8):
        put(log, (f"k{n}", "x"), timestamp=NOW)
    log.roll()
    assert compact(log)
    put(log, ("k0", "y"), timestamp=NOW)
    log.roll()
    assert not compact(log, NOW + 100)
    assert compact(log, NOW + 101)
    assert 0 not in pairs(log)


def test_the_active_segment_is_closed_when_its_records_are_too_old(open_log: Open) -> None:
    log = open_log(CONFIG)
    put(log, ("a", "1"))
    log.roll_if_older(NOW)
    assert len(log_files(log)) == 1
    log.roll_if_older(NOW + 1)
    assert len(log_files(log)) == 2


def test_more_keys_than_there_is_memory_for_take_several_passes(open_log: Open) -> None:
    log = open_log(CONFIG)
    for n in range(20):
        put(log, (f"k{n % 10}", str(n)))
    log.roll()
    passes = 0
    while compact(log, max_keys=4):
        passes += 1
    assert passes == 5
    assert pairs(log) == {n: (f"k{n % 10}", str(n)) for n in range(10, 20)}


def test_a_pass_gives_up_when_its_segments_are_deleted_meanwhile(open_log: Open) -> None:
    log = open_log(CONFIG)
    put(log, ("a", "1"), ("a", "2"))
    log.roll()
    put(log, ("a", "3"))
    plan = plan_compaction(log, NOW)
    assert plan is not None
    log.checkpoint()
    compaction = Compaction(plan)
    compaction.read_keys()
    (group,) = plan.groups
    rewritten = compaction.rewrite(group)
    do_now(log.truncation(2))
    assert rewritten is not None
    assert not do_now(log.replacement(rewritten))
    assert sorted(pairs(log)) == [2]
    assert [path.name for path in log.directory.glob("*.tmp")] == []


def test_a_pass_stops_when_it_is_told(open_log: Open) -> None:
    log = open_log(CONFIG)
    put(log, ("a", "1"), ("a", "2"))
    log.roll()
    plan = plan_compaction(log, NOW)
    assert plan is not None
    with pytest.raises(Stopped):
        Compaction(plan, stopped=lambda: True).read_keys()
    stop: list[bool] = []
    compaction = Compaction(plan, stopped=lambda: bool(stop))
    compaction.read_keys()
    stop.append(True)
    with pytest.raises(Stopped):
        compaction.rewrite(next(plan.groups))
    assert [path.name for path in log.directory.glob("*.tmp")] == []
    assert sorted(pairs(log)) == [0, 1]


def test_a_damaged_segment_is_left_alone(open_log: Open) -> None:
    log = open_log(CONFIG)
    put(log, ("a", "1"))
    put(log, ("a", "2"))
    log.roll()
    path = log_files(log)[0]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(LogCorrupt):
        compact(log)
    assert path.read_bytes() == data


def test_the_state_of_a_producer_survives_the_removal_of_its_records(open_log: Open) -> None:
    log = open_log(CONFIG)
    put(log, ("a", "1"), producer=(7, 0, 0))
    put(log, ("a", "2"), producer=(7, 0, 1))
    put(log, ("a", "3"))
    log.roll()
    compact(log)
    assert pairs(log) == {2: ("a", "3")}
    log.close()
    for snapshot in log.directory.glob("*.snapshot"):
        snapshot.unlink()
    again = open_log(CONFIG)
    assert put(again, ("x", "retry"), producer=(7, 0, 1)) == 1, "a duplicate"
    assert put(again, ("x", "next"), producer=(7, 0, 2)) == 3


def test_batches_of_forgotten_producers_leave_nothing(open_log: Open) -> None:
    log = open_log(CONFIG)
    put(log, ("a", "1"), producer=(7, 0, 0))
    put(log, ("a", "2"))
    log.roll()
    log.producers.expire(NOW + 10**10)
    compact(log)
    header = next(next(log.segments()).batches(0, 0))
    assert (header.producer_id, header.record_count, header.next_offset) == (-1, 0, 1)


def test_aborted_records_go_and_replace_nothing(open_log: Open) -> None:
    log = open_log(CONFIG)
    put(log, ("a", "old"), ("b", "old"))
    put(log, ("a", "aborted"), producer=(7, 0, 0), transactional=True)
    put(log, ("b", "committed"), producer=(8, 0, 0), transactional=True)
    end_transaction(log, 7, commit=False)
    end_transaction(log, 8, commit=True)
    put(log, ("a", "again"), producer=(7, 0, 1), transactional=True)
    put(log, ("c", "plain"))
    log.roll()
    put(log, ("c", "more"), producer=(7, 0, 2), transactional=True)
    end_transaction(log, 7, commit=True)
    log.roll()
    compact(log)
    values = {offset: pair for offset, pair in pairs(log).items() if offset not in (4, 5, 9)}
    assert values == {
        3: ("b", "committed"),
        6: ("a", "again"),
        8: ("c", "more"),
    }
    markers = [record.offset for record in stored(log) if record.offset in (4, 5, 9)]
    assert markers == [4, 5, 9], "markers stay"


def test_nothing_of_an_open_transaction_is_compacted(open_log: Open) -> None:
    log = open_log(CONFIG)
    put(log, ("a", "1"))
    log.roll()
    put(log, ("a", "2"))
    put(log, ("a", "3"), producer=(7, 0, 0), transactional=True)
    log.roll()
    put(log, ("a", "4"))
    log.roll()
    compact(log)
    assert sorted(pairs(log)) == [0, 1, 2, 3]
    end_transaction(log, 7, commit=False)
    log.roll()
    compact(log)
    assert [offset for offset in pairs(log) if offset != 4] == [3]


def test_a_log_is_read_and_written_during_a_swap(open_log: Open) -> None:
    log = open_log(replace(CONFIG, segment_bytes=1))  # a segment of its own for each batch
    for number in range(8):
        put(log, ("a", f"{number}"))
    plan = plan_compaction(log, NOW)
    assert plan is not None
    log.checkpoint()
    compaction = Compaction(plan)
    compaction.read_keys()
    for group in plan.groups:
        rewritten = compaction.rewrite(group)
        for slow_part in log.replacement(rewritten) if rewritten else ():
            put(log, ("a", "meanwhile"))
            assert pairs(log)[log.next_offset - 1] == ("a", "meanwhile")
            slow_part()
            assert stored(log)
    assert set(pairs(log)).isdisjoint(range(6))
    expected = pairs(log)
    log.close()
    assert pairs(open_log(CONFIG)) == expected


def test_timestamps_that_are_further_apart_than_64_bits_can_say_stay_as_they_are(
    open_log: Open,
) -> None:
    log = open_log(CONFIG)
    far, soon = NOW - (2**63 - 1), NOW + 3_000_000
    records = [(b"a", far), (b"b", NOW), (b"b", soon), (b"c", -1)]
    batch = build_batch([NewRecord(key, b"v", (), each) for key, each in records])
    log.append(batch, split_batches(batch), now_ms=NOW)
    log.roll()
    assert compact(log)
    kept = [(each.key, each.timestamp) for each in stored(log)]
    assert kept == [(b"a", far), (b"b", soon), (b"c", -1)]
