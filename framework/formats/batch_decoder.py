"""Decode Kafka's record batches (message format v2, KIP-98) to Arrow columns.

`BatchDecoder.batch` reads the headers, which hold the offset range, and compares checksums (25 GB/s). The
rest happens on the first access to the batch's `records`, in that thread, mostly without the GIL.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import cramjam
import crc32c
import numpy as np
import pyarrow as pa
from aiokafka.record.memory_records import MemoryRecords

from ..errors import CorruptRecords
from ..record import ROW_OVERHEAD, SCHEMA, Batch
from . import kernels
from .columns import (
    Constants,
    Row,
    binary_column,
    from_rows,
    header_column,
    number_column,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray


_NO_TIMESTAMP = -1  # format 0 has no timestamps
_EXPANSION_AT_FIRST = 4.0  # assumed growth of compressed batches, until one has been decompressed
_LARGEST_PART = 1 << 30  # bytes; Arrow's binary columns end at 2 GiB
_ABORT = 0  # the type of a control record that ends a transaction without committing it
_FEW = 16  # record batches of a part
_SMALL = 64 * 1024  # bytes of a part whose headers are read with those of others
_CONTROL_KEY = struct.Struct(">hh")  # version, type


class FetchedPart(NamedTuple):
    """The part of a fetch response that is of one partition; see `BatchDecoder.batch`."""

    topic: str
    partition: int
    data: bytes | memoryview
    first: int
    aborted: Sequence[tuple[int, int]] = ()


@dataclass(slots=True)
class _FetchedRecords:
    """The records of one partition in a fetch response."""

    topic: str
    partition: int
    first: int
    data: bytes | memoryview
    view: NDArray[np.uint8]
    headers: NDArray[np.int64]
    flags: int
    aborted: Sequence[tuple[int, int]]
    decoder: BatchDecoder

    @property
    def is_plain(self) -> bool:
        """Whether all of its records are wanted, and in the present format."""
        special = kernels.LEGACY | kernels.CONTROL | kernels.TRANSACTIONAL
        return not self.flags & special and self.headers[0, kernels.BASE_OFFSET] >= self.first

    def corrupt(self, row: int, reason: str) -> CorruptRecords:
        """Return the error for the batch whose header is in `row`."""
        offset = int(self.headers[row, kernels.BASE_OFFSET])
        return _corrupt(self.topic, self.partition, offset, reason)


class BatchDecoder:
    """Makes batches of raw fetch responses. Thread-safe."""

    def __init__(
        self, *, read_committed: bool = True, check_crcs: bool = True, limit: int = _LARGEST_PART
    ) -> None:
        """Make a decoder.

        Args:
            read_committed: leave out records of aborted transactions.
            check_crcs: compare each record batch with its checksum (CRC-32C).
            limit: the most bytes of one partition of a response after decompression.
        """
        self._read_committed = read_committed
        self._check_crcs = check_crcs
        self._limit = min(limit, _LARGEST_PART)
        self._constants = Constants()
        self._expansion: dict[str, float] = {}
        self._nothing = from_rows("", 0, [])

    def batch(
        self,
        topic: str,
        partition: int,
        data: bytes | memoryview,
        first: int,
        aborted: Sequence[tuple[int, int]] = (),
    ) -> Batch | None:
        """Return one lazy batch of all whole record batches in `data`; None if `data` is empty.

        Its range begins at `first` and ends with the last whole record batch, whether or not those
        offsets hold records to return. An incomplete record batch at the end (brokers cut responses at
        their size limit) is ignored: the next fetch returns it whole.

        Args:
            topic: of the batch.
            partition: of the batch.
            data: the records of one partition in a fetch response.
            first: the offset of the fetch request; records before it are left out.
            aborted: producer id and first offset of each aborted transaction, from the response.

        Raises:
            CorruptRecords: see `batches`.
        """
        part = FetchedPart(topic, partition, data, first, aborted)
        (made,) = self.batches([part])
        if isinstance(made, CorruptRecords):
            raise made
        return made

    def batches(self, parts: Sequence[FetchedPart]) -> list[Batch | CorruptRecords | None]:
        """Return what `batch` returns or raises for each part of a response; small ones cost less together.

        CorruptRecords: the first record batch is damaged. (Record batches before a damaged one become a
        batch, and the next fetch begins with the damaged one.) `batch.records` raises it for damage that
        checksum and header do not show.
        """
        made: list[Batch | CorruptRecords | None] = [None] * len(parts)
        small: list[int] = []
        for number, part in enumerate(parts):
            if len(part.data) > _SMALL:
                made[number] = self._scanned([part])[0]
            elif part.data:
                small.append(number)
        if small:
            scanned = self._scanned([parts[number] for number in small])
            for number, each in zip(small, scanned, strict=True):
                made[number] = each
        return made

    def _scanned(self, parts: Sequence[FetchedPart]) -> list[Batch | CorruptRecords]:
        """Read the headers of some parts in one call."""
        data = parts[0].data if len(parts) == 1 else b"".join([part.data for part in parts])
        bounds = [0, *accumulate(len(part.data) for part in parts)]
        headers, found = kernels.scan(
            np.frombuffer(data, np.uint8), bounds, [part.first for part in parts]
        )
        end = found[-1].stop
        is_few = end <= _FEW * len(parts)  # NumPy costs more than the decoding
        rows = headers[:end].tolist() if is_few else None
        return [
            self._batch(
                part,
                each,
                headers[each.start : each.stop],
                None if rows is None else rows[each.start : each.stop],
            )
            for part, each in zip(parts, found, strict=True)
        ]

    def _batch(
        self,
        fetched: FetchedPart,
        found: kernels.Scanned,
        headers: NDArray[np.int64],
        rows: list[list[int]] | None,
    ) -> Batch | CorruptRecords:
        """Return the batch of a part; `rows` are its headers, unless there are many."""
        topic, partition, data, first, aborted = fetched
        flags, status = found.flags, found.status
        if self._check_crcs:
            intact = _count_intact(memoryview(data), headers.tolist() if rows is None else rows)
            if intact < len(headers):
                headers, status = headers[:intact], kernels.BAD_CRC
                rows = None if rows is None else rows[:intact]
        if not len(headers):
            reason = "the broker sent only records before that offset"
            if status != kernels.OK:
                reason = f"{kernels.REASONS[status]} (at byte {found.position} of {len(data)})"
            elif found.incomplete:
                reason = (
                    f"it is cut off after {len(data)} of {found.incomplete} bytes"
                    " (a broker older than 0.10.1 needs a larger max_partition_fetch_bytes)"
                )
            return _corrupt(topic, partition, first, reason)
        view: NDArray[np.uint8] = np.frombuffer(data, np.uint8)
        part = _FetchedRecords(topic, partition, first, data, view, headers, flags, aborted, self)
        size = len(data)
        if flags & kernels.CODEC:
            size = int(size * self._expansion.get(topic, _EXPANSION_AT_FIRST))
        if rows is not None:
            count = sum([row[kernels.COUNT] for row in rows])
            newest = max([row[kernels.MAX_TIMESTAMP] for row in rows])
            last = rows[-1][kernels.LAST_OFFSET]
        else:
            count = int(headers[:, kernels.COUNT].sum())
            newest = int(headers[:, kernels.MAX_TIMESTAMP].max())
            last = int(headers[-1, kernels.LAST_OFFSET])
        return Batch(
            topic,
            partition,
            first,
            last,
            nbytes=size + ROW_OVERHEAD * count,
            load=partial(self._decode, part),
            max_timestamp_ms=newest,
            part=part,
        )

    def together(self, parts: Sequence[_FetchedRecords]) -> pa.RecordBatch | None:
        """Decode plain parts of one topic, one after the other; see `decode_together`."""
        sizes = [len(part.data) for part in parts]
        headers = np.concatenate([part.headers for part in parts])
        of_part = np.repeat(np.arange(len(parts)), [len(part.headers) for part in parts])
        begins = np.cumsum([0, *sizes[:-1]])[of_part]
        for column in (kernels.POSITION, kernels.START, kernels.END):
            headers[:, column] += begins
        appended = headers[:, kernels.ATTRIBUTES] & kernels.LOG_APPEND_TIME != 0
        if appended.any() and not appended.all():
            return None
        data = b"".join([part.data for part in parts])
        flags = 0
        for part in parts:
            flags |= part.flags
        view: NDArray[np.uint8] = np.frombuffer(data, np.uint8)
        whole = replace(parts[0], first=-1, data=data, view=view, headers=headers, flags=flags)
        try:
            records = self._decode(whole)
        except CorruptRecords:
            return None
        numbers = np.array([part.partition for part in parts], np.int32)
        partitions = number_column(
            "partition", np.repeat(numbers[of_part], headers[:, kernels.COUNT])
        )
        columns = [
            partitions if name == "partition" else records.column(name) for name in SCHEMA.names
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def _decode(self, part: _FetchedRecords) -> pa.RecordBatch:
        if part.flags & kernels.LEGACY:
            return self._decode_mixed(part)
        if part.flags & (kernels.CONTROL | kernels.TRANSACTIONAL):
            part = replace(part, headers=part.headers[self._readable(part)])
        if part.flags & kernels.CODEC:
            part = self._decompress(part)
        view, headers = part.view, part.headers
        counts, longs, ints = kernels.parse(view, headers, part.first)
        status, batch, rows, null_keys, null_values, pairs = counts.tolist()
        if status != kernels.OK:
            raise part.corrupt(batch, kernels.REASONS[status])
        if rows == 0:
            return self._nothing
        offsets, timestamps = longs
        keys, key_offsets, values, value_offsets, starts, pair_counts = ints
        constants = self._constants
        return pa.RecordBatch.from_arrays(
            [
                constants.column("key", None, rows)
                if null_keys == rows
                else binary_column(view, keys[:rows], key_offsets[: rows + 1], null_keys),
                binary_column(view, values[:rows], value_offsets[: rows + 1], null_values),
                constants.column("topic", part.topic, rows),
                number_column("partition", np.full(rows, part.partition, np.int32)),
                number_column("offset", offsets[:rows]),
                number_column("timestamp", timestamps[:rows]),
                self._timestamp_types(part, offsets[:rows]),
                header_column(view, starts[:rows], pair_counts[:rows], pairs)
                if pairs
                else constants.column("headers", None, rows),
            ],
            schema=SCHEMA,
        )

    def _decode_mixed(self, part: _FetchedRecords) -> pa.RecordBatch:
        """Decode a part with batches of the old formats: in runs of one kind, then joined."""
        old = part.headers[:, kernels.MAGIC] < 2
        decoded = []
        for run in np.split(np.arange(len(old)), np.flatnonzero(np.diff(old)) + 1):
            current = replace(
                part, headers=part.headers[run], flags=part.flags & ~int(kernels.LEGACY)
            )
            if not old[run[0]]:
                decoded.append(self._decode(current))
                continue
            start = int(current.headers[0, kernels.POSITION])
            end = int(current.headers[-1, kernels.END])
            try:
                rows = _read_legacy(bytes(part.data[start:end]), check_crcs=self._check_crcs)
            except ValueError as error:
                raise current.corrupt(0, str(error)) from error
            wanted = [row for row in rows if row.offset >= part.first]
            decoded.append(from_rows(part.topic, part.partition, wanted))
        return pa.Table.from_batches(decoded).combine_chunks().to_batches()[0]

    def _readable(self, part: _FetchedRecords) -> NDArray[np.bool_]:
        """Return which batches hold records: no control batches, none of aborted transactions."""
        attributes = part.headers[:, kernels.ATTRIBUTES]
        control: NDArray[np.bool_] = attributes & kernels.CONTROL != 0
        readable = ~control
        if not self._read_committed or not part.aborted:
            return readable
        starting = sorted(part.aborted, key=lambda transaction: transaction[1], reverse=True)
        aborting: set[int] = set()
        for row in np.flatnonzero(attributes & kernels.TRANSACTIONAL).tolist():
            last, producer, *_ = part.headers[
                row, [kernels.LAST_OFFSET, kernels.PRODUCER_ID]
            ].tolist()
            while starting and starting[-1][1] <= last:
                aborting.add(starting.pop()[0])
            if producer not in aborting:
                continue
            if not control[row]:
                readable[row] = False
            elif _control_type(part, row) == _ABORT:
                aborting.discard(producer)
        return readable

    def _decompress(self, part: _FetchedRecords) -> _FetchedRecords:
        """Return the part as plain bytes; START and END of its headers point into them."""
        source = memoryview(part.data)
        growth = self._expansion.get(part.topic, _EXPANSION_AT_FIRST)
        plain = Decompressed(int(len(source) * growth * 1.25), self._limit)
        where = []
        columns = part.headers[:, [kernels.START, kernels.END, kernels.ATTRIBUTES]].tolist()
        for row, (start, end, attributes) in enumerate(columns):
            try:
                where.append(plain.append(attributes & kernels.CODEC, source[start:end]))
            except CodecError as error:
                raise part.corrupt(row, f"it cannot be decompressed: {error}") from error
        headers = part.headers.copy()
        headers[:, [kernels.START, kernels.END]] = np.array(where, np.int64).reshape(-1, 2)
        self._expansion[part.topic] = max(1.0, len(plain.data) / len(source))
        return replace(part, headers=headers, view=plain.data)

    def _timestamp_types(self, part: _FetchedRecords, offsets: NDArray[np.int64]) -> pa.Array[Any]:
        if not part.flags & kernels.LOG_APPEND_TIME:
            return self._constants.column("timestampType", 0, len(offsets))
        by_batch = (part.headers[:, kernels.ATTRIBUTES] & kernels.LOG_APPEND_TIME != 0).astype(
            np.int32
        )
        if by_batch.all():
            return self._constants.column("timestampType", 1, len(offsets))
        rows = np.searchsorted(part.headers[:, kernels.BASE_OFFSET], offsets, side="right") - 1
        return number_column("timestampType", by_batch[rows])


def decode_together(
    batches: Sequence[Batch],
) -> tuple[pa.RecordBatch, NDArray[np.int64]] | None:
    """Decode batches of one topic in one step, where that is possible.

    Returns:
        The records of all batches, one batch after the other, and how many each has. The batches do not keep
        them. None if one of them must be decoded alone: old formats, transactions, damage, records below the
        offset that was asked for.
    """
    parts = [batch.part for batch in batches]
    if not any(parts):
        records = [batch.records for batch in batches]
        joined = pa.Table.from_batches(records).combine_chunks().to_batches()
        counts = np.array([len(each) for each in records], np.int64)
        return (joined[0] if joined else records[0]), counts
    plain = [part for part in parts if isinstance(part, _FetchedRecords) and part.is_plain]
    if len(plain) < len(parts):
        return None
    decoded = plain[0].decoder.together(plain)
    if decoded is None:
        return None
    return decoded, np.array([part.headers[:, kernels.COUNT].sum() for part in plain], np.int64)


def warm_up() -> None:
    """Compile the decoder, or load it from the cache on disk.

    Takes a few seconds the first time, 40 ms from then on, nothing when called again. It holds the GIL:
    call it before the process has heartbeats to send.
    """
    header = struct.pack(">qiibIhiqqqhii", 0, 62, 0, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1)
    record = b"\x18\x00\x00\x00\x02k\x02v\x02\x02h\x02x"
    batch = BatchDecoder(check_crcs=False).batch("warm-up", 0, header + record, 0)
    kernels.bitmap(np.zeros(1, np.int32))
    if batch is None or len(batch) != 1:
        raise RuntimeError("the compiled decoder does not work on this machine")


def _count_intact(data: memoryview, rows: Sequence[Sequence[int]]) -> int:
    """Count the batches before the first with a wrong checksum; `_read_legacy` checks the old formats."""
    for number, row in enumerate(rows):
        begin = row[kernels.POSITION] + kernels.CRC_FROM
        if (
            row[kernels.MAGIC] == 2
            and crc32c.crc32c(data[begin : row[kernels.END]]) != row[kernels.CRC]
        ):
            return number
    return len(rows)


def _control_type(part: _FetchedRecords, row: int) -> int:
    counts, _, (key_starts, key_offsets, *_) = kernels.parse(
        part.view, part.headers[row : row + 1], 0
    )
    if (
        part.headers[row, kernels.ATTRIBUTES] & kernels.CODEC
        or counts[kernels.STATUS] != kernels.OK
        or counts[kernels.ROWS] == 0
        or key_offsets[1] < _CONTROL_KEY.size
    ):
        raise part.corrupt(row, "it is not a valid transaction marker")
    kind: int = _CONTROL_KEY.unpack_from(part.data, int(key_starts[0]))[1]
    return kind


def _corrupt(topic: str, partition: int, offset: int, reason: str) -> CorruptRecords:
    return CorruptRecords(
        f"{topic}-{partition}: the record batch at offset {offset} is damaged: {reason}."
        " Compare with another replica, or move the group past it to skip it"
    )


def _read_legacy(data: bytes, *, check_crcs: bool) -> list[Row]:
    """Read the records of consecutive message sets, all of format 0 or 1.

    Raises `ValueError`, with the reason, for damaged bytes.
    """
    rows = []
    try:
        sets = MemoryRecords(data)
        while sets.has_next():
            messages = sets.next_batch()
            if check_crcs and not messages.validate_crc():
                raise ValueError("its checksum is wrong")
            rows += [
                Row(
                    message.offset,
                    _NO_TIMESTAMP if message.timestamp is None else message.timestamp,
                    _NO_TIMESTAMP if message.timestamp_type is None else message.timestamp_type,
                    message.key,
                    message.value,
                )
                for message in messages
            ]
    except Exception as error:  # damaged bytes make the parser raise errors of any type
        raise ValueError(f"its old format (0 or 1) cannot be read: {error!r}") from error
    return rows


_GZIP, _SNAPPY, _LZ4, _ZSTD = 1, 2, 3, 4
_INTO: dict[int, Callable[[memoryview, Any], int]] = {
    _GZIP: cramjam.gzip.decompress_into,
    _SNAPPY: cramjam.snappy.decompress_raw_into,
    _LZ4: cramjam.lz4.decompress_into,
    _ZSTD: cramjam.zstd.decompress_into,
}
# The Java client frames snappy itself: a magic and two version numbers, then for each block its length
# and plain snappy. librdkafka writes plain snappy without any frame.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = 16
_SMALLEST = 4096


class CodecError(Exception):
    """The compressed bytes cannot be decompressed; the message says why."""


class Decompressed:
    """A buffer into which several record batches are decompressed, one after the other.

    It grows as needed up to `limit` bytes, so that a small batch that claims to be huge cannot exhaust
    memory. Decompression releases the GIL.
    """

    def __init__(self, expected: int, limit: int) -> None:
        """Allocate `expected` bytes at first."""
        self._limit = limit
        self._buffer = np.empty(min(max(expected, _SMALLEST), limit), np.uint8)
        self._size = 0

    @property
    def data(self) -> NDArray[np.uint8]:
        """All bytes so far."""
        return self._buffer[: self._size]

    def append(self, codec: int, source: memoryview) -> tuple[int, int]:
        """Decompress one batch; return where its bytes begin and end. Codec 0 is no compression.

        Raises `CodecError` for an unknown codec, damaged bytes, and more than `limit` bytes.
        """
        start = self._size
        if codec == 0:
            self._reserve(len(source))
            self._buffer[start : start + len(source)] = source
            self._size += len(source)
        elif codec not in _INTO:
            raise CodecError(f"compression codec {codec} is unknown")
        elif codec == _SNAPPY and source[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
            for block in _xerial_blocks(source):
                self._decompress(codec, block)
        else:
            self._decompress(codec, source)
        return start, self._size

    def _decompress(self, codec: int, source: memoryview) -> None:
        if codec == _SNAPPY:
            self._reserve(_snappy_size(source))
        while True:
            try:
                self._size += _INTO[codec](source, self._buffer[self._size :])
            except cramjam.DecompressionError as error:
                # Damaged bytes and a full buffer raise the same error: retry with a larger buffer.
                if codec == _SNAPPY or len(self._buffer) == self._limit:
                    raise CodecError(str(error)) from error
                self._grow(2 * len(self._buffer))
            else:
                return

    def _reserve(self, size: int) -> None:
        if self._size + size > self._limit:
            raise CodecError(f"larger than {self._limit} bytes when decompressed")
        if self._size + size > len(self._buffer):
            self._grow(max(self._size + size, 2 * len(self._buffer)))

    def _grow(self, size: int) -> None:
        larger = np.empty(min(size, self._limit), np.uint8)
        larger[: self._size] = self.data
        self._buffer = larger


def _snappy_size(source: memoryview) -> int:
    try:
        return int(cramjam.snappy.decompress_raw_len(source))
    except cramjam.DecompressionError as error:
        raise CodecError(str(error)) from error


def _xerial_blocks(source: memoryview) -> list[memoryview]:
    blocks = []
    position = _XERIAL_HEADER
    while position < len(source):
        if position + 4 > len(source):
            raise CodecError("snappy: a block's length is cut off")
        (size,) = struct.unpack_from(">i", source, position)
        position += 4
        if size < 0 or size > len(source) - position:
            raise CodecError("snappy: a block is cut off")
        blocks.append(source[position : position + size])
        position += size
    return blocks
