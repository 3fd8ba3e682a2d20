"""Checkups of a log's files, without a broker."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kmr.broker.log.checkup import Checkup, check_log, found_batches
from kmr.broker.log.partition import PartitionLog
from kmr.broker.log.records import HEADER_BYTES
from kmr.broker.log.results import Appended, LogCorrupt

Append = Callable[..., Appended]
OpenLog = Callable[..., PartitionLog]


@pytest.fixture
def closed(open_log: OpenLog, append: Append) -> PartitionLog:
    """A closed log: two segments, with three batches each."""
    log = open_log()
    for number in range(6):
        append(log, [b"%d" % number, b"value"])
        if number == 2:
            log.roll()
    log.close()
    return log


def newest_segment(log: PartitionLog) -> Path:
    return max(log.directory.glob("*.log"))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_an_intact_log_has_no_findings(closed: PartitionLog) -> None:
    checkup = Checkup()
    assert check_log(checkup, closed.directory, clean=True) == 12
    assert checkup.findings == []
    assert (checkup.segments, checkup.batches) == (2, 6)
    assert checkup.size_bytes == closed.size_bytes


def test_a_wrong_crc_is_damage_and_later_batches_are_checked(closed: PartitionLog) -> None:
    path = newest_segment(closed)
    flip(path, HEADER_BYTES)
    checkup = Checkup()
    assert check_log(checkup, closed.directory, clean=True) == 12
    assert [(each.kind, each.where) for each in checkup.findings] == [("damage", path)]
    assert "offsets 6 to 7" in checkup.findings[0].what
    assert checkup.batches == 6
    assert [bool(batch.problem) for batch in found_batches(path)] == [True, False, False]


def test_an_incomplete_batch_at_the_end_is_damage_only_after_a_clean_stop(
    closed: PartitionLog,
) -> None:
    path = newest_segment(closed)
    with path.open("ab") as file:
        file.write(path.read_bytes()[: HEADER_BYTES + 1])
    with pytest.raises(LogCorrupt):
        list(found_batches(path))
    stopped, torn = Checkup(), Checkup()
    check_log(stopped, closed.directory, clean=True)
    assert {each.kind for each in stopped.findings} == {"damage"}
    assert check_log(torn, closed.directory, clean=False) == 12
    assert {each.kind for each in torn.findings} == {"note"}


def test_a_missing_segment_is_damage(closed: PartitionLog) -> None:
    newest_segment(closed).unlink()
    checkup = Checkup()
    check_log(checkup, closed.directory, clean=True)
    assert any(
        "was synced up to 12" in what for kind, _, what in checkup.findings if kind == "damage"
    )


def test_a_further_check_of_each_batch_is_reported(closed: PartitionLog) -> None:
    checkup = Checkup()
    check_log(
        checkup,
        closed.directory,
        clean=True,
        check_batch=lambda batch: "unknown" if batch.header.base_offset == 4 else "",
    )
    assert [each.what.endswith("offsets 4 to 5: unknown") for each in checkup.findings] == [True]
