"""A log that keeps the state of a coordinator: replayed at the start, rewritten when it is mostly history."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final, Self

import anyio
import anyio.to_thread
import structlog

from broker.log.partition import PartitionLog
from broker.producers.identity import ProducerIdentity
from broker.producers.markers import build_marker, read_marker
from broker.records import NO_PRODUCER_ID, build_batch, parse_header, read_records
from broker.state_records import MalformedRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from broker.log.config import LogConfig
    from broker.producers.markers import Marker
    from broker.records import BatchHeader, NewRecord, StoredRecord

__all__ = ["REWRITE_BYTES", "StateLog"]

logger = structlog.get_logger(__name__)

REWRITE_BYTES: Final = 8 * 1024 * 1024
_READ_BYTES: Final = 1024 * 1024
_RECORDS_PER_BATCH: Final = 1000
_REWRITE_FACTOR: Final = 4


def _nobody_reads(end: int, size: int) -> None:
    del end, size


class StateLog:
    """Keys and values of which the newest value of a key holds; its owner keeps them in memory.

    What `append` was given is in the log's file when it returns. The log is rewritten, by what its
    owner then appends as its live state, beyond `rewrite_bytes` and four times its live contents.
    """

    def __init__(
        self, log: PartitionLog, *, rewrite_bytes: int, now: Callable[[], float] = time.time
    ) -> None:
        """Take over an open log; see `open`."""
        self._log = log
        self._rewrite_bytes = rewrite_bytes
        self._live_bytes = 0
        self._now = now
        self._syncing = anyio.Lock()
        self._unread_bytes = 0
        self.on_readable: Callable[[int, int], None] = _nobody_reads
        """Called when others may read more of the log: up to which offset (exclusive), and how many bytes
        that is. Under the fsync setting "always" they are then on disk."""

    @classmethod
    def open(
        cls,
        directory: Path,
        config: LogConfig,
        *,
        clean: bool,
        rewrite_bytes: int = REWRITE_BYTES,
        now: Callable[[], float] = time.time,
    ) -> Self:
        """Open or create the log in `directory`.

        `config` is the broker's for topics; retention does not apply here. `clean` is False after a
        kill or a power loss. Raises `LogFailed`, OSError.
        """
        config = replace(config, retention_ms=-1, retention_bytes=-1)
        log = PartitionLog.open(directory, config, clean=clean)
        return cls(log, rewrite_bytes=rewrite_bytes, now=now)

    def close(self) -> None:
        """Sync and close the log. Raises `LogFailed`."""
        self._log.close()

    @property
    def log(self) -> PartitionLog:
        """The log itself; to be looked at only."""
        return self._log

    @property
    def directory(self) -> Path:
        return self._log.directory

    @property
    def end(self) -> int:
        """Log offset after the newest record."""
        return self._log.next_offset

    @property
    def should_rewrite(self) -> bool:
        """Whether most of the log is history."""
        live = self._live_bytes * _REWRITE_FACTOR
        return self._log.size_bytes > max(self._rewrite_bytes, live)

    def restore(
        self,
        apply: Callable[[StoredRecord, ProducerIdentity | None], None],
        append_live: Callable[[], None],
        *,
        end_transaction: Callable[[ProducerIdentity, Marker], None] | None = None,
    ) -> None:
        """Hand over all that was appended; then rewrite the log if most of it is history.

        Args:
            apply: gets each record, with the producer whose transaction it belongs to. A record for
                which it raises MalformedRecord is passed over: a newer version must have written it.
            append_live: see `maintain`.
            end_transaction: gets each marker.

        Raises `LogCorrupt`, `LogFailed`: then the log is closed.
        """
        try:
            self._replay(apply, end_transaction)
            self._shrink(append_live)
        except BaseException:
            self.close()
            raise

    def append(self, records: Iterable[NewRecord], producer: ProducerIdentity | None = None) -> int:
        """Write one batch, if there are records; returns the log offset after it.

        `producer`: the records belong to its transaction. Raises `LogFailed`: nothing was appended.
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

    def append_in_batches(
        self, records: Iterable[NewRecord], producer: ProducerIdentity | None = None
    ) -> None:
        """The same for any number of records."""
        rest = iter(records)
        while chunk := list(islice(rest, _RECORDS_PER_BATCH)):
            self.append(chunk, producer)

    def append_marker(self, marker: Marker, producer: ProducerIdentity) -> int:
        """End the transaction of `producer`; returns the log offset after the marker."""
        now_ms = self.now_ms()
        return self._write(build_marker(marker, producer, timestamp_ms=now_ms), now_ms)

    async def until_durable(self, log_offset: int) -> None:
        """Wait until everything before is on disk, if the fsync setting is "always"."""
        if self._log.config.fsync != "always":
            return
        while self._log.durable_offset < log_offset:
            await self._sync()

    async def maintain(self, append_live: Callable[[], None]) -> None:
        """Sync when the fsync policy says so, rewrite when the log is too large.

        `append_live` appends everything that holds. Raises `LogFailed`.
        """
        self._log.producers.expire(self.now_ms())
        if self._log.fsync_due:
            await self._sync()
        if self.should_rewrite:
            start = self._rewrite(append_live)
            await self._sync()
            self._log.truncate_start(start)

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return int(self._now() * 1000)

    def _replay(
        self,
        apply: Callable[[StoredRecord, ProducerIdentity | None], None],
        end_transaction: Callable[[ProducerIdentity, Marker], None] | None,
    ) -> None:
        unreadable = 0
        for header, data in self._batches():
            producer = ProducerIdentity(header.producer_id, header.producer_epoch)
            if header.is_control:
                if end_transaction is not None:
                    end_transaction(producer, read_marker(data, header))
                continue
            for record in read_records(data, header):
                try:
                    apply(record, producer if header.is_transactional else None)
                except MalformedRecord:
                    unreadable += 1
        if unreadable:
            logger.warning(
                "records of an unknown format were passed over",
                records=unreadable,
                directory=str(self.directory),
            )

    def _batches(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        """All of them, and the bytes that each header's position is in."""
        at = self._log.log_start_offset
        while at < self._log.next_offset:
            span = self._log.read(at, _READ_BYTES, min_one=True)
            position = 0
            while position < len(span.data):
                header = parse_header(span.data, position)
                yield header, span.data
                position = header.end
            at = span.next_offset

    def _shrink(self, append_live: Callable[[], None]) -> None:
        """Rewrite at the start, when waiting for the disk disturbs nobody."""
        if self.should_rewrite:
            start = self._rewrite(append_live)
            self._log.fsync()
            self._log.truncate_start(start)

    def _rewrite(self, append_live: Callable[[], None]) -> int:
        """Append all that is live to a new segment; the log before the returned offset is history."""
        self._log.roll()
        start = self._log.next_offset
        before = self._log.size_bytes
        append_live()
        self._live_bytes = self._log.size_bytes - before
        return start

    def _write(self, batch: bytearray, now_ms: int) -> int:
        self._log.append(batch, [parse_header(batch)], now_ms=now_ms)
        self._log.flush_pending()
        self._unread_bytes += len(batch)
        if self._log.config.fsync != "always":
            self._show(self._log.next_offset)
        return self._log.next_offset

    def _show(self, end: int) -> None:
        size, self._unread_bytes = self._unread_bytes, 0
        self.on_readable(end, size)

    async def _sync(self) -> None:
        """Sync in a thread; who comes meanwhile shares the next one."""
        target = self._log.next_offset
        async with self._syncing:
            if self._log.durable_offset < target:
                await anyio.to_thread.run_sync(self._log.fsync)
                self._show(self._log.durable_offset)
