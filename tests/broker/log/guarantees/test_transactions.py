"""The last stable offset and the aborted transactions of a log survive kills and failures."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from kmr.broker.log.disk_work import do_now
from kmr.broker.log.log_config import LogConfig
from kmr.broker.log.partition import PartitionLog
from kmr.broker.log.producers import (
    AbortedTransaction,
    InvalidProducerEpoch,
    Marker,
    ProducerIdentity,
    build_marker,
)
from kmr.broker.log.records import NewRecord, build_batch, parse_header
from kmr.broker.log.results import LogFailed
from kmr.broker.log.segment import Segment

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = LogConfig(segment_bytes=400, retention_ms=-1)
NOW_MS = 1_700_000_000_000


def write(log: PartitionLog, producer: int, sequence: int, *, epoch: int = 0) -> int:
    """One record in the producer's transaction; returns its offset."""
    batch = build_batch(
        [NewRecord(None, b"value", (), NOW_MS)],
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )
    return log.append(batch, [parse_header(batch)], now_ms=NOW_MS).first_offset


def end(log: PartitionLog, producer: int, *, committed: bool, epoch: int = 0) -> int:
    marker, who = Marker(committed, 0), ProducerIdentity(producer, epoch)
    batch = build_marker(marker, who, timestamp_ms=NOW_MS)
    return log.append(batch, [parse_header(batch)], now_ms=NOW_MS).first_offset


def history(log: PartitionLog) -> None:
    """Over several segments: 1 aborts, 2 commits, 3 aborts twice and is open again, 4 is open."""
    write(log, 1, 0)
    write(log, 4, 0)
    write(log, 2, 0)
    end(log, 1, committed=False)
    for number in range(2):
        write(log, 3, 2 * number)
        write(log, 3, 2 * number + 1)
        end(log, 3, committed=False)
    end(log, 2, committed=True)
    write(log, 3, 4)
    log.flush_pending()


ABORTED = [
    AbortedTransaction(1, 0, 3, 1),
    AbortedTransaction(3, 4, 6, 1),
    AbortedTransaction(3, 7, 9, 1),
]


def check(log: PartitionLog) -> None:
    assert log.next_offset == 12
    assert log.last_stable_offset == 1
    assert list(log.producers.aborted) == ABORTED
    assert log.producers.open_transactions == [(4, 0), (3, 0)]


def test_the_oldest_open_transaction_holds_the_last_stable_offset(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path, CONFIG, clean=True)
    history(log)
    check(log)
    assert end(log, 4, committed=True) == 12
    assert log.last_stable_offset == 11
    end(log, 3, committed=False)
    assert log.last_stable_offset == log.next_offset == 14
    log.close()


@pytest.mark.parametrize("kept", ["all", "newest", "none"])
@pytest.mark.parametrize("killed", [False, True])
def test_a_restart_forgets_nothing_with_any_snapshots_left(
    tmp_path: Path, kept: str, killed: bool
) -> None:
    log = PartitionLog.open(tmp_path / "0", CONFIG, clean=True)
    history(log)
    directory = tmp_path / "0"
    if killed:
        directory = tmp_path / "1"
        shutil.copytree(tmp_path / "0", directory)
    log.close()
    snapshots = sorted(directory.glob("*.snapshot"))
    assert len(snapshots) == 2
    for snapshot in snapshots[: {"all": 0, "newest": 1, "none": 2}[kept]]:
        snapshot.unlink()
    log = PartitionLog.open(directory, CONFIG, clean=not killed)
    check(log)
    write(log, 3, 5)
    end(log, 3, committed=True)
    end(log, 4, committed=True)
    assert log.last_stable_offset == log.next_offset
    log.close()


def test_a_marker_that_could_not_be_written_leaves_the_transaction_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "no space left")

    log = PartitionLog.open(tmp_path, CONFIG, clean=True)
    history(log)
    with monkeypatch.context() as patch:
        patch.setattr(Segment, "write", full)
        end(log, 4, committed=False)
        with pytest.raises(LogFailed, match="no space left"):
            log.flush_pending()
    check(log)
    log.close()


def test_records_that_are_deleted_take_their_aborted_transactions_with_them(
    tmp_path: Path,
) -> None:
    log = PartitionLog.open(tmp_path, CONFIG, clean=True)
    history(log)
    do_now(log.truncation(7))
    assert list(log.producers.aborted) == ABORTED[2:]
    assert log.last_stable_offset == 7, "never below the log start"
    do_now(log.truncation(10))
    assert len(log.producers.aborted) == 0
    log.close()
    log = PartitionLog.open(tmp_path, CONFIG, clean=True)
    assert len(log.producers.aborted) == 0
    assert log.last_stable_offset == 10
    assert end(log, 4, committed=True) == 12
    assert log.last_stable_offset == 11
    log.close()


def test_a_marker_of_an_old_epoch_is_refused(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path, CONFIG, clean=True)
    write(log, 1, 0, epoch=5)
    with pytest.raises(InvalidProducerEpoch):
        end(log, 1, committed=True, epoch=4)
    assert log.next_offset == 1
    log.close()


def test_markers_have_the_time_at_which_they_were_appended(tmp_path: Path) -> None:
    config = LogConfig(message_timestamp_type="LogAppendTime")
    log = PartitionLog.open(tmp_path, config, clean=True)
    write(log, 1, 0)
    end(log, 1, committed=True)
    log.flush_pending()
    span = log.read(1, 1_000, min_one=True)
    assert parse_header(span.data).timestamp_type == 1
    log.close()
    log = PartitionLog.open(tmp_path, config, clean=False)
    assert log.next_offset == log.last_stable_offset == 2
    log.close()


def test_an_idle_producer_is_forgotten_when_the_setting_says_so(tmp_path: Path) -> None:
    config = LogConfig(producer_id_expiration_ms=1_000, retention_ms=-1)
    log = PartitionLog.open(tmp_path, config, clean=True)
    write(log, 1, 0)
    write(log, 2, 0)
    end(log, 2, committed=True)
    do_now(log.retention(NOW_MS + 999))
    assert len(log.producers.ids) == 2
    do_now(log.retention(NOW_MS + 1_000))
    assert list(log.producers.ids) == [1], "2 was idle, 1 is open"
    log.close()
