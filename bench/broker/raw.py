"""Clients on the protocol itself, of `bench.broker.wire`; each is a process that `gang` starts."""

from __future__ import annotations

import time
from collections import deque
from contextlib import ExitStack
from functools import partial
from itertools import cycle, islice
from selectors import EVENT_READ, DefaultSelector
from typing import TYPE_CHECKING, Any

from bench.broker.gang import take_part
from bench.broker.payload import batch
from bench.broker.wire import (
    Pipeline,
    Wire,
    fetch_request,
    fetched,
    produce_request,
    produced_at,
    session_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.broker.payload import Codec

_FETCH_BYTES = 1024 * 1024  # of one partition
_CHUNK = 64  # requests that are lined up at a time
_WAIT_MS = 5


def main(role: str, **arguments: Any) -> Callable[[], dict[str, Any]]:
    """One of `producer`, `consumer`, `round_trips`, `connections`, `waiting`, with its arguments."""
    roles: dict[str, Callable[..., Callable[[], dict[str, Any]]]] = {
        "producer": _producer,
        "consumer": _consumer,
        "round_trips": _round_trips,
        "connections": _connections,
        "waiting": _waiting,
    }
    return roles[role](**arguments)


def _producer(
    address: str,
    topic: str,
    partitions: Sequence[int],
    records: int,
    size: int,
    per_batch: int,
    in_flight: int = 5,
    acks: int = 1,
    codec: Codec = "none",
) -> Callable[[], dict[str, Any]]:
    """Batches for one partition after the other, round and round."""
    content = batch(per_batch, size, codec)
    wire = Wire(address)
    each = cycle([produce_request(topic, partition, content, acks) for partition in partitions])
    batches = -(-records // per_batch)

    def work() -> dict[str, Any]:
        left = batches
        requests: deque[bytes] = deque()
        with wire:
            pipeline = Pipeline(wire, in_flight)
            while left or requests:
                if not requests:
                    chosen = min(left, _CHUNK)
                    requests.extend(islice(each, chosen))
                    left -= chosen
                pipeline.send(requests)
            pipeline.drain()
        return {"records": batches * per_batch}

    return work


def _consumer(
    address: str, topic: str, offsets: dict[str, int], records: int
) -> Callable[[], dict[str, Any]]:
    """So many records of these partitions from these offsets on."""
    wire = Wire(address)
    positions = {int(partition): offset for partition, offset in offsets.items()}

    def work() -> dict[str, Any]:
        seen = size = 0
        with wire:
            while seen < records:
                wire.send(fetch_request(topic, positions, _FETCH_BYTES))
                for response in wire.frames():
                    following, more = fetched(response)
                    seen += sum(after - positions[each] for each, after in following.items())
                    size += more
                    positions.update(following)
        return {"records": seen, "bytes": size}

    return work


def _round_trips(
    address: str, topic: str, size: int, count: int, acks: int = 1
) -> Callable[[], dict[str, Any]]:
    """One record a request, each after the answer to the one before; seconds of each."""
    wire = Wire(address)
    request = produce_request(topic, 0, batch(1, size), acks)

    def work() -> dict[str, Any]:
        taken = []
        with wire:
            for _ in range(count):
                started = time.perf_counter()
                wire.send(request)
                for response in wire.frames():
                    produced_at(response)
                taken.append(time.perf_counter() - started)
        return {"records": count, "seconds": taken}

    return work


def _connections(
    address: str,
    topic: str,
    partitions: int,
    size: int,
    per_batch: int,
    connections: int,
    count: int,
) -> Callable[[], dict[str, Any]]:
    """So many requests, of which each connection has one on its way; seconds of each."""
    content = batch(per_batch, size)
    wires = [Wire(address) for _ in range(connections)]
    requests = [
        produce_request(topic, number % partitions, content, 1) for number in range(connections)
    ]

    def work() -> dict[str, Any]:
        taken: list[float] = []
        began = [0.0] * connections
        left = count
        with ExitStack() as stack:
            selector = stack.enter_context(DefaultSelector())
            for number, wire in enumerate(wires):
                stack.enter_context(wire)
                selector.register(wire, EVENT_READ, number)
                began[number] = time.perf_counter()
                wire.send(requests[number])
            while len(taken) < count:
                for key, _ in selector.select():
                    number = key.data
                    for response in wires[number].frames():
                        produced_at(response)
                    now = time.perf_counter()
                    taken.append(now - began[number])
                    if left > connections:
                        left -= 1
                        began[number] = now
                        wires[number].send(requests[number])
        return {"records": len(taken) * per_batch, "seconds": taken}

    return work


def _waiting(
    address: str, topic: str, partitions: int, count: int, *, session: bool
) -> Callable[[], dict[str, Any]]:
    """So many fetches from partitions that get no records, each with 5 ms to wait."""
    wire = Wire(address)
    offsets = dict.fromkeys(range(partitions), 0)
    whole = partial(fetch_request, topic, offsets, _FETCH_BYTES, wait_ms=_WAIT_MS)
    changes = partial(fetch_request, topic, {}, _FETCH_BYTES, wait_ms=_WAIT_MS)

    def ask(request: bytes) -> int:
        wire.send(request)
        [found] = [session_of(response) for response in wire.frames()]
        return found

    def work() -> dict[str, Any]:
        with wire:
            number = ask(whole(session=(0, 0))) if session else 0
            for epoch in range(1, count + 1):
                ask(changes(session=(number, epoch)) if session else whole())
        return {"records": count}

    return work


if __name__ == "__main__":
    take_part(main)
