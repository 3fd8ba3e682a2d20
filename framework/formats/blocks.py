"""Memory for blocks of bytes that are large: responses, and the records in flight.

In malloc's heaps they leave holes, because they are freed in another order than they were allocated. Where
each is mapped anew, the kernel clears its pages, which takes longer than to decode what they hold.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

SMALLEST: Final = 256 * 1024
"""Bytes of a block that is mapped; smaller ones come from malloc."""

_UNIT: Final = 256 * 1024
_KEPT: Final = 64 * 1024 * 1024
_LARGEST_SHARE: Final = 2  # times the size of a block: the largest memory that it gets


class Block(NamedTuple):
    """Memory that nothing else uses.

    Attributes:
        data: to fill it. Do not use it without the buffer.
        buffer: the memory stays while anything refers to this buffer, or to a slice of it.
    """

    data: NDArray[np.uint8]
    buffer: pa.Buffer


class Blocks:
    """Allocates blocks, and uses their memory again when nothing refers to it.

    Thread-safe without a lock: each method of a list is one step. A lock could be taken twice by one thread,
    because garbage may be collected, and give memory back, at any place.

    Args:
        kept: most bytes of memory that no block uses.
    """

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._free: list[mmap.mmap] = []

    @property
    def free(self) -> int:
        """Bytes of memory that no block uses."""
        return sum(map(len, self._free))

    def allocate(self, size: int) -> Block:
        """Return a block of so many bytes. They have any values."""
        if size < SMALLEST:
            data: Any = np.empty(size, np.uint8)
            return Block(data, pa.py_buffer(data))
        memory = self._take(size) or mmap.mmap(
            -1, -(-size // _UNIT) * _UNIT, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
        data = np.frombuffer(memory, np.uint8, size)
        return Block(data, pa.foreign_buffer(data.ctypes.data, size, _Lease(memory, self)))

    def _take(self, size: int) -> mmap.mmap | None:
        for memory in reversed(self._free.copy()):
            if size <= len(memory) <= _LARGEST_SHARE * size:
                with suppress(ValueError):  # another thread has taken it
                    self._free.remove(memory)
                    return memory
        return None

    def give_back(self, memory: mmap.mmap) -> None:
        """Keep memory for other blocks. If that is too much, unmap the memory that was given back first."""
        self._free.append(memory)
        while self.free > self._kept:
            with suppress(IndexError):  # another thread has taken it
                del self._free[0]


class _Lease:
    """Gives memory back when the buffer is gone."""

    def __init__(self, memory: mmap.mmap, blocks: Blocks) -> None:
        self._memory = memory
        self._blocks = blocks

    def __del__(self) -> None:
        self._blocks.give_back(self._memory)


BLOCKS: Final = Blocks()
"""Those of the process."""
