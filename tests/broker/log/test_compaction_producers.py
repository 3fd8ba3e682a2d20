"""What compaction keeps of producers and transactions."""

from .compacting import CONFIG, NOW, Open, compact, end_transaction, pairs, put, stored

# -- producers and transactions


def test_what_is_known_of_a_producer_survives_the_loss_of_its_records(open_log: Open) -> None:
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
