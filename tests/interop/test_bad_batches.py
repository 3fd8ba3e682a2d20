"""Record batches that are not what they say: refused with a reason, or stored as they came."""

from __future__ import annotations

from struct import calcsize, pack_into, unpack_from
from typing import TYPE_CHECKING, Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from tests.examples import examples

from .clients.raw import LATEST, PRODUCE, Raw, body_of, framed, produce_request, response_in
from .clients.requests import damaged

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import BrokerProcess, Serve

FIELDS = {
    "base offset": (0, ">q"),
    "length": (8, ">i"),
    "leader epoch": (12, ">i"),
    "magic": (16, ">b"),
    "attributes": (21, ">h"),
    "last offset delta": (23, ">i"),
    "base timestamp": (27, ">q"),
    "max timestamp": (35, ">q"),
    "producer id": (43, ">q"),
    "producer epoch": (51, ">h"),
    "base sequence": (53, ">i"),
    "record count": (57, ">i"),
}
"""Where each field of a batch begins, and its type."""
HEADER_BYTES, CRC_AT, CRC_FROM = 61, 17, 21
REFUSALS = {
    ErrorCode.corrupt_message,
    ErrorCode.invalid_producer_epoch,
    ErrorCode.invalid_producer_id_mapping,
    ErrorCode.invalid_record,
    ErrorCode.invalid_timestamp,
    ErrorCode.invalid_txn_state,
    ErrorCode.message_too_large,
    ErrorCode.out_of_order_sequence_number,
    ErrorCode.transactional_id_authorization_failed,
    ErrorCode.unsupported_for_message_format,
}
TIMES = (-3, -2, -1, 0, 1_700_000_000_000, 2**63 - 1)


def sound(*values: bytes, codec: int = 0, producer: tuple[int, int, int] = (-1, -1, -1)) -> bytes:
    """A batch as a client sends it."""
    builder = DefaultRecordBatchBuilder(2, codec, False, *producer, 2**20)  # noqa: FBT003
    for number, value in enumerate(values):
        builder.append(number, 1_700_000_000_000 + number, b"key", value, [])
    return bytes(builder.build())


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """A batch in which a few things are wrong, mostly with the CRC that belongs to it."""
    values = draw(st.lists(st.binary(max_size=50), min_size=1, max_size=5))
    producer = draw(st.just((-1, -1, -1)) | st.tuples(st.just(7), st.just(0), st.integers(0, 9)))
    batch = bytearray(sound(*values, codec=draw(st.integers(0, 4)), producer=producer))
    for name in draw(st.lists(st.sampled_from(sorted(FIELDS)), max_size=2, unique=True)):
        at, kind = FIELDS[name]
        bits = 8 * calcsize(kind)
        (now,) = unpack_from(kind, batch, at)
        near = st.sampled_from([now, now + 1, now - 1, -1, 0, 1, 2 ** (bits - 1) - 1])
        wrong = draw(near | st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))
        pack_into(kind, batch, at, min(wrong, 2 ** (bits - 1) - 1))
    if draw(st.booleans()):
        batch[draw(st.integers(HEADER_BYTES, len(batch) - 1))] ^= draw(st.integers(1, 255))
    if draw(st.integers(0, 9)):
        pack_into(">I", batch, CRC_AT, crc32c(batch[CRC_FROM:]))
    if not draw(st.integers(0, 9)):
        del batch[draw(st.integers(1, len(batch))) :]
    return bytes(batch) * draw(st.sampled_from([1, 1, 1, 2]))


def split(data: bytes) -> list[bytes]:
    """The batches one after the other."""
    found, at = [], 0
    while at < len(data):
        end = at + 12 + unpack_from(">i", data, at + 8)[0]
        found.append(data[at:end])
        at = end
    return found


