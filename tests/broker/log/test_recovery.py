import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kmr.broker.log.disk_work import do_now
from kmr.broker.log.log_config import LogConfig
from kmr.broker.log.partition import PartitionLog
from kmr.broker.log.results import Appended, LogCorrupt
from kmr.broker.log.segment import segment_path

Append = Callable[..., Appended]
OpenLog = Callable[..., PartitionLog]
ReadAll = Callable[[PartitionLog], list[bytes]]
CONFIG = LogConfig(index_interval_bytes=200)


def kill(log: PartitionLog, into: Path) -> Path:
    """Copy the files of an open log, as a kill would leave them."""
    return Path(shutil.copytree(log.directory, into))


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


def test_a_truncated_batch_is_cut_off_at_recovery(
    open_log: OpenLog, append: Append, read_all: ReadAll, tmp_path: Path
) -> None:
    log = open_log(CONFIG)
    fill(log, append, 5)
    batches = read_all(log)
    size = len(batches[-1])
    for missing in range(1, size):
        directory = kill(log, tmp_path / str(missing))
        os.truncate(segment_path(directory, 0), log.size_bytes - missing)
        recovered = reopen(directory)
        assert read_all(recovered) == batches[:-1]
        assert recovered.recovery.truncated_bytes == size - missing
        assert recovered.recovery.truncated_at == recovered.next_offset == 12
        assert f"corrupt at byte {log.size_bytes - size}" in recovered.recovery.reason
        assert recovered.recovery.lost_durable_records == 0
        recovered.close()


@pytest.mark.parametrize("tail", [b"\x00" * 5000, b"\xff" * 5000, b"\x00"], ids=["0", "f", "1"])
def test_a_tail_that_is_not_batches_is_cut_off(
    open_log: OpenLog, append: Append, read_all: ReadAll, tmp_path: Path, tail: bytes
) -> None:
    log = open_log(CONFIG)
    fill(log, append, 5)
    directory = kill(log, tmp_path / "killed")
    with segment_path(directory, 0).open("ab") as file:
        file.write(tail)
    recovered = reopen(directory)
    assert read_all(recovered) == read_all(log)
    assert recovered.recovery.truncated_bytes == len(tail)
    append(recovered, [b"goes on"])
    recovered.close()
    assert reopen(directory, clean=True).next_offset == 16


def test_a_kill_between_two_writes_loses_nothing(
    open_log: OpenLog, append: Append, read_all: ReadAll, tmp_path: Path
) -> None:
    log = open_log(CONFIG)
    fill(log, append, 20, roll_every=6)
    recovered = reopen(kill(log, tmp_path / "killed"))
    assert read_all(recovered) == read_all(log)
    assert not recovered.recovery.lost_data
    assert recovered.recovery.scanned_bytes == log.size_bytes
    assert recovered.recovery_point == recovered.durable_offset == 60


def test_only_batches_beyond_the_recovery_point_are_scanned(
    open_log: OpenLog, append: Append, tmp_path: Path
) -> None:
    log = open_log(CONFIG)
    fill(log, append, 10)
    log.close()
    log = open_log(CONFIG)
    before = log.size_bytes
    fill(log, append, 3)
    directory = kill(log, tmp_path / "killed")
    assert reopen(directory, clean=True).recovery.scanned_bytes == log.size_bytes - before


def test_without_a_checkpoint_everything_is_scanned(
    open_log: OpenLog, append: Append, read_all: ReadAll
) -> None:
    log = open_log(CONFIG)
    fill(log, append, 20, roll_every=6)
    batches = read_all(log)
    log.close()
    for damage in (Path.unlink, lambda path: flip(path, 3), lambda path: path.write_bytes(b"")):
        damage(log.directory / "checkpoint")
        log = open_log(CONFIG)
        assert log.recovery.scanned_bytes == log.size_bytes
        assert read_all(log) == batches
        log.close()


def test_segments_after_a_bad_batch_are_set_aside_not_deleted(
    open_log: OpenLog, append: Append, read_all: ReadAll, tmp_path: Path
) -> None:
    log = open_log(CONFIG)
    fill(log, append, 20, roll_every=5)
    directory = kill(log, tmp_path / "killed")
    batches = read_all(log)
    bad = segment_path(directory, 15)
    flip(bad, len(batches[5]) + 80)
    lost = segment_path(directory, 30).read_bytes()
    recovered = reopen(directory)
    assert read_all(recovered) == batches[:6]
    assert recovered.recovery.truncated_at == 18
    assert f"{bad} is corrupt at byte {len(batches[5])}" in recovered.recovery.reason
    assert [Path(name).name for name in recovered.recovery.set_aside] == [
        f"{30:020}.log.lost",
        f"{45:020}.log.lost",
    ]
    assert Path(recovered.recovery.set_aside[0]).read_bytes() == lost
    append(recovered, [b"goes on"])
    recovered.close()
    assert reopen(directory, clean=True).next_offset == 19


