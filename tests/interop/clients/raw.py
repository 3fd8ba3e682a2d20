"""A connection that sends any bytes, and messages of kio; it uses none of the broker's code."""

from __future__ import annotations

import socket
from datetime import timedelta
from io import BytesIO
from struct import pack, unpack_from
from typing import TYPE_CHECKING, Any

import kio.schema.create_topics.v4.request
import kio.schema.fetch.v11.request
import kio.schema.list_offsets.v7.request
import kio.schema.produce.v8.request
import kio.schema.produce.v11.request
from kio.index import load_response_schema
from kio.schema.api_versions.v0 import ApiVersionsRequest
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

if TYPE_CHECKING:
    from typing import Self

# Their entities want phantom types for every number.
create: Any = kio.schema.create_topics.v4.request
fetch: Any = kio.schema.fetch.v11.request
offsets: Any = kio.schema.list_offsets.v7.request
PRODUCE: tuple[Any, ...] = (kio.schema.produce.v8.request, kio.schema.produce.v11.request)
"""Of the two encodings."""

TIMEOUT = 60.0
LATEST = -1


class Raw:
    """One connection to the broker at this port of loopback."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Raises ConnectionError if the broker has closed the connection."""
        self._socket.sendall(data)

    def end(self) -> None:
        """Nothing more will be sent."""
        self._socket.shutdown(socket.SHUT_WR)

    def frame(self) -> bytes | None:
        """The next response without its length, or None if the broker closes the connection.

        Raises TimeoutError; the received part of the response is kept.
        """
        if not self._receive(4):
            return None
        end = 4 + unpack_from(">i", self._received)[0]
        assert self._receive(end), "the connection was closed within a response"
        frame = bytes(self._received[4:end])
        del self._received[:end]
        return frame

    def ask(self, request: Any) -> Any:
        """Send one request and wait for its response."""
        self.send(framed(request))
        frame = self.frame()
        assert frame is not None, "the broker closed the connection"
        return response_in(frame, request)

    def lives(self) -> None:
        """Fails unless the broker answers."""
        assert self.ask(ApiVersionsRequest()).error_code == 0

    def create(self, topic: str) -> None:
        """Create a topic of one partition."""
        topics = (
            create.CreatableTopic(
                name=topic, num_partitions=1, replication_factor=1, assignments=(), configs=()
            ),
        )
        request = create.CreateTopicsRequest(topics=topics, timeout=timedelta(seconds=30))
        (created,) = self.ask(request).topics
        assert created.error_code is ErrorCode.none

    def produce(self, topic: str, records: bytes) -> Any:
        """Offer records to partition 0; its part of the response."""
        return self.ask(produce_request(topic, records)).responses[0].partition_responses[0]

    def consume(self, topic: str, end: int) -> bytes:
        """The batches of partition 0 up to offset `end`, exclusive."""
        data, offset = b"", 0
        while offset < end:
            fetched = self.ask(fetch_request(topic, offset)).responses[0].partitions[0]
            assert fetched.error_code is ErrorCode.none
            assert fetched.records, f"nothing at offset {offset}, but the end is {end}"
            data += fetched.records
            at = 0
            while at < len(fetched.records):
                base, length = unpack_from(">qi", fetched.records, at)
                offset = base + unpack_from(">i", fetched.records, at + 23)[0] + 1
                at += 12 + length
        return data

    def list_offset(self, topic: str, timestamp: int) -> Any:
        """Partition 0's part of the response to ListOffsets."""
        partition = offsets.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        wanted = offsets.ListOffsetsTopic(name=topic, partitions=(partition,))
        request = offsets.ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=(wanted,))
        return self.ask(request).topics[0].partitions[0]

    def frame_soon(self, seconds: float = 0.05) -> bytes | None:
        """The next response, or None if none comes before the connection is closed.

        A damaged request may ask for any wait, or for no response: after `seconds` the broker is told
        that nothing more will be sent, and must close the connection.
        """
        self._socket.settimeout(seconds)
        try:
            return self.frame()
        except TimeoutError:
            self.end()
            self._socket.settimeout(TIMEOUT)
            return self.frame()

    def _receive(self, size: int) -> bool:
        """Wait until so many bytes are there; false if the broker closes the connection before."""
        while len(self._received) < size:
            try:
                piece = self._socket.recv(2**20)
            except ConnectionError:
                piece = b""
            if not piece:
                return False
            self._received += piece
        return True


def produce_request(topic: str, records: bytes, schema: Any = PRODUCE[0]) -> Any:
    """Offer records to partition 0, to be acknowledged."""
    partition = schema.PartitionProduceData(index=0, records=records)
    data = schema.TopicProduceData(name=topic, partition_data=(partition,))
    return schema.ProduceRequest(
        transactional_id=None, acks=-1, timeout=timedelta(seconds=30), topic_data=(data,)
    )


def fetch_request(topic: str, offset: int, max_bytes: int = 2**20) -> Any:
    """Ask for partition 0 from `offset` on, without a wait."""
    partition = fetch.FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=max_bytes
    )
    return fetch.FetchRequest(
        max_wait=timedelta(0),
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=(fetch.FetchTopic(topic=topic, partitions=(partition,)),),
        forgotten_topics_data=(),
        rack_id="",
    )


def framed(request: Any, correlation_id: int = 1, *, body: bytes | None = None) -> bytes:
    """The bytes of a request with its header and length; `body` instead of its own."""
    out = BytesIO()
    header = request.__header_schema__
    entity_writer(header)(
        out,
        header(
            request_api_key=request.__api_key__,
            request_api_version=request.__version__,
            correlation_id=correlation_id,
            client_id="raw",
        ),
    )
    out.write(body_of(request) if body is None else body)
    return pack(">i", out.tell()) + out.getvalue()


def body_of(request: Any) -> bytes:
    """The bytes of a request without its header."""
    out = BytesIO()
    entity_writer(type(request))(out, request)
    return out.getvalue()


def response_in(frame: bytes, request: Any, correlation_id: int = 1) -> Any:
    """The response to `request`; fails unless every byte is understood."""
    schema = load_response_schema(request.__api_key__, request.__version__)
    header, at = entity_reader(schema.__header_schema__)(frame, 0)
    assert header.correlation_id == correlation_id
    response, size = entity_reader(schema)(frame, at)
    assert at + size == len(frame)
    return response
