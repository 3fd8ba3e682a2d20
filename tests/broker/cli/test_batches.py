import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kmr.broker.log.compaction import empty_batches
from kmr.broker.log.log_config import LogConfig
from kmr.broker.log.partition import PartitionLog
from kmr.broker.log.producers import Marker, ProducerIdentity, build_marker
from kmr.broker.log.records import NewRecord, build_batch, parse_header, split_batches

NOW = 1_700_000_000_000
Kmr = Callable[..., Any]


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """Three batches: two records in zstd, one of a transaction, its marker."""
    log = PartitionLog.open(tmp_path / "t-0", LogConfig(), clean=True)
    records = [
        NewRecord(b"key", b"value", [("h", b"x")], NOW),
        NewRecord(None, b"\xff" * 50, (), NOW + 1),
    ]
    plain = build_batch(records, codec="zstd")
    transactional = build_batch(
        [NewRecord(b"k", None, (), NOW)],
        producer_id=7,
        producer_epoch=1,
        base_sequence=3,
        transactional=True,
    )
    for batch in (plain, transactional):
        log.append(batch, split_batches(batch), now_ms=NOW)
    marker = build_marker(
        Marker(committed=False, coordinator_epoch=0), ProducerIdentity(7, 1), timestamp_ms=NOW
    )
    log.append(marker, [parse_header(marker)], now_ms=NOW)
    log.close()
    return next(log.directory.glob("*.log"))


def test_a_segment_is_shown_batch_by_batch(kmr: Kmr, segment: Path) -> None:
    result = kmr("doctor", str(segment))
    assert (result.code, result.err) == (0, b"")
    header, plain, transactional, marker = (line.split() for line in result.lines)
    assert header[:3] == ["OFFSETS", "BYTE", "SIZE"]
    assert plain[0] == "0-1"
    assert plain[3:] == ["2", "zstd", "2023-11-14T22:13:20.001Z", "-", "ok"]
    assert transactional[3:] == [
        "1",
        "none",
        "2023-11-14T22:13:20.000Z",
        "7/1:3-3",
        "ok",
        "transactional",
    ]
    assert marker[-3:] == ["ok", "abort", "marker"]


def test_records_are_shown_too(kmr: Kmr, segment: Path) -> None:
    lines = kmr("doctor", str(segment), "--records").lines
    assert lines[2].strip() == "0 2023-11-14T22:13:20.000Z 'key': 'value' [h='x']"
    assert lines[3].strip().startswith("1 2023-11-14T22:13:20.001Z null: b'\\xff")
    assert lines[5].strip() == "2 2023-11-14T22:13:20.000Z 'k': null"


def test_a_segment_is_shown_as_json(kmr: Kmr, segment: Path) -> None:
    result = kmr("doctor", str(segment), "--json", "--records")
    plain, transactional, marker = (json.loads(line) for line in result.lines)
    assert (plain["base_offset"], plain["last_offset"], plain["record_count"]) == (0, 1, 2)
    assert (plain["codec"], plain["problem"], plain["control"]) == ("zstd", "", False)
    assert plain["records"][0] == {
        "offset": 0,
        "timestamp": NOW,
        "key": "key",
        "value": "value",
        "headers": [{"name": "h", "value": "x"}],
    }
    assert "value_base64" in plain["records"][1]
    assert (transactional["producer_id"], transactional["base_sequence"]) == (7, 3)
    assert marker["control"]


def test_a_damaged_batch_is_shown_and_the_next_ones_too(kmr: Kmr, segment: Path) -> None:
    data = bytearray(segment.read_bytes())
    data[70] ^= 1
    segment.write_bytes(data)
    result = kmr("doctor", str(segment), "--records")
    assert result.code == 1
    assert result.lines[1].endswith("bad")
    assert "! its CRC is" in result.lines[2]
    assert result.lines[3].endswith("transactional")
    assert result.err.decode().strip().endswith("1 damaged batches")


def test_a_truncated_segment_is_shown_up_to_its_end(kmr: Kmr, segment: Path) -> None:
    segment.write_bytes(segment.read_bytes()[:-1])
    result = kmr("doctor", str(segment))
    assert (result.code, len(result.lines)) == (1, 3)
    assert b"is corrupt at byte" in result.err


def test_a_batch_that_compaction_emptied_says_so(kmr: Kmr, segment: Path) -> None:
    segment.write_bytes(b"".join(bytes(batch) for batch in empty_batches(0, 10)))
    assert kmr("doctor", str(segment)).lines[1].endswith("ok  compacted away")


def test_an_empty_segment_has_no_batches(kmr: Kmr, segment: Path) -> None:
    segment.write_bytes(b"")
    assert kmr("doctor", str(segment))[:2] == (0, b"")


def test_a_missing_file_is_an_error(kmr: Kmr, tmp_path: Path) -> None:
    result = kmr("doctor", str(tmp_path / "no.log"))
    assert (result.code, result.out) == (1, b"")
    assert b"cannot be read (No such file" in result.err
