"""Decompression of record batches: gzip, snappy (plain and in xerial's frames), lz4 frames, zstd."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import cramjam
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

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
