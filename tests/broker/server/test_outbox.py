"""Responses leave a connection in order, and large ones only as fast as the client reads."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

from kmr.broker.apis.api import Reply
from kmr.broker.apis.meters import RequestMeters
from kmr.broker.protocol.fetch_response import FETCH_HEADROOM
from kmr.broker.server.outbox import Outbox
from kmr.broker.storage.group_commit import Flush

if TYPE_CHECKING:
    import asyncio

METERS = RequestMeters({1: "Fetch"})
MIB = 1024 * 1024


class Transport:
    """Records the writes; `full` pauses the outbox after each one."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.full = False
        self.outbox = Outbox(cast("asyncio.Transport", self))

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))
        if self.full:
            self.outbox.pause()

    def is_closing(self) -> bool:
        return False


def reply(number: int, body: bytes) -> Reply:
    return Reply(body, correlation_id=number, meter=METERS.of(1))


def pooled(number: int, size: int, released: list[int]) -> Reply:
    view = memoryview(bytearray(FETCH_HEADROOM + size))
    return Reply(view, lambda: released.append(size), correlation_id=number, meter=METERS.of(1))


def test_ready_responses_leave_in_one_write_in_their_order() -> None:
    transport = Transport()
    transport.outbox.add(reply(1, b"one"))
    transport.outbox.add(reply(2, b"two"))
    assert (transport.written, transport.outbox.is_empty) == ([], False)
    transport.outbox.send()
    (data,) = transport.written
    assert data.index(b"one") < data.index(b"two")
    assert transport.outbox.is_empty


def test_a_large_response_is_sent_in_slices_and_releases_its_buffer_at_the_end() -> None:
    transport, released = Transport(), list[int]()
    transport.full = True
    transport.outbox.add(pooled(1, MIB, released))
    assert transport.outbox.is_full
    transport.outbox.send()
    assert (len(transport.written), released) == (1, [])
    assert transport.outbox.is_blocked
    while transport.outbox.is_blocked:
        assert not released
        transport.outbox.resume()
        transport.outbox.send()
        if len(b"".join(transport.written)) > MIB:
            transport.full = False
    assert released == [MIB]
    assert transport.outbox.is_empty


def test_responses_behind_a_large_one_wait_for_it() -> None:
    transport, released = Transport(), list[int]()
    transport.full = True
    transport.outbox.add(pooled(1, MIB, released))
    transport.outbox.add(reply(2, b"behind"))
    transport.outbox.send()
    assert [each.correlation_id for each in transport.outbox.waiting] == [2]
    transport.full = False
    transport.outbox.resume()
    transport.outbox.send()
    assert transport.written[-1].endswith(b"behind")


def test_a_closed_outbox_releases_all_buffers() -> None:
    transport, released = Transport(), list[int]()
    transport.full = True
    transport.outbox.add(pooled(1, MIB, released))
    transport.outbox.send()
    transport.outbox.add(pooled(2, 2 * MIB, released))
    transport.outbox.close()
    assert sorted(released) == [MIB, 2 * MIB]
    transport.outbox.send()
    assert len(transport.written) == 1


def test_a_reply_to_several_requests_counts_as_many() -> None:
    transport, flush = Transport(), Flush()
    for requests, text in ((63, b"many "), (1, b"one")):
        assert not transport.outbox.is_full
        after = partial(bytes, text)
        transport.outbox.add(Reply(flush=flush, after_flush=after, requests=requests))
    assert transport.outbox.is_full
    transport.outbox.send()
    assert (transport.written, transport.outbox.is_full) == ([], True)
    flush.finish()
    transport.outbox.send()
    assert (transport.written, transport.outbox.is_full) == ([b"many one"], False)
