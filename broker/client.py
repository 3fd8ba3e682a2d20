"""A fast producer that builds whole record batches for aiokafka's `send_batch`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

import numpy as np
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, UnknownError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from aiokafka.producer.message_accumulator import BatchBuilder
    from numpy.typing import NDArray

_SEED: Final = np.uint32(0x9747B28C)
_M: Final = np.uint32(0x5BD1E995)
_MAX_MATRIX_BYTES: Final = 16 * 1024 * 1024


def partitions_of(keys: Sequence[bytes], partitions: int) -> NDArray[np.uint32]:
    """Return the partition of each key, as the Java client's default partitioner chooses it.

    Source: `Utils.murmur2` of the Java client; the sign bit of the hash is cleared.
    """
    if not keys:
        return np.empty(0, np.uint32)
    return (_murmur2(keys) & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)


def _murmur2(keys: Sequence[bytes]) -> NDArray[np.uint32]:
    lengths = np.fromiter(map(len, keys), np.uint32, len(keys))
    words = int(lengths.max()) // 4 + 1
    if len(keys) > 1 and len(keys) * words * 4 > _MAX_MATRIX_BYTES:
        middle = len(keys) // 2
        return np.concatenate([_murmur2(keys[:middle]), _murmur2(keys[middle:])])
    # One row for each key, padded with zeros: its last word is the remainder that murmur2 hashes.
    padded = b"".join([key.ljust(words * 4, b"\0") for key in keys])
    matrix = np.frombuffer(padded, "<u4").reshape(len(keys), words)
    whole = lengths // 4
    hashes = _SEED ^ lengths
    for index in range(words - 1):
        mixed = matrix[:, index] * _M
        mixed ^= mixed >> 24
        mixed *= _M
        hashes = np.where(index < whole, (hashes * _M) ^ mixed, hashes)
    rest = matrix[np.arange(len(keys)), whole]
    hashes = np.where(lengths & 3, (hashes ^ rest) * _M, hashes)
    hashes ^= hashes >> 13
    hashes *= _M
    hashes ^= hashes >> 15
    return hashes


Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
Header: TypeAlias = tuple[str, bytes | None]


class ProduceError(Exception):
    """Records were not acknowledged; the message has the topic and the number that were."""


class _OpenBatch:
    """What is filled for one partition; the lock keeps batches that are being sent in order."""

    __slots__ = ("batch", "lock", "partition")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.batch: BatchBuilder | None = None
        self.lock = asyncio.Lock()


class BatchProducer:
    """Sends records to one topic; an async context manager.

    Records with a key go to the partition that Kafka's default partitioner chooses; those without a key
    fill a batch of one partition after another (KIP-480). About 1M records/s, where
    `AIOKafkaProducer.send` reaches 90k. Order is kept within a partition; idempotence prevents
    duplicates by retries.

    The exit flushes, unless an exception caused it. Memory is bounded to about three batches for each
    partition.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        *,
        compression: Compression = "none",
        acks: Literal["all", 0, 1] = "all",
        batch_bytes: int = 256 * 1024,
        linger: float = 0.02,
        **client_settings: Any,
    ) -> None:
        """Connect on entering.

        Args:
            batch_bytes: size at which a batch is sent, before compression; must not exceed the topic's
                `max.message.bytes`.
            linger: seconds after which a batch is sent even if it is not full.
            client_settings: more arguments of `AIOKafkaProducer`, for example for TLS and SASL.
        """
        self.topic = topic
        self.acknowledged = 0
        """Records that the broker has acknowledged (sent, if `acks` is 0)."""
        self._linger = linger
        self._producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap_servers,
            acks=acks,
            enable_idempotence=acks == "all",
            compression_type=None if compression == "none" else compression,
            max_batch_size=batch_bytes,
            **client_settings,
        )
        self._open_batches: list[_OpenBatch] = []
        self._next = 0
        self._unacknowledged: set[asyncio.Future[Any]] = set()
        self._failure: BaseException | None = None
        self._lingering: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Connect. Raises KafkaError if no broker answers, or the topic is neither found nor created."""
        try:
            await self._producer.start()
            partitions = await self._producer.partitions_for(self.topic)
        except BaseException:
            await self._producer.stop()
            raise
        self._open_batches = [_OpenBatch(partition) for partition in sorted(partitions)]
        self._lingering = asyncio.create_task(self._send_lingering())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if exc is None:
                await self.flush()
        finally:
            if self._lingering is not None:
                self._lingering.cancel()
                with suppress(asyncio.CancelledError):
                    await self._lingering
            await self._producer.stop()

    @property
    def partitions(self) -> int:
        """Number of the topic's partitions."""
        return len(self._open_batches)

    async def send(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        *,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Add records to their batches; wait while too many batches are being sent.

        Args:
            values: None for a tombstone.
            keys: one for each value.
            headers: of every record.
            partition: of every record; default: chosen by the keys.
            timestamp_ms: of every record, in milliseconds since the epoch; default: now.

        Raises ProduceError if earlier records have failed, ValueError for an unknown partition.
        """
        self._check()
        if partition is not None and not 0 <= partition < len(self._open_batches):
            raise ValueError(
                f"topic {self.topic} has no partition {partition}: it has {len(self._open_batches)}"
            )
        headers = list(headers)
        fixed = None if partition is None else self._open_batches[partition]
        if keys is None or fixed is not None:
            await self._fill(fixed, values, keys, headers, timestamp_ms)
        else:
            await self._distribute(values, keys, headers, timestamp_ms)

    async def flush(self) -> None:
        """Send all open batches and wait for all acknowledgements. Raises ProduceError."""
        await self._send_open_batches()
        while self._unacknowledged:
            await asyncio.wait(self._unacknowledged)
        self._check()

    async def _fill(
        self,
        fixed: _OpenBatch | None,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        headers: list[Header],
        timestamp_ms: int | None,
    ) -> None:
        """Append to the batch of one partition, or, without one, to the next after each full batch."""
        at, count = 0, len(values)
        while at < count:
            into = fixed or self._open_batches[self._next]
            append = self._open(into).append
            while at < count:
                key = None if keys is None else keys[at]
                if (
                    append(timestamp=timestamp_ms, key=key, value=values[at], headers=headers)
                    is None
                ):
                    break
                at += 1
            else:
                return
            self._next = (self._next + 1) % len(self._open_batches)
            await self._send_batch(into)

    async def _distribute(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None],
        headers: list[Header],
        timestamp_ms: int | None,
    ) -> None:
        """Append each record to the batch of its key's partition."""
        chosen = partitions_of([key or b"" for key in keys], len(self._open_batches)).tolist()
        for index, key, value in zip(chosen, keys, values, strict=True):
            each = self._open_batches[self._next if key is None else index]
            batch = each.batch or self._open(each)
            while (
                batch.append(timestamp=timestamp_ms, key=key, value=value, headers=headers) is None
            ):
                if key is None:
                    self._next = (self._next + 1) % len(self._open_batches)
                await self._send_batch(each)
                batch = each.batch or self._open(each)

    def _open(self, each: _OpenBatch) -> BatchBuilder:
        if each.batch is None:
            each.batch = self._producer.create_batch()
        return each.batch

    async def _send_batch(self, each: _OpenBatch) -> None:
        batch, each.batch = each.batch, None
        if batch is None:
            return
        batch.close()
        count = batch.record_count()
        async with each.lock:  # a fair lock: batches stay in order
            try:
                sent = await self._producer.send_batch(batch, self.topic, partition=each.partition)
            except KafkaError as error:
                self._failure = self._failure or error
                self._check()
        self._unacknowledged.add(sent)
        sent.add_done_callback(lambda future: self._acknowledge(future, count))

    def _acknowledge(self, future: asyncio.Future[Any], count: int) -> None:
        self._unacknowledged.discard(future)
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self.acknowledged += count
        else:
            self._failure = self._failure or error

    def _check(self) -> None:
        if self._failure is not None:
            # The client does not know the code of records that a compacted topic refuses.
            unknown = isinstance(self._failure, UnknownError)
            hint = ". A compacted topic takes only records with a key" if unknown else ""
            raise ProduceError(
                f"topic {self.topic}: records were not accepted ({self._failure});"
                f" {self.acknowledged} before them were{hint}"
            ) from self._failure

    async def _send_open_batches(self) -> None:
        for each in self._open_batches:
            await self._send_batch(each)

    async def _send_lingering(self) -> None:
        with suppress(ProduceError):  # the next send or flush raises it
            while True:
                await asyncio.sleep(self._linger)
                await self._send_open_batches()
