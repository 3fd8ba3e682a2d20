"""A log is cut after a batch, and the records that it has lost are counted."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from chaos.checkers import check_duplicates, check_lost, check_phantoms
from chaos.history import Recorder
from chaos.tails import cut_tail
from chaos.verdicts import Promise

if TYPE_CHECKING:
    from pathlib import Path

P = Promise("g", "t", "exactly-once")


def batch(first: int, attributes: int = 0, producer: int = -1) -> bytes:
    """Return a batch without records."""
    return struct.pack(">qi9xh20xq10x", first, 49, attributes, producer)


def test_whole_batches_are_cut_off_and_the_first_one_stays(tmp_path: Path) -> None:
    batches = [batch(first) for first in (7, 10, 14)]
    log = tmp_path / "00000000000000000007.log"
    (tmp_path / "00000000000000000000.log").write_bytes(b"an older segment")
    for count, end, left in ((0, None, 3), (1, 14, 2), (9, 10, 1)):
        log.write_bytes(b"".join(batches))
        assert cut_tail(tmp_path, count) == end
        assert log.read_bytes() == b"".join(batches[:left])


def test_no_transaction_is_left_without_its_marker(tmp_path: Path) -> None:
    batches = [batch(0), batch(1, 0x10, 5), batch(2, 0x10, 6), batch(3, 0x30, 5), batch(4, 0x30, 6)]
    (tmp_path / "00000000000000000000.log").write_bytes(b"".join(batches))
    assert cut_tail(tmp_path, 1) == 1


def test_records_that_a_log_has_lost_are_missed_nowhere_and_others_have_their_offsets() -> None:
    recorder = Recorder()
    recorder.produced("t", 0, 0, range(10), "acked")
    assert recorder.lose("t", 0, 6) == 4
    assert recorder.acknowledged == {"t": {0: 6}}
    recorder.produced("t", 0, 6, range(20, 24), "acked")
    written = [*((n, n) for n in range(8)), *((6 + n, 20 + n) for n in range(4))]
    for offset, number in written:
        place = {"topic": "t", "partition": 0, "offset": offset}
        recorder.line("rows", group="g", id=number, **place)
    history = recorder.history()
    for checker in (check_lost, check_duplicates, check_phantoms):
        assert checker(history, P).verdict == "ok"
    assert recorder.acknowledged_ids("t", 0, 4, 8) == {4, 5, 20, 21}
