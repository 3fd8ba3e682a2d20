"""Compression of record batches; decompression into bounded memory, whatever a client sent."""

from __future__ import annotations

import mmap
import struct
from typing import TYPE_CHECKING, Final

import cramjam
from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MAX_UNCOMPRESSED_BYTES", "compress", "decompress"]

MAX_UNCOMPRESSED_BYTES: Final = 256 * 1024 * 1024
"""A batch that would grow beyond this is refused: a kilobyte of zstd can hold gigabytes."""

_JAVA_SNAPPY: Final = b"\x82SNAPPY\x00"
_JAVA_SNAPPY_HEADER_BYTES: Final = 16
_BLOCK_LENGTH: Final = struct.Struct(">I")


def compress(codec: int, body: memoryview | bytes, level: int | None = None) -> bytes:
    """`body` in the form that clients write, by the codec's number in a batch's attributes (0 to 4).

    `level`: of gzip (1 to 9), lz4 (1 to 17) or zstd (-131072 to 22), which the others ignore; None is
    the default of Kafka's brokers.
    """
    if codec in _LEVELS:
        return bytes(_ENCODERS[codec](bytes(body), _LEVELS[codec] if level is None else level))
    return bytes(_ENCODERS[codec](bytes(body)))


def decompress(codec: int, body: memoryview) -> memoryview:
    """What `body` holds, by the codec's number in a batch's attributes (1 to 4).

    Raises ValueError if it is damaged, grows beyond `MAX_UNCOMPRESSED_BYTES`, or for another codec.
    """
    # Anonymous memory: its pages cost nothing before they are written.
    output = memoryview(mmap.mmap(-1, MAX_UNCOMPRESSED_BYTES))
    try:
        size = int(_INTO[codec](body, output))
    except KeyError:
        raise ValueError(f"unknown compression codec {codec}") from None
    except (cramjam.DecompressionError, struct.error) as error:
        raise ValueError(f"decompression failed: {error}") from error
    return output[:size]


def _snappy_into(body: memoryview, output: memoryview) -> int:
    """Snappy comes as one raw block, or as the Java library's stream of blocks with lengths."""
    if bytes(body[: len(_JAVA_SNAPPY)]) != _JAVA_SNAPPY:
        return int(cramjam.snappy.decompress_raw_into(body, output))
    position, size = _JAVA_SNAPPY_HEADER_BYTES, 0
    while position < len(body):
        (length,) = _BLOCK_LENGTH.unpack_from(body, position)
        position += _BLOCK_LENGTH.size
        block = body[position : position + length]
        size += int(cramjam.snappy.decompress_raw_into(block, output[size:]))
        position += length
    return size


_INTO: Final = {
    1: cramjam.gzip.decompress_into,
    2: _snappy_into,
    3: cramjam.lz4.decompress_into,
    4: cramjam.zstd.decompress_into,
}

_LEVELS: Final = {1: 6, 3: 9, 4: 3}
_ENCODERS: Final[dict[int, Callable[..., bytes]]] = {
    0: bytes,
    1: gzip_encode,
    2: snappy_encode,
    3: lz4_encode,
    4: zstd_encode,
}
