"""Which partition a key belongs to: Kafka's murmur2, for many keys at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["partitions_of"]

_SEED: Final = np.uint32(0x9747B28C)
_M: Final = np.uint32(0x5BD1E995)
_MAX_MATRIX_BYTES: Final = 16 * 1024 * 1024


def partitions_of(keys: Sequence[bytes], partitions: int) -> NDArray[np.uint32]:
    """The partition of each key, as the Java client's default partitioner has it.

    Source: `Utils.murmur2` of the Java client; a negative hash loses its sign bit.
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
    # One row a key, filled up with zeros, so that its last word is what murmur2 makes of its rest.
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