def test_segments_after_a_missing_one_are_set_aside(
    open_log: OpenLog, append: Append, read_all: ReadAll, tmp_path: Path
) -> None:
    log = open_log(CONFIG)
    fill(log, append, 10, roll_every=5)
    directory = kill(log, tmp_path / "killed")
    batches = read_all(log)
    os.truncate(segment_path(directory, 0), sum(map(len, batches[:4])))  # a whole batch is missing
    recovered = reopen(directory)
    assert read_all(recovered) == batches[:4]
    assert recovered.recovery.lost_data
    (lost,) = recovered.recovery.set_aside
    assert Path(lost).read_bytes() == b"".join(batches[5:])


def test_a_missing_old_segment_is_reported_when_read(
    open_log: OpenLog, append: Append, read_all: ReadAll
) -> None:
    log = open_log(CONFIG)
    fill(log, append, 20, roll_every=5)
    batches = read_all(log)
    log.close()
    segment_path(log.directory, 15).unlink()
    log = open_log(CONFIG)
    assert log.read(14, 1, min_one=True).data == batches[4]
    with pytest.raises(LogCorrupt, match="ends before offset 15"):
        log.read(15, 1, min_one=True)
    assert log.read(30, 1, min_one=True).data == batches[10]


def test_offsets_are_never_handed_out_again_when_all_segments_are_gone(
    open_log: OpenLog, append: Append
) -> None:
    log = open_log(CONFIG)
    fill(log, append, 10)
    log.close()
    segment_path(log.directory, 0).unlink()
    log = open_log(CONFIG)
    assert (log.log_start_offset, log.next_offset) == (30, 30)
    assert log.recovery.lost_durable_records == 30
    assert append(log, [b"a"]).first_offset == 30


def test_durable_records_that_are_gone_are_counted(
    open_log: OpenLog, append: Append, read_all: ReadAll
) -> None:
    log = open_log(CONFIG)
    fill(log, append, 10)
    batches = read_all(log)
    log.close()
    os.truncate(segment_path(log.directory, 0), log.size_bytes - len(batches[-1]))
    log = open_log(CONFIG)
    assert log.recovery.lost_durable_records == 3
    assert log.recovery.lost_data
    assert read_all(log) == batches[:-1]


def test_an_empty_newest_segment_is_used(open_log: OpenLog, append: Append, tmp_path: Path) -> None:
    log = open_log(CONFIG)
    fill(log, append, 5)
    log.roll()
    recovered = reopen(kill(log, tmp_path / "killed"))
    assert (recovered.next_offset, recovered.recovery.lost_data) == (15, False)
    append(recovered, [b"a"])
    assert segment_path(recovered.directory, 15).stat().st_size > 0


def test_an_empty_segment_after_a_torn_one_is_deleted(
    open_log: OpenLog, append: Append, tmp_path: Path
) -> None:
    log = open_log(CONFIG)
    fill(log, append, 5)
    log.roll()
    directory = kill(log, tmp_path / "killed")
    os.truncate(segment_path(directory, 0), log.size_bytes - 1)
    recovered = reopen(directory)
    assert (recovered.next_offset, recovered.recovery.set_aside) == (12, ())
    assert not segment_path(directory, 15).exists()


def test_leftovers_of_a_crash_are_removed_and_other_files_left_alone(
    open_log: OpenLog, append: Append
) -> None:
    log = open_log(CONFIG)
    fill(log, append, 5)
    log.close()
    leftovers = ["checkpoint.tmp", f"{0:020}.log.deleted", f"{99:020}.index", f"{99:020}.timeindex"]
    others = ["notes.txt", "7.log", f"{3:020}.log.lost"]
    for name in leftovers + others:
        (log.directory / name).write_bytes(b"?")
    assert open_log(CONFIG).next_offset == 15
    assert not any((log.directory / name).exists() for name in leftovers)
    assert all((log.directory / name).exists() for name in others)


def test_a_file_named_with_an_offset_that_no_record_has_is_left_alone(
    open_log: OpenLog, append: Append
) -> None:
    log = open_log()
    append(log, [b"a"])
    log.close()
    stranger = log.directory / f"{2**63}.log".rjust(24, "0")
    stranger.write_bytes(b"")
    log = open_log()
    assert append(log, [b"b"]).first_offset == 1
    log.close()
    assert stranger.exists()


def test_segments_below_the_log_start_are_deleted_at_the_next_start(
    open_log: OpenLog, append: Append, tmp_path: Path
) -> None:
    log = open_log(CONFIG)
    fill(log, append, 20, roll_every=5)
    log.fsync()
    directory = kill(log, tmp_path / "killed")
    do_now(log.truncation(40))
    shutil.copy(log.directory / "checkpoint", directory)
    recovered = reopen(directory)
    assert recovered.log_start_offset == 40
    assert sorted(int(path.stem) for path in directory.glob("*.log")) == [30, 45]


