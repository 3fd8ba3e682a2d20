"""Kafka's protocol as a load generator needs it: requests that are built once, responses hardly read.

A client library costs more CPU for a record than a broker does, so it measures itself. Here a request is
the same bytes each time, and a response is looked at for errors and offsets only. Produce 7 and Fetch 11:
the newest versions without compact types, which every broker serves.
"""

from __future__ import annotations

import socket
from struct import Struct
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections import deque

_INT32 = Struct(">i")
_INT16 = Struct(">h")
_HEADER = Struct(">hhih")
_PRODUCE_TAIL = Struct(">ihqqqi")  # partition, error, first offset, time, log start; throttle
_FETCH_REQUEST = Struct(
    ">iiiibii"
)  # replica, wait, least and most bytes, isolation, session, epoch
_FETCH_WANTED = Struct(">iiqqi")  # partition, leader epoch, offset, log start, most bytes
_FETCH_RESPONSE = Struct(">iihii")  # correlation id, throttle, error, session, topics
_FETCHED = Struct(">ihqqq")  # partition, error, high watermark, last stable offset, log start
_ABORTED_BYTES = 16
_BATCH = Struct(">qi")  # base offset, bytes that follow
_LAST_DELTA = 23
_CLIENT = b"bench"
_PRODUCE, _FETCH = (0, 7), (1, 11)
_TIMEOUT_MS = 30_000
_MAX_WAIT_MS = 500
_MAX_BYTES = 64 * 1024 * 1024
RECEIVE_BYTES = 256 * 1024


class WireError(Exception):
    """The broker answered with an error, or closed the connection."""


class Wire:
    """One blocking connection."""

    def __init__(self, address: str, timeout: float = 120.0) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._filled = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def send(self, frames: bytes) -> None:
        """Whole requests, with their lengths."""
        self._socket.sendall(frames)

    def frames(self) -> list[memoryview]:
        """The responses that are there, at least one, without their lengths; valid until the next call."""
        found: list[memoryview] = []
        used = 0
        while not found:
            count = self._socket.recv_into(self._buffer[self._filled :])
            if not count:
                raise WireError("the broker closed the connection")
            self._filled += count
            while self._filled - used >= _INT32.size:
                end = used + _INT32.size + _INT32.unpack_from(self._buffer, used)[0]
                if end > len(self._buffer):
                    self._grow(end)
                if end > self._filled:
                    break
                found.append(self._buffer[used + _INT32.size : end])
                used = end
        rest = bytes(self._buffer[used : self._filled])
        if rest:  # after the bytes that a caller still uses: moved once it has released them
            self._buffer, old = memoryview(bytearray(len(self._buffer))), self._buffer
            self._buffer[: len(rest)] = rest
            del old
        self._filled = len(rest)
        return found

    def _grow(self, size: int) -> None:
        grown = memoryview(bytearray(1 << (size - 1).bit_length()))
        grown[: self._filled] = self._buffer[: self._filled]
        self._buffer = grown


def produce_request(topic: str, partition: int, batch: bytes, acks: int) -> bytes:
    """A whole request with one batch for one partition."""
    name = topic.encode()
    body = _INT16.pack(-1) + _INT16.pack(acks) + _INT32.pack(_TIMEOUT_MS)
    body += _INT32.pack(1) + _INT16.pack(len(name)) + name
    body += _INT32.pack(1) + _INT32.pack(partition) + _INT32.pack(len(batch)) + batch
    return _frame(_PRODUCE, body)


def produce_to_all(topic: str, partitions: int, batch: bytes) -> bytes:
    """A whole request with the same batch for each partition from 0 on; acknowledged by the leader."""
    name = topic.encode()
    body = _INT16.pack(-1) + _INT16.pack(1) + _INT32.pack(_TIMEOUT_MS)
    body += _INT32.pack(1) + _INT16.pack(len(name)) + name + _INT32.pack(partitions)
    sized = _INT32.pack(len(batch)) + batch
    return _frame(
        _PRODUCE, body + b"".join(_INT32.pack(each) + sized for each in range(partitions))
    )


