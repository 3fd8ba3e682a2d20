import re
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from kmr.broker import Broker, BrokerError, BrokerSettings
from kmr.broker.log.durable_files import read_sealed, write_sealed
from kmr.broker.log.log_config import LogConfig
from kmr.broker.log.partition import PartitionLog
from kmr.broker.log.records import NewRecord, build_batch, split_batches
from kmr.broker.operations import doctor
from kmr.broker.operations.doctor import DirectoryCheckup, examine
from kmr.broker.storage.data_directory import DataDirectory

NOW = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=10_000, retention_ms=-1)
SEGMENTS = {"internal.segment.bytes": "300", "retention.ms": "-1"}


def fill(log: PartitionLog, batches: int = 6) -> None:
    for number in range(batches):
        value = b"%d" % number * 20
        batch = build_batch([NewRecord(b"k", value, (), NOW)] * 2)
        log.append(batch, split_batches(batch), now_ms=NOW)
    log.flush_pending()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory that a broker left in an orderly way: two topics, offsets."""
    directory = tmp_path_factory.mktemp("doctor") / "data"

    async def make() -> None:
        async with Broker(BrokerSettings(data_dir=directory, port=0)) as broker:
            for name in ("t", "other"):
                topic = await broker.topics.create(name, 2, SEGMENTS)
                fill(topic.partitions[0].log)

    with start_blocking_portal() as portal:
        portal.call(make)
    return directory


@pytest.fixture
def data(stopped: Path, tmp_path: Path) -> Path:
    """A copy of it to be damaged."""
    shutil.copytree(stopped, tmp_path / "data")
    return tmp_path / "data"


def findings(examination: DirectoryCheckup, data: Path) -> list[tuple[str, str]]:
    return [
        (finding.kind, str(finding.where.relative_to(data))) for finding in examination.findings
    ]


def segments(data: Path) -> list[Path]:
    return sorted((data / "topics" / "t" / "0").glob("*.log"))


def tree(data: Path) -> dict[Path, Any]:
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in data.rglob("*")
    }


def test_a_directory_in_order_has_no_findings_and_is_not_touched(data: Path) -> None:
    before = tree(data)
    for path in (data, *data.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    examination = examine(data)
    assert examination.findings == []
    assert not examination.is_damaged
    assert (examination.topics, examination.partitions) == (2, 4)
    assert examination.batches == 12
    assert examination.size_bytes == sum(path.stat().st_size for path in data.rglob("*.log"))
    assert tree(data) == before
    for path in (data, *data.rglob("*")):
        path.chmod(0o755)


def test_every_changed_byte_of_a_segment_is_found(data: Path) -> None:
    path = segments(data)[1]
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        assert examine(data).is_damaged, f"byte {at}"
    for size in range(0, len(whole), 13):
        path.write_bytes(whole[:size])
        assert examine(data).is_damaged, f"only {size} bytes"


def test_damage_is_named_with_file_byte_and_offsets(data: Path) -> None:
    path = segments(data)[0]
    damaged = bytearray(path.read_bytes())
    damaged[70] ^= 1
    path.write_bytes(damaged)
    examination = examine(data)
    (finding,) = examination.findings
    assert (finding.kind, finding.where) == ("damage", path)
    assert finding.what.startswith("byte 0, offsets 0 to 1: its CRC is ")


def test_missing_segments_are_found(data: Path) -> None:
    first, second, *_, last = segments(data)
    second.unlink()
    assert ("damage", str(segments(data)[1].relative_to(data))) in findings(examine(data), data)
    shutil.copy(first, second)  # a segment in the place of another one
    assert examine(data).is_damaged
    last.unlink()
    assert any("was synced up to" in finding.what for finding in examine(data).findings)


def test_a_missing_first_segment_is_found(data: Path) -> None:
    segments(data)[0].unlink()
    (damage,) = [each for each in examine(data).findings if each.kind == "damage"]
    assert damage.where == data / "topics" / "t" / "0"
    assert damage.what.endswith("its first segments are missing")


def test_a_missing_checkpoint_is_damage_after_an_orderly_stop_only(data: Path) -> None:
    (data / "topics" / "t" / "0" / "checkpoint").unlink()
    assert findings(examine(data), data) == [("damage", "topics/t/0/checkpoint")]
    (data / "clean").unlink()
    assert not examine(data).is_damaged


def test_a_sync_that_failed_is_a_note(data: Path) -> None:
    (data / "topics" / "t" / "0" / "unsynced").touch()
    assert findings(examine(data), data) == [("note", "topics/t/0/unsynced")]


def test_a_changed_description_of_a_topic_is_found(data: Path) -> None:
    path = data / "topics" / "t" / "topic.json"
    path.write_bytes(re.sub(rb'"partitions":[0-9]', b'"partitions":9', path.read_bytes()))
    examination = examine(data)
    assert findings(examination, data) == [("damage", "topics/t/topic.json")]
    assert "checksum" in examination.findings[0].what


def test_a_log_whose_segments_are_all_gone_is_found(data: Path) -> None:
    for path in segments(data):
        path.unlink()
    examination = examine(data)
    assert any("its segments are missing" in finding.what for finding in examination.findings)


def test_a_torn_write_is_a_note_after_a_kill_and_damage_after_an_orderly_stop(data: Path) -> None:
    log = PartitionLog.open(data / "topics" / "t" / "0", CONFIG, clean=True)
    fill(log, 1)
    log.flush_pending()
    path = segments(data)[-1]
    path.write_bytes(path.read_bytes()[:-5])
    assert examine(data).is_damaged
    (data / "clean").unlink()
    examination = examine(data)
    assert not examination.is_damaged
    assert {kind for kind, _ in findings(examination, data)} == {"note"}
    assert any("cuts off" in finding.what for finding in examination.findings)
    log.close()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("topics/t/0/checkpoint", "damage"),
        ("topics/t/0/00000000000000000000.index", "note"),
        ("topics/t/topic.json", "damage"),
        ("producer-ids", "damage"),
    ],
)
def test_a_damaged_file_beside_the_segments_is_found(data: Path, name: str, kind: str) -> None:
    (data / name).write_bytes(b"{damaged")
    assert (kind, name) in findings(examine(data), data)


def test_a_damaged_snapshot_is_a_note(data: Path) -> None:
    path = sorted((data / "topics" / "t" / "0").glob("*.snapshot"))[0]
    path.write_bytes(b"damaged")
    assert findings(examine(data), data) == [("note", str(path.relative_to(data)))]


def test_an_index_that_points_nowhere_is_damage(data: Path) -> None:
    log = PartitionLog.open(data / "topics" / "t" / "1", CONFIG, clean=True)
    for _ in range(200):
        fill(log, 1)
    log.close()
    path = sorted(log.directory.glob("*.log"))[0]
    index = log.directory / path.with_suffix(".index").name
    assert not examine(data).is_damaged
    payload = bytearray(read_sealed(index) or b"")
    payload[-1] ^= 1
    write_sealed(index, bytes(payload), durable=False)
    assert findings(examine(data), data) == [("damage", str(index.relative_to(data)))]


def test_a_missing_and_a_foreign_partition_are_found(data: Path) -> None:
    (data / "topics" / "t" / "1").rename(data / "topics" / "t" / "9")
    assert findings(examine(data), data) == [
        ("damage", "topics/t/1"),
        ("note", "topics/t/9"),
    ]


def test_leftovers_of_a_crash_are_notes(data: Path) -> None:
    directory = data / "topics" / "t" / "0"
    (directory / "x.tmp").touch()
    (data / "topics" / "other" / "topic.json").rename(data / "topics" / "other" / "deleted")
    examination = examine(data)
    assert findings(examination, data) == [
        ("note", "topics/other"),
        ("note", "topics/t/0/x.tmp"),
    ]
    assert not examination.is_damaged


def test_a_swap_that_a_crash_interrupted_is_no_damage(data: Path) -> None:
    first, second, *_ = segments(data)
    both = first.read_bytes() + second.read_bytes()
    third = int(segments(data)[2].stem)
    swap = first.with_name(f"{0:020}-{third:020}.log.swap")
    swap.write_bytes(both)
    second.unlink()
    examination = examine(data)
    assert {kind for kind, _ in findings(examination, data)} == {"note"}
    assert examination.batches == 12


def test_records_that_were_set_aside_are_damage(data: Path) -> None:
    path = segments(data)[0]
    shutil.copy(path, path.with_name(path.name + ".lost"))
    assert findings(examine(data), data) == [("damage", f"topics/t/0/{path.name}.lost")]


async def test_committed_offsets_that_cannot_be_read_are_damage(data: Path) -> None:
    log = PartitionLog.open(data / "offsets", CONFIG, clean=True)
    batch = build_batch([NewRecord(b"\x00\x09", b"?")])
    log.append(batch, split_batches(batch), now_ms=NOW)
    log.close()
    (finding,) = examine(data).findings
    assert finding.kind == "damage"
    assert "unknown key version 9" in finding.what


async def test_a_directory_in_use_is_refused(
    start: Callable[..., Awaitable[Broker]], tmp_path: Path
) -> None:
    await start()
    with pytest.raises(BrokerError, match="in use by a broker"):
        examine(tmp_path / "data")


def test_no_broker_starts_meanwhile(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def examining(_: Path) -> DirectoryCheckup:
        with pytest.raises(BrokerError, match="in use"):
            DataDirectory(data)
        return DirectoryCheckup(clean=True)

    monkeypatch.setattr(doctor, "_examine", examining)
    examine(data)


@pytest.mark.parametrize("make", [False, True])
def test_another_directory_is_refused(tmp_path: Path, make: bool) -> None:
    directory = tmp_path / "other"
    if make:
        directory.mkdir()
    with pytest.raises(BrokerError, match="is not the data directory of a broker"):
        examine(directory)
