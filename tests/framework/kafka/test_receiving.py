"""Responses arrive whole, however the bytes of a connection are cut."""

from __future__ import annotations

import ssl
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.fetch import FetchRequest
from hypothesis import given
from hypothesis import strategies as st

from kmr.broker import Broker, BrokerSettings
from kmr.broker.client import BatchProducer
from kmr.kafka.receiving import ResponseReceiver, receive_in_place

if TYPE_CHECKING:
    from pathlib import Path

SMALL, LARGE = 10, 70_000


class Future:
    """Gets the result of a request."""

    def __init__(self, results: list[bytes]) -> None:
        self.set_result = results.append

    def done(self) -> bool:
        return False


class Bytes:
    """A request whose response is a number, and any bytes."""

    class RESPONSE_TYPE:  # noqa: N801  as aiokafka's requests
        decode = staticmethod(lambda source: source.read(10**6))

    class Header:
        def __init__(self, correlation_id: int) -> None:
            self.correlation_id = correlation_id

    def parse_response_header(self, source: Any) -> Header:
        return self.Header(int.from_bytes(source.read(4), "big"))


class Connection:
    """What `ResponseReceiver` knows of aiokafka's connection: responses in the order of the requests."""

    def __init__(self, requests: int) -> None:
        self.received: list[bytes] = []
        self.closed: list[Exception] = []
        self._protocol = None
        self._requests: deque[Any] = deque(
            (number, Bytes(), Future(self.received)) for number in range(requests)
        )

    def _handle_frame(self, frame: bytes) -> None:
        self._requests.popleft()
        self.received.append(frame[4:])

    def close(self, *, reason: object, exc: Exception) -> None:
        self.closed.append(exc)


@pytest.mark.hypothesis
@given(st.lists(st.sampled_from([0, SMALL, LARGE]), max_size=5), st.integers(1, 200_000))
def test_responses_arrive_in_order_however_they_are_cut(sizes: list[int], piece: int) -> None:
    bodies = [bytes([65 + at]) * size for at, size in enumerate(sizes)]
    frames = [
        (4 + len(body)).to_bytes(4, "big") + at.to_bytes(4, "big") + body
        for at, body in enumerate(bodies)
    ]
    connection: Any = Connection(len(bodies))
    receiver = ResponseReceiver(connection)
    left = b"".join(frames)
    while left:
        into: Any = receiver.get_buffer(-1)
        taken = min(len(into), len(left), piece)
        into[:taken] = left[:taken]
        receiver.buffer_updated(taken)
        left = left[taken:]
    assert connection.received == bodies
    assert not connection._requests
    assert not connection.closed


@pytest.mark.parametrize("frame", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x08unasked!"])
def test_a_response_that_makes_no_sense_closes_the_connection(frame: bytes) -> None:
    connection: Any = Connection(0)
    receiver = ResponseReceiver(connection)
    into: Any = receiver.get_buffer(-1)
    into[: len(frame)] = frame
    receiver.buffer_updated(len(frame))
    assert len(connection.closed) == 1


async def test_a_large_response_of_a_broker_is_that_of_aiokafka_also_by_tls(
    tmp_path: Path, certificates: Any
) -> None:
    settings = BrokerSettings(
        data_dir=tmp_path,
        listeners=("PLAIN=plaintext://127.0.0.1:0", "TLS=ssl://localhost:0"),
        tls_certificate=certificates.certificate,
        tls_key=certificates.key,
    )
    tls = {
        "security_protocol": "SSL",
        "ssl_context": ssl.create_default_context(cafile=certificates.authority),
    }
    request = FetchRequest(500, 1, 2**24, 0, [("t", [(0, 0, 2**24)])])
    found = []
    async with Broker(settings) as broker:
        async with BatchProducer(broker.listeners["PLAIN"], "t") as producer:
            await producer.send([b"%d" % number * 1000 for number in range(250)], partition=0)
        for is_ours, listener in ((False, "PLAIN"), (True, "PLAIN"), (True, "TLS")):
            options: dict[str, Any] = tls if listener == "TLS" else {}
            client = AIOKafkaClient(bootstrap_servers=broker.listeners[listener], **options)
            if is_ours:
                receive_in_place(client)
            await client.bootstrap()
            try:
                (node,) = client.cluster.brokers()
                found += [await client.send(node.nodeId, request) for _ in range(2)]
            finally:
                await client.close()
    ((_, ((*_, records),)),) = found[0].topics
    assert len(records) > 400_000
    assert all(each.topics == found[0].topics for each in found)