def produced_at(response: memoryview) -> int:
    """The offset that the first record of a produce request got; raises WireError."""
    _, error, offset, _, _, _ = _PRODUCE_TAIL.unpack_from(
        response, len(response) - _PRODUCE_TAIL.size
    )
    if error:
        raise WireError(f"produce was answered with error {error}")
    return int(offset)


def fetch_request(
    topic: str,
    offsets: dict[int, int],
    partition_bytes: int,
    *,
    wait_ms: int = _MAX_WAIT_MS,
    session: tuple[int, int] = (0, -1),
) -> bytes:
    """A whole request for these partitions from these offsets on; `session`: its id and epoch."""
    name = topic.encode()
    body = _FETCH_REQUEST.pack(-1, wait_ms, 1, _MAX_BYTES, 0, *session)
    topic_head = _INT32.pack(1) + _INT16.pack(len(name)) + name + _INT32.pack(len(offsets))
    body += topic_head if offsets else _INT32.pack(0)
    for partition, offset in offsets.items():
        body += _FETCH_WANTED.pack(partition, -1, offset, -1, partition_bytes)
    body += _INT32.pack(0) + _INT16.pack(0)  # nothing to forget, no rack
    return _frame(_FETCH, body)


def session_of(response: memoryview) -> int:
    """The id of the session of a fetch; raises WireError."""
    _, _, error, session, _ = _FETCH_RESPONSE.unpack_from(response)
    if error:
        raise WireError(f"fetch was answered with error {error}")
    return int(session)


def fetched(response: memoryview) -> tuple[dict[int, int], int]:
    """Where to go on in each partition that brought records, and the bytes of records in all.

    Raises WireError.
    """
    _, _, error, _, topics = _FETCH_RESPONSE.unpack_from(response)
    at = _FETCH_RESPONSE.size
    following: dict[int, int] = {}
    size = 0
    for _ in range(topics):
        at += _INT16.size + _INT16.unpack_from(response, at)[0]
        count = _INT32.unpack_from(response, at)[0]
        at += _INT32.size
        for _ in range(count):
            partition, failed, _, _, _ = _FETCHED.unpack_from(response, at)
            if error or failed:
                raise WireError(f"fetch was answered with error {error or failed}")
            at += _FETCHED.size
            aborted = _INT32.unpack_from(response, at)[0]
            at += 2 * _INT32.size + _ABORTED_BYTES * max(0, aborted)  # and the preferred replica
            length = max(0, _INT32.unpack_from(response, at)[0])
            at += _INT32.size
            after = _after_batches(response[at : at + length])
            if after is not None:
                following[partition] = after
            at += length
            size += length
    return following, size


def _after_batches(records: memoryview) -> int | None:
    """The offset behind the last whole batch."""
    at, last, end = 0, -1, len(records) - _BATCH.size
    while at <= end:
        size = _BATCH.unpack_from(records, at)[1] + _BATCH.size
        if at + size > len(records):
            break
        last, at = at, at + size
    if last < 0:
        return None
    return int(
        _BATCH.unpack_from(records, last)[0]
        + _INT32.unpack_from(records, last + _LAST_DELTA)[0]
        + 1
    )


class Pipeline:
    """Produce requests on one connection, with so many unanswered at most."""

    def __init__(self, wire: Wire, in_flight: int) -> None:
        self._wire = wire
        self._in_flight = in_flight
        self._unanswered = 0

    def send(self, requests: deque[bytes]) -> None:
        """As many requests as may be on their way; then wait for an answer."""
        room = self._in_flight - self._unanswered
        if room and requests:
            chosen = [requests.popleft() for _ in range(min(room, len(requests)))]
            self._wire.send(b"".join(chosen))
            self._unanswered += len(chosen)
        self._answers()

    def drain(self) -> None:
        """Wait for the answers of all requests."""
        while self._unanswered:
            self._answers()

    def _answers(self) -> None:
        for response in self._wire.frames():
            produced_at(response)
            self._unanswered -= 1


def _frame(api: tuple[int, int], body: bytes) -> bytes:
    header = _HEADER.pack(*api, 0, len(_CLIENT)) + _CLIENT
    return _INT32.pack(len(header) + len(body)) + header + body
