"""The log of a coordinator's state: replay, rewrite, and what others may read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kmr.broker.coordinators.state_log import (
    MalformedRecord,
    RecordReader,
    StateLog,
    encode_string,
)
from kmr.broker.log.log_config import LogConfig
from kmr.broker.log.producers import Marker, ProducerIdentity
from kmr.broker.log.records import BatchHeader, NewRecord, encode_batch, parse_header
from kmr.broker.log.results import LogError

if TYPE_CHECKING:
    from pathlib import Path

    from kmr.broker.log.log_config import FsyncPolicy
    from kmr.broker.log.records import StoredRecord

PRODUCER = ProducerIdentity(7, 0)


class Owner:
    """A dictionary that a log keeps."""

    def __init__(
        self, directory: Path, *, fsync: FsyncPolicy = "os", rewrite_bytes: int = 8 << 20
    ) -> None:
        self.state: dict[bytes, bytes] = {}
        self.pending: list[bytes] = []
        self.ended: list[tuple[ProducerIdentity, bool]] = []
        self.log = StateLog(
            directory, LogConfig(fsync=fsync), clean=False, rewrite_bytes=rewrite_bytes
        )
        self.log.restore(self._apply, self.append_live, end_transaction=self._end)

    def put(self, key: bytes, value: bytes) -> int:
        end = self.log.append([NewRecord(key, value)])
        self.state[key] = value
        return end

    def append_live(self) -> None:
        self.log.append_in_batches(NewRecord(*each) for each in self.state.items())

    def _apply(self, record: StoredRecord, producer: ProducerIdentity | None) -> None:
        if record.key == b"unreadable":
            raise MalformedRecord("from a newer version")
        if producer is not None:
            self.pending.append(record.value or b"")
        else:
            self.state[record.key or b""] = record.value or b""

    def _end(self, producer: ProducerIdentity, marker: Marker) -> None:
        self.ended.append((producer, marker.committed))


def test_records_and_markers_are_replayed_in_order(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    assert owner.put(b"a", b"1") == 1
    assert owner.put(b"a", b"2") == 2
    owner.log.append([NewRecord(b"b", b"3")], PRODUCER)
    assert owner.log.append_marker(Marker(committed=True, coordinator_epoch=0), PRODUCER) == 4
    owner.log.close()
    again = Owner(tmp_path)
    assert (again.state, again.pending) == ({b"a": b"2"}, [b"3"])
    assert again.ended == [(PRODUCER, True)]
    assert again.log.append([]) == 0
    again.log.close()


def test_unreadable_records_are_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    owner = Owner(tmp_path)
    owner.put(b"unreadable", b"")
    owner.put(b"a", b"1")
    owner.log.close()
    again = Owner(tmp_path)
    assert again.state == {b"a": b"1"}
    assert "skipped records of an unknown format" in capsys.readouterr().out
    again.log.close()


async def test_a_log_that_is_too_large_is_rewritten_with_its_live_records(tmp_path: Path) -> None:
    owner = Owner(tmp_path, rewrite_bytes=10_000)
    for index in range(200):
        owner.put(b"a", b"%03d" % index * 100)
    assert owner.log.should_rewrite
    await owner.log.maintain(owner.append_live)
    assert not owner.log.should_rewrite
    assert owner.log.log.log_start_offset == 200
    owner.log.close()
    again = Owner(tmp_path)
    assert again.state == {b"a": b"199" * 100}
    again.log.close()


@pytest.mark.parametrize("fsync", ["os", "always"])
async def test_records_are_published_once_they_are_durable(
    tmp_path: Path, fsync: FsyncPolicy
) -> None:
    owner = Owner(tmp_path, fsync=fsync)
    published: list[int] = []
    owner.log.on_readable = lambda end, size: published.append(end) if size else None
    end = owner.put(b"a", b"1")
    assert published == ([] if fsync == "always" else [end])
    await owner.log.until_durable(end)
    assert published == [end]
    owner.log.close()


def test_fields_that_are_missing_or_damaged_are_malformed() -> None:
    assert RecordReader(encode_string("name")).string() == "name"
    assert RecordReader(encode_string(None)).nullable_string() is None
    for data in (b"", b"\x00", encode_string("name")[:-1], encode_string(None), b"\x00\x01\xff"):
        with pytest.raises(MalformedRecord):
            RecordReader(data).string()
    with pytest.raises(ValueError, match="at most 32767"):
        encode_string("x" * 32_768)


def test_a_batch_that_cannot_be_read_is_named_with_its_log(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    batch = encode_batch(BatchHeader(record_count=1), b"no record")
    owner.log.log.append(batch, [parse_header(batch)], now_ms=0)
    owner.log.close()
    with pytest.raises(LogError, match=f"{tmp_path}: the records of the batch at offset 0 cannot"):
        Owner(tmp_path)
