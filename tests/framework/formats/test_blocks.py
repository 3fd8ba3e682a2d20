"""Memory of large blocks is used again, and never while something refers to it."""

from __future__ import annotations

from threading import Thread

import numpy as np
import pyarrow as pa

from kmr.formats.blocks import SMALLEST, Blocks

MIB = 1024 * 1024


def test_a_block_has_its_size() -> None:
    blocks = Blocks()
    for size in (0, 1, SMALLEST - 1, SMALLEST, SMALLEST + 1, 5 * MIB):
        block = blocks.allocate(size)
        block.data[:] = 7
        assert bytes(block.buffer) == b"\x07" * size


def test_memory_is_used_again_when_its_buffer_is_gone() -> None:
    blocks = Blocks()
    block = blocks.allocate(3 * MIB)
    before = block.data.ctypes.data
    del block
    assert blocks.free == 3 * MIB
    assert blocks.allocate(2 * MIB).data.ctypes.data == before


def test_a_slice_of_a_column_keeps_its_memory() -> None:
    blocks = Blocks()
    block = blocks.allocate(SMALLEST)
    block.data[:] = ord("a")
    offsets = pa.array([0, 2, SMALLEST], pa.int32()).buffers()[1]
    column = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, block.buffer]).slice(0, 1)
    del block
    others = [blocks.allocate(SMALLEST) for _ in range(3)]
    for other in others:
        other.data[:] = 0
    assert column.to_pylist() == [b"aa"]
    buffer = column.buffers()[2]
    assert buffer is not None
    values = np.frombuffer(memoryview(buffer), np.uint8)
    del column, buffer
    assert blocks.free == 0
    del values
    assert blocks.free == SMALLEST


def test_a_small_block_does_not_get_the_memory_of_a_large_one() -> None:
    blocks = Blocks()
    blocks.allocate(8 * MIB)
    assert blocks.free == 8 * MIB
    block = blocks.allocate(MIB)
    assert blocks.free == 8 * MIB
    assert len(block.buffer) == MIB


def test_what_was_unused_for_longest_is_unmapped() -> None:
    blocks = Blocks(kept=11 * MIB)
    held = [blocks.allocate(size * MIB) for size in (1, 3, 8)]
    kept = held[1].data.ctypes.data
    while held:
        del held[0]
    assert blocks.free == 11 * MIB
    assert blocks.allocate(3 * MIB).data.ctypes.data == kept


def test_threads_never_share_memory() -> None:
    blocks = Blocks(kept=4 * MIB)
    wrong: list[int] = []

    def work(number: int) -> None:
        for turn in range(200):
            block = blocks.allocate(SMALLEST * (1 + turn % 3))
            block.data[:] = number
            if int(block.data.min()) != number or int(block.data.max()) != number:
                wrong.append(number)

    threads = [Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert blocks.free <= 4 * MIB
