"""The log of a coordinator's state, replayed at the start and rewritten when it is too large."""

from __future__ import annotations

import struct
import time
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread
import structlog

from ..log.disk_work import do_in_thread, do_now
from ..log.partition import PartitionLog
from ..log.producers import ProducerIdentity, build_marker, read_marker
from ..log.records import NO_PRODUCER_ID, BatchError, build_batch, parse_header, read_records
from ..log.results import LogError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from ..log.log_config import LogConfig
    from ..log.producers import Marker
    from ..log.records import NewRecord, StoredRecord

_INT16: Final = struct.Struct(">h")


class MalformedRecord(Exception):
    """The record's format is unknown."""


def encode_string(value: str | None) -> bytes:
    """Encode a nullable string; raises `ValueError` for more than 32,767 bytes."""
    if value is None:
        return _INT16.pack(-1)
    data = value.encode()
    if len(data) > 0x7FFF:
        raise ValueError(f"a string has {len(data)} bytes; at most 32767 can be stored")
    return _INT16.pack(len(data)) + data


class RecordReader:
    """Reads the fields of a record in order; raises `MalformedRecord`."""

    def __init__(self, data: bytes, *, version: int | None = None) -> None:
        """With `version`, the record must begin with it."""
        self._data = data
        self._at = 0
        if version is not None and (found := self.int16()) != version:
            raise MalformedRecord(f"version {found}, expected {version}")

    def int8(self) -> int:
        return self._integer(1)

    def int16(self) -> int:
        return self._integer(2)

    def int32(self) -> int:
        return self._integer(4)

    def int64(self) -> int:
        return self._integer(8)

    def blob(self) -> bytes:
        return self._take(self.int32())

    def string(self) -> str:
        value = self.nullable_string()
        if value is None:
            raise MalformedRecord(f"null at byte {self._at}, expected a string")
        return value

    def nullable_string(self) -> str | None:
        size = self.int16()
        if size == -1:
            return None
        try:
            return self._take(size).decode()
        except UnicodeDecodeError as error:
            raise MalformedRecord(f"the string at byte {self._at} is not UTF-8") from error

    def _integer(self, size: int) -> int:
        return int.from_bytes(self._take(size), signed=True)

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise MalformedRecord(
                f"a field of {size} bytes at byte {self._at} of {len(self._data)}"
            )
        taken = self._data[self._at : end]
        self._at = end
        return taken


logger = structlog.get_logger(__name__)

REWRITE_BYTES: Final = 8 * 1024 * 1024
_RECORDS_PER_BATCH: Final = 1000
_REWRITE_FACTOR: Final = 4