def stamped(batch: bytes, offset: int) -> bytes:
    """A batch as it is stored: at this offset, in the first leader epoch."""
    stored = bytearray(batch)
    pack_into(">q", stored, 0, offset)
    pack_into(">i", stored, 12, 0)
    return bytes(stored)


class Topic:
    """A topic of one partition, and what must be in it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stored: list[bytes] = []
        self.next_offset = 0

    def produce(self, client: Raw, records: bytes) -> None:
        """Produce the records; acknowledged ones must stay readable."""
        result = client.produce(self.name, records)
        if result.error_code in REFUSALS:
            assert result.error_message
            return
        assert result.error_code is ErrorCode.none
        if result.base_offset < self.next_offset:
            assert unpack_from(">q", records, 43)[0] >= 0, (
                "only a producer with an id can send a duplicate"
            )
            return
        for batch in split(records):
            self.stored.append(stamped(batch, self.next_offset))
            self.next_offset += unpack_from(">i", batch, 23)[0] + 1

    def check(self, client: Raw) -> None:
        """All that was acknowledged is there, and nothing else; searches by time find an answer."""
        assert split(client.consume(self.name, self.next_offset)) == self.stored
        for timestamp in TIMES:
            assert client.list_offset(self.name, timestamp).error_code is ErrorCode.none
        assert client.list_offset(self.name, LATEST).offset == self.next_offset


def test_whatever_is_acknowledged_is_there_and_nothing_else_also_after_a_kill(
    serve: Serve, tmp_path: Path
) -> None:
    limits: dict[str, Any] = {"message_max_bytes": 2_000, "index_interval_bytes": 200}
    broker = serve(tmp_path / "data", segment_bytes=2_000, **limits)
    topics: list[Topic] = []

    @settings(max_examples=examples(120))
    @given(st.lists(batches(), max_size=15))
    def produce(records: list[bytes]) -> None:
        topic = Topic(f"t{len(topics)}")
        topics.append(topic)
        with Raw(broker.port) as client:
            client.create(topic.name)
            for each in records:
                topic.produce(client, each)
            topic.produce(client, sound(b"sound"))
            assert topic.stored, "a sound batch is always welcome"
            topic.check(client)

    produce()
    broker.kill()
    again = serve(tmp_path / "data", segment_bytes=2_000, **limits)
    with Raw(again.port) as client:
        for topic in topics:
            topic.check(client)
            topic.produce(client, sound(b"sound"))
            topic.check(client)
    assert again.errors == []


def test_a_damaged_request_stores_the_sent_records_or_nothing_also_after_a_kill(
    serve: Serve, tmp_path: Path
) -> None:
    broker = serve(tmp_path / "data")
    sent: list[bytes] = []
    acknowledged: list[bytes] = []
    with Raw(broker.port) as client:
        client.create("t")

    @settings(max_examples=examples(225))
    @given(st.sampled_from(PRODUCE), st.data())
    def produce(schema: Any, data: st.DataObject) -> None:
        sent.append(stamped(sound(b"%06d" % len(sent)), 0))  # equally long, all different
        request = produce_request("t", sent[-1], schema)
        body = data.draw(damaged(body_of(request)))
        with Raw(broker.port) as client:
            client.send(framed(request, body=body))
            frame = client.frame_soon()
        topics = response_in(frame, request).responses if frame else ()
        results = [
            partition.error_code for topic in topics for partition in topic.partition_responses
        ]
        if ErrorCode.none in results:
            acknowledged.append(sent[-1])

    def check(broker: BrokerProcess) -> None:
        with Raw(broker.port) as client:
            end = client.list_offset("t", LATEST).offset
            stored = [stamped(batch, 0) for batch in split(client.consume("t", end))]
        assert len(set(stored)) == len(stored), "each at most once"
        assert set(acknowledged) <= set(stored) <= set(sent)
        assert broker.errors == []

    produce()
    assert acknowledged, "some damage is harmless"
    check(broker)
    broker.kill()
    check(serve(tmp_path / "data"))