def test_a_damaged_snapshot_of_producers_is_made_up_for_by_the_log(
    open_log: OpenLog, append: Append
) -> None:
    log = open_log(CONFIG)
    for sequence in range(20):
        if sequence % 6 == 0:
            log.roll()
        append(log, [b"x"], producer=(3, 0, sequence))
    log.close()
    for count in (1, 2):
        for path in sorted(log.directory.glob("*.snapshot"))[-count:]:
            flip(path, 5)
        log = open_log(CONFIG)
        assert append(log, [b"x"], producer=(3, 0, 18)).duplicate
        log.close()


def test_a_producers_batch_that_was_cut_off_may_come_again(
    open_log: OpenLog, append: Append, tmp_path: Path
) -> None:
    log = open_log(CONFIG)
    append(log, [b"a"], producer=(3, 0, 0))
    append(log, [b"b"], producer=(3, 0, 1))
    log.roll()
    directory = kill(log, tmp_path / "killed")
    os.truncate(segment_path(directory, 0), log.size_bytes - 1)
    recovered = reopen(directory)
    again = append(recovered, [b"b"], producer=(3, 0, 1))
    assert (again.first_offset, again.duplicate) == (1, False)


KILLED = """
import sys
from pathlib import Path
from kmr.broker.log.log_config import LogConfig
from kmr.broker.log.partition import PartitionLog
from kmr.broker.log.records import NewRecord, build_batch, split_batches

config = LogConfig(segment_bytes=100_000, fsync="os")
log = PartitionLog.open(Path(sys.argv[1]), config, clean=False)
while True:
    for _ in range(20):
        batch = build_batch([NewRecord(None, b"%d" % log.next_offset)] * 10)
        log.append(batch, split_batches(batch), now_ms=0)
    log.flush_pending()
    print(log.next_offset, flush=True)
"""


def test_nothing_acknowledged_is_lost_by_kills(tmp_path: Path, read_all: ReadAll) -> None:
    directory, acknowledged = tmp_path / "t-0", 0
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(directory)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            until = acknowledged + 5000
            while acknowledged < until:
                acknowledged = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read()
            if "\n" in rest:
                acknowledged = int(rest.rpartition("\n")[0].rpartition("\n")[2])
        log = PartitionLog.open(directory, LogConfig(retention_ms=-1), clean=False)
        assert log.next_offset >= acknowledged
        assert log.recovery.lost_durable_records == 0
        assert len(read_all(log)) == log.next_offset / 10
        log.close()


def test_a_missing_first_segment_is_counted_but_not_segments_deleted_by_retention(
    open_log: OpenLog, append: Append
) -> None:
    log = open_log(LogConfig(retention_bytes=1500))
    fill(log, append, 30, roll_every=10)
    assert do_now(log.retention(0))
    start = log.log_start_offset
    log.close()
    assert open_log(log.config).recovery.lost_durable_records == 0
    log.close()
    first, second = sorted(log.directory.glob("*.log"))[:2]
    first.unlink()
    for clean in (False, True):  # reported once
        reopened = open_log(log.config, clean=clean)
        assert reopened.log_start_offset == int(second.stem)
        assert reopened.recovery.lost_durable_records == (0 if clean else int(second.stem) - start)


@pytest.mark.parametrize("damage", ["damaged", "missing"])
def test_a_lost_checkpoint_is_reported_once_because_deleted_records_are_back(
    open_log: OpenLog, append: Append, damage: str
) -> None:
    log = open_log(CONFIG)
    fill(log, append, 5)
    do_now(log.truncation(3))
    log.close()
    path = log.directory / "checkpoint"
    path.unlink() if damage == "missing" else flip(path, 3)
    reopened = open_log(CONFIG)
    assert reopened.recovery.lost_checkpoint == f"{path} is {damage}"
    assert reopened.log_start_offset == 0
    assert open_log(CONFIG).recovery.lost_checkpoint == ""


def test_an_index_of_a_segment_that_was_never_on_disk_means_nothing_after_a_power_loss(
    open_log: OpenLog, append: Append, tmp_path: Path
) -> None:
    log = open_log(CONFIG)
    fill(log, append, 2, roll_every=1)
    directory = kill(log, tmp_path / "t-1")
    for path in directory.glob("*.log"):
        path.unlink()
    assert list(directory.glob("*.index"))
    recovered = reopen(directory)
    assert (recovered.log_start_offset, recovered.next_offset) == (0, 0)
    assert not recovered.recovery.lost_data
    recovered.close()