class StateLog:
    """A log of keys and values, where the newest value of a key is valid; the owner holds the state.

    Calls: `restore` once; `append`, `append_marker` and `until_durable` in any order, `maintain`
    regularly; `close` once. Appended records are in the log's file when the call returns. A log larger
    than `rewrite_bytes` and four times its live records is rewritten: the owner appends its live state,
    and the log before is deleted.
    """

    def __init__(
        self,
        directory: Path,
        config: LogConfig,
        *,
        clean: bool,
        rewrite_bytes: int | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Open or create the log in `directory`.

        `config`: the broker's defaults for topics, whose retention is ignored. `clean`: False after a
        kill or a power loss. Raises `LogFailed`, OSError.
        """
        config = replace(config, retention_ms=-1, retention_bytes=-1)
        self.log = PartitionLog.open(directory, config, clean=clean)
        """The underlying log, read-only for others."""
        self._rewrite_bytes = REWRITE_BYTES if rewrite_bytes is None else rewrite_bytes
        self._live_bytes = 0
        self._obsolete_before: int | None = None
        """The offset below which a rewrite has left records that are not deleted yet."""
        self._now = now
        self._syncing = anyio.Lock()
        self._unread_bytes = 0
        self.on_readable: Callable[[int, int], None] = lambda end, size: None
        """Called with the end offset (exclusive) and the size in bytes of newly readable records. With the
        fsync setting "always" they are on disk by then."""

    def close(self) -> None:
        """Sync and close the log. Raises `LogFailed`."""
        self.log.close()

    @property
    def end(self) -> int:
        """Log offset after the newest record."""
        return self.log.next_offset

    @property
    def should_rewrite(self) -> bool:
        """Whether the log is too large for its live records."""
        live = self._live_bytes * _REWRITE_FACTOR
        return self.log.size_bytes > max(self._rewrite_bytes, live)

    def restore(
        self,
        apply: Callable[[StoredRecord, ProducerIdentity | None], None],
        append_live: Callable[[], None],
        *,
        end_transaction: Callable[[ProducerIdentity, Marker], None] | None = None,
    ) -> None:
        """Replay the log; then rewrite it if it is too large.

        Args:
            apply: called with each record, and the producer of its transaction if there is one. Records
                for which it raises MalformedRecord are skipped: a newer version has written them.
            append_live: see `maintain`.
            end_transaction: called with each marker.

        Raises LogError, OSError, and what the callbacks raise: the log is closed.
        """
        try:
            self._replay(apply, end_transaction)
            if self.should_rewrite:  # blocking on the disk is harmless now
                start = self._rewrite(append_live)
                self.log.fsync()
                do_now(self.log.truncation(start))
        except BaseException:
            self.close()
            raise

    def append(self, records: Iterable[NewRecord], producer: ProducerIdentity | None = None) -> int:
        """Append the records as one batch; return the log offset after it, 0 without records.

        With `producer`, the records belong to its transaction. Raises `LogFailed`: nothing is appended.
        """
        now_ms = self.now_ms()
        stamped = [record._replace(timestamp=now_ms) for record in records]
        if not stamped:
            return 0
        return self._write(
            build_batch(
                stamped,
                producer_id=producer.producer_id if producer else NO_PRODUCER_ID,
                producer_epoch=producer.epoch if producer else -1,
                transactional=producer is not None,
            ),
            now_ms,
        )

    def append_in_batches(self, records: Iterable[NewRecord]) -> None:
        """Append any number of records in several batches."""
        rest = iter(records)
        while chunk := list(islice(rest, _RECORDS_PER_BATCH)):
            self.append(chunk)

    def append_marker(self, marker: Marker, producer: ProducerIdentity) -> int:
        """Append a marker that ends the transaction of `producer`; return the log offset after it."""
        now_ms = self.now_ms()
        return self._write(build_marker(marker, producer, timestamp_ms=now_ms), now_ms)

    async def until_durable(self, log_offset: int) -> None:
        """Wait until the records before `log_offset` are on disk, if the fsync setting is "always"."""
        if self.log.config.fsync != "always":
            return
        while self.log.durable_offset < log_offset:
            await self._sync()

    async def maintain(self, append_live: Callable[[], None]) -> None:
        """Sync when the fsync policy requires it; rewrite the log if it is too large.

        `append_live` appends all live records. Raises `LogFailed`, OSError; the next call goes on.
        """
        self.log.producers.expire(self.now_ms())
        if self.log.fsync_due:
            await self._sync()
        if self._obsolete_before is None and self.should_rewrite:
            self._obsolete_before = self._rewrite(append_live)
        if self._obsolete_before is not None:
            await self._sync()
            await do_in_thread(self.log.truncation(self._obsolete_before))
            self._obsolete_before = None

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return int(self._now() * 1000)

    def _replay(
        self,
        apply: Callable[[StoredRecord, ProducerIdentity | None], None],
        end_transaction: Callable[[ProducerIdentity, Marker], None] | None,
    ) -> None:
        unreadable = 0
        for header, data in self.log.batches():
            producer = ProducerIdentity(header.producer_id, header.producer_epoch)
            try:
                marker = read_marker(data, header) if header.is_control else None
                records = [] if marker else read_records(data, header)
            except BatchError as error:
                raise LogError(f"{self.log.directory}: {error}") from error
            if marker is not None and end_transaction is not None:
                end_transaction(producer, marker)
            for record in records:
                try:
                    apply(record, producer if header.is_transactional else None)
                except MalformedRecord:
                    unreadable += 1
        if unreadable:
            logger.warning(
                "skipped records of an unknown format",
                records=unreadable,
                directory=str(self.log.directory),
            )

    def _rewrite(self, append_live: Callable[[], None]) -> int:
        """Append all live records to a new segment, and return its first offset."""
        self.log.roll()
        start = self.log.next_offset
        before = self.log.size_bytes
        append_live()
        self._live_bytes = self.log.size_bytes - before
        return start

    def _write(self, batch: bytearray, now_ms: int) -> int:
        self.log.append(batch, [parse_header(batch)], now_ms=now_ms)
        self.log.flush_pending()
        self._unread_bytes += len(batch)
        if self.log.config.fsync != "always":
            self._publish(self.log.next_offset)
        return self.log.next_offset

    def _publish(self, end: int) -> None:
        size, self._unread_bytes = self._unread_bytes, 0
        self.on_readable(end, size)

    async def _sync(self) -> None:
        """Sync in a thread; concurrent callers share the next sync."""
        target = self.log.next_offset
        async with self._syncing:
            if self.log.durable_offset < target:
                await anyio.to_thread.run_sync(self.log.fsync)
                self._publish(self.log.durable_offset)
