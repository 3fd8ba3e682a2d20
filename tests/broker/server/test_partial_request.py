"""A request whose bytes arrive in pieces."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.broker.server.buffers import RequestBuffers
from kmr.broker.server.partial_request import PartialRequest

MIB = 2**20


def begin(buffers: RequestBuffers, beginning: bytes, size: int) -> PartialRequest:
    view = memoryview(beginning)
    return PartialRequest(view, size, buffers, now=100.0, resume=lambda: None)


def receive(request: PartialRequest, data: bytes) -> bool:
    room = request.room()[: len(data)]
    room[:] = data[: len(room)]
    return request.received(len(room))


@given(st.integers(2, 3 * MIB), st.integers(1, 100_000), st.integers(1, MIB))
def test_a_request_is_whole_whatever_the_pieces_and_its_memory_comes_back(
    size: int, first: int, piece: int
) -> None:
    buffers = RequestBuffers(64 * MIB)
    sent = memoryview(bytes(range(256)) * (size // 256 + 1))[:size]
    first = min(first, size - 1)
    request = begin(buffers, bytes(sent[:first]), size)
    assert request.pool.used <= 4 * max(4096, 4 * first, MIB if first >= 16 * 1024 else 0)
    arrived = first
    while True:
        data = bytes(sent[arrived : arrived + min(piece + size // 20, len(request.room()))])
        arrived += len(data)
        if receive(request, data):
            break
    assert request.buffer[:size] == sent
    request.close()
    assert request.pool.used == 0


async def test_a_request_without_memory_goes_on_when_there_is_some() -> None:
    buffers, resumed = RequestBuffers(4 * MIB), asyncio.Event()
    other = buffers.small.take_beyond_limit(MIB)
    request = PartialRequest(
        memoryview(bytes(4096)), 100_000, buffers, now=100.0, resume=resumed.set
    )
    assert request.waits_for_memory
    assert request.overdue(100.0 + 30, 100.0, 30.0) == ""
    assert "no memory for a request in 31 seconds (4096 of 100000" in request.overdue(
        131.0, 100.0, 30.0
    )
    buffers.small.put(other)
    await resumed.wait()
    assert not request.waits_for_memory
    assert len(request.room()) == 4 * 4096 - 4096
    request.close()
    assert buffers.small.used == 0


@pytest.mark.parametrize("comes", [False, True], ids=["before its memory", "with its memory"])
async def test_a_client_that_goes_leaves_no_memory_behind(comes: bool) -> None:
    buffers = RequestBuffers(4 * MIB)
    other = buffers.small.take_beyond_limit(MIB)
    request = begin(buffers, bytes(4096), 100_000)
    if comes:
        buffers.small.put(other)
    request.close()
    await asyncio.sleep(0)
    if not comes:
        buffers.small.put(other)
    await asyncio.sleep(0)
    assert buffers.small.used == 0
    assert not buffers.small.is_awaited
