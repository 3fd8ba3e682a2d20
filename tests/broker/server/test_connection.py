"""A connection under good, malformed, slow and too much input."""

import asyncio
import resource
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from itertools import count
from struct import pack, unpack_from
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.api_versions.v0 import ApiVersionsRequest

from kmr.broker import Broker
from kmr.broker.server import connection
from tests.broker.loop_guard import LoopGuard
from tests.examples import examples

Start = Callable[..., Awaitable[Broker]]
Connect = Callable[[Broker], Awaitable[Any]]
Until = Callable[[Callable[[], bool]], Awaitable[None]]
Batch = Callable[..., bytes]

PRODUCE, FETCH, LIST_OFFSETS, METADATA, JOIN_GROUP, DESCRIBE_GROUPS = 0, 1, 2, 3, 11, 15
THIRTY_SECONDS = timedelta(seconds=30)
MIB = 1024 * 1024
ASK_VERSIONS = ApiVersionsRequest()
HEADER = pack(">hhih", 0, 8, 1, -1)


def produce_request(client: Any, records: bytes, *, acks: int = -1, topic: str = "t") -> Any:
    partition = {"index": 0, "records": records}
    topics = [{"name": topic, "partition_data": [partition]}]
    return client.message(PRODUCE, 8, acks=acks, timeout=THIRTY_SECONDS, topic_data=topics)


def fetch_request(
    client: Any, max_bytes: int, offset: int = 0, wait: float = 0, topic: str = "t"
) -> Any:
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": max_bytes}
    return client.message(
        FETCH,
        11,
        max_wait=timedelta(seconds=wait),
        min_bytes=1,
        max_bytes=max_bytes,
        topics=[{"topic": topic, "partitions": [partition]}],
    )


def produced_offset(frame: bytes) -> tuple[int, int]:
    """Error and base offset of a one-partition produce response of version 8 to topic `t`."""
    error, offset = unpack_from(">hq", frame, 4 + 4 + 3 + 4 + 4)
    return error, offset


def used(broker: Broker, pool: str) -> float:
    """Bytes that the broker holds for requests."""
    value = broker.metrics.registry.get_sample_value("kmr_broker_buffer_bytes", {"pool": pool})
    assert value is not None
    return value


def used_for_requests(broker: Broker) -> float:
    return used(broker, "request") + used(broker, "large request")


@pytest.fixture
async def client(broker: Broker, connect: Connect) -> Any:
    await broker.topics.create("t")
    return await connect(broker)


async def test_pipelined_requests_are_answered_in_their_order(client: Any, batch: Batch) -> None:
    data = batch(b"value")
    frames = [client.frame(produce_request(client, data), number) for number in range(100)]
    frames.insert(50, client.frame(fetch_request(client, 1000), 1000))
    frames.insert(70, client.frame(ASK_VERSIONS, 2000))
    await client.send_bytes(b"".join(frames))
    answers = [await client.receive_frame() for _ in frames]
    numbers = [unpack_from(">i", answer)[0] for answer in answers]
    assert numbers == [*range(50), 1000, *range(50, 69), 2000, *range(69, 100)]
    assert [produced_offset(answers[n])[1] for n in (0, 49, 101)] == [0, 49, 99]


async def test_any_number_of_requests_may_be_under_way(client: Any) -> None:
    await client.send_bytes(b"".join(client.frame(ASK_VERSIONS, n) for n in range(5000)))
    for number in range(5000):
        assert unpack_from(">i", await client.receive_frame())[0] == number


async def test_a_request_may_arrive_in_any_pieces(client: Any, batch: Batch) -> None:
    frame = client.frame(produce_request(client, batch(b"v" * 100)), 1)
    for at in range(len(frame)):
        await client.send_bytes(frame[at : at + 1])
        await asyncio.sleep(0)
    assert produced_offset(await client.receive_frame()) == (0, 0)
    two = frame + frame
    for start, end in ((0, 3), (3, 7), (7, len(frame) + 2), (len(frame) + 2, len(two))):
        await client.send_bytes(two[start:end])
        await asyncio.sleep(0.001)
    assert produced_offset(await client.receive_frame()) == (0, 1)
    assert produced_offset(await client.receive_frame()) == (0, 2)


async def test_large_requests_and_responses_pass(client: Any, batch: Batch) -> None:
    data = batch(*(b"x" * 1000 for _ in range(1000)))
    for number in range(5):
        answer = await client.ask(produce_request(client, data))
        assert answer.responses[0].partition_responses[0].base_offset == number * 1000
    answer = await client.ask(fetch_request(client, 16 * MIB))
    assert len(answer.responses[0].partitions[0].records) == 4 * len(data)  # fetch_max_bytes


async def test_many_connections_are_served_at_once(
    broker: Broker, connect: Connect, batch: Batch
) -> None:
    await broker.topics.create("t")
    clients = [await connect(broker) for _ in range(100)]
    answers = await asyncio.gather(
        *(each.ask(produce_request(each, batch(b"v"))) for each in clients)
    )
    offsets = {each.responses[0].partition_responses[0].base_offset for each in answers}
    assert offsets == set(range(100))


async def test_produce_without_acknowledgement_has_no_response(client: Any, batch: Batch) -> None:
    await client.send(produce_request(client, batch(b"a"), acks=0))
    await client.send(produce_request(client, batch(b"b"), acks=0))
    answer = await client.ask(produce_request(client, batch(b"c")))
    assert answer.responses[0].partition_responses[0].base_offset == 2


async def test_failed_produce_without_acknowledgement_closes_the_connection(
    client: Any, batch: Batch
) -> None:
    await client.send(produce_request(client, batch(b"a"), acks=0, topic="unknown"))
    assert await client.is_closed_by_broker()


@pytest.mark.parametrize("size", [-1, 0, 9, 2**31 - 1, 100 * MIB + 1])
async def test_an_absurd_length_closes_the_connection(
    client: Any, size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    await client.send_bytes(pack(">i", size) + HEADER)
    assert await client.is_closed_by_broker()
    assert f"a request has {size} bytes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("key", "version"), [(999, 0), (-1, 0), (0, 14), (1, 3), (3, 14), (3, -1), (4, 0)]
)
async def test_an_unsupported_api_or_version_closes_the_connection(
    client: Any, key: int, version: int, capsys: pytest.CaptureFixture[str]
) -> None:
    await client.send_bytes(pack(">i", 14) + pack(">hhih", key, version, 1, -1) + bytes(4))
    assert await client.is_closed_by_broker()
    assert f"API {key} version {version} is not served" in capsys.readouterr().out


async def test_answers_to_earlier_requests_come_before_the_connection_is_closed(
    client: Any,
) -> None:
    await client.send_bytes(client.frame(ASK_VERSIONS, 1))
    await client.receive(ASK_VERSIONS, 1)
    await client.send_bytes(pack(">i", 14) + bytes(14))
    assert await client.is_closed_by_broker()


async def test_a_control_request_may_not_be_as_large_as_a_produce_request(
    start: Start, connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    client = await connect(await start(control_request_max_bytes=1000))
    await client.send_bytes(pack(">i", 1001) + pack(">hhih", 3, 1, 1, -1) + bytes(991))
    assert await client.is_closed_by_broker()
    assert "API 3 has 1001 bytes, more than 1000" in capsys.readouterr().out


@pytest.mark.parametrize("body", [b"", b"\xfe" * 50])
@pytest.mark.parametrize("key", [0, 1, 3, 11, 19])
async def test_a_malformed_request_closes_the_connection(
    client: Any, key: int, body: bytes, broker: Broker, connect: Connect
) -> None:
    version = {0: 8, 1: 11, 3: 8, 11: 5, 19: 4}[key]
    payload = pack(">hhih", key, version, 1, -1) + body
    await client.send_bytes(pack(">i", len(payload)) + payload)
    assert await client.is_closed_by_broker()
    other = await connect(broker)
    assert (await other.ask(ASK_VERSIONS)).error_code == 0


@settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.one_of(
        st.binary(max_size=400),
        st.builds(
            lambda key, version, body: pack(">ihhih", len(body) + 10, key, version, 1, -1) + body,
            st.sampled_from([0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 19, 20, 22, 23, 32]),
            st.integers(0, 12),
            st.binary(max_size=300),
        ),
    )
)
async def test_the_broker_survives_any_bytes(broker: Broker, connect: Connect, data: bytes) -> None:
    client = await connect(broker)
    await client.send_bytes(data)
    client.writer.write_eof()
    with suppress(ConnectionError):
        await client.reader.read()  # until the broker closes
    await client.close()
    other = await connect(broker)
    assert (await other.ask(ASK_VERSIONS)).error_code == 0
    await other.close()


@settings(
    max_examples=examples(90),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), min_size=1, max_size=4))
async def test_a_damaged_produce_request_never_damages_the_log(
    broker: Broker, connect: Connect, batch: Batch, damage: list[tuple[int, int]]
) -> None:
    if broker.topics.get("t") is None:
        await broker.topics.create("t")
    client = await connect(broker)
    frame = bytearray(client.frame(produce_request(client, batch(b"one", b"two")), 1))
    for where, what in damage:
        frame[4 + where % (len(frame) - 4)] ^= what
    await client.send_bytes(bytes(frame))
    client.writer.write_eof()
    with suppress(ConnectionError):
        await client.reader.read()
    await client.close()

    other = await connect(broker)
    sound = await other.ask(produce_request(other, batch(b"sound")))
    offset = sound.responses[0].partition_responses[0].base_offset
    answer = await other.ask(fetch_request(other, MIB, offset))
    assert answer.responses[0].partitions[0].records.endswith(b"sound\x00")
    await other.close()


async def test_the_broker_stops_reading_from_a_client_that_does_not_read(
    client: Any, broker: Broker, batch: Batch
) -> None:
    await client.ask(produce_request(client, batch(b"x" * 1_000_000)))
    requests = client.frame(fetch_request(client, 2 * MIB), 7) * 1000
    host, _, port = broker.bootstrap_servers.partition(":")
    with socket.create_connection((host, int(port))) as unread:
        unread.settimeout(0)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        sent, refused = 0, 0
        while refused < 1000:  # turns of the event loop in which nothing more is taken
            try:
                sent += unread.send(requests[sent % len(requests) :])
                refused = 0
            except BlockingIOError:
                refused += 1
            await asyncio.sleep(0)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown * 1024 < 16 * MIB
        assert sent < 32 * MIB  # what sockets hold
        received = 0
        while received < 100 * MIB:  # the broker continues
            try:
                received += len(unread.recv(MIB))
            except BlockingIOError:
                await asyncio.sleep(0)


async def test_an_announced_request_takes_memory_as_it_arrives(
    start: Start, connect: Connect, until: Until, batch: Batch
) -> None:
    broker = await start()
    await broker.topics.create("t")
    hoarders = [await connect(broker) for _ in range(20)]
    for each in hoarders:
        await each.send_bytes(pack(">i", 100 * MIB))
    await until(lambda: used_for_requests(broker) >= 20 * 4096)
    client = await connect(broker)
    large = produce_request(client, batch(b"x" * 1_000_000))  # more than is read at once
    assert (await client.ask(large)).responses[0].partition_responses[0].error_code == 0
    assert used_for_requests(broker) == 20 * 4096
    await hoarders[0].send_bytes(bytes(10 * MIB))
    await until(lambda: used_for_requests(broker) > 10 * MIB)
    assert used_for_requests(broker) <= 8 * 10 * MIB


async def test_large_requests_do_not_keep_usual_ones_waiting(
    start: Start, connect: Connect, until: Until, batch: Batch
) -> None:
    broker = await start(request_memory_bytes=32 * MIB, request_max_bytes=16 * MIB)
    await broker.topics.create("t")
    hoarders = [await connect(broker) for _ in range(4)]
    for each in hoarders:
        await each.send_bytes(pack(">i", 15 * MIB) + HEADER + bytes(5 * MIB))
    await until(lambda: used(broker, "large request") >= 16 * MIB)
    client = await connect(broker)
    request = produce_request(client, batch(b"x" * 1_000_000))
    assert (await client.ask(request)).responses[0].partition_responses[0].error_code == 0


async def test_requests_that_wait_for_each_others_memory_are_all_served(
    start: Start, connect: Connect, batch: Batch
) -> None:
    broker = await start(
        request_memory_bytes=16 * MIB, request_max_bytes=16 * MIB, message_max_bytes=16 * MIB
    )
    await broker.topics.create("t")
    clients = [await connect(broker) for _ in range(6)]
    requests = [produce_request(each, batch(b"x" * 12 * MIB)) for each in clients]
    answers = await asyncio.gather(
        *(client.ask(request) for client, request in zip(clients, requests, strict=True))
    )
    assert [each.responses[0].partition_responses[0].error_code for each in answers] == [0] * 6
    assert used_for_requests(broker) == 0


async def test_a_request_that_trickles_closes_the_connection(
    start: Start, connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    client = await connect(await start(request_timeout=0.05))
    await client.send_bytes(pack(">i", 1000) + HEADER)
    closed = asyncio.create_task(client.is_closed_by_broker())
    async with asyncio.timeout(60):
        while not closed.done():
            with suppress(ConnectionError):
                await client.send_bytes(b"x")
            await asyncio.wait([closed], timeout=0.01)
    assert "the rest of a request did not arrive" in capsys.readouterr().out


async def test_a_request_that_waits_for_memory_too_long_closes_the_connection(
    start: Start, connect: Connect, until: Until, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = await start(
        request_memory_bytes=16 * MIB, request_max_bytes=16 * MIB, request_timeout=0.05
    )
    hoarder = await connect(broker)
    await hoarder.send_bytes(pack(">i", 15 * MIB) + bytes(9 * MIB))
    await until(lambda: used(broker, "large request") == 16 * MIB)
    client = await connect(broker)
    await client.send_bytes(pack(">i", 2 * MIB + 1) + bytes(2 * MIB))
    assert await client.is_closed_by_broker()
    assert "raise request_memory_bytes" in capsys.readouterr().out
    assert used(broker, "request") == 0


async def test_requests_behind_a_long_poll_take_little_memory(
    client: Any, broker: Broker, until: Until
) -> None:
    first = client.frame(fetch_request(client, MIB, wait=20), 1)
    await client.send_bytes(first + client.frame(ASK_VERSIONS, 2))
    await until(lambda: used(broker, "unread request") == 4096)
    await client.send_bytes(client.frame(ASK_VERSIONS, 3) * 10_000)
    for _ in range(100):
        await asyncio.sleep(0)
    assert used(broker, "unread request") == 4096, "it is not read any more"


@pytest.mark.loop_guard(milliseconds=50)
async def test_a_flood_of_small_requests_lets_others_have_the_loop(
    client: Any, broker: Broker, connect: Connect, loop_guard: LoopGuard
) -> None:
    other = await connect(broker)
    for each in (client, other):
        await each.ask(ASK_VERSIONS)
    loop_guard.violations.clear()
    await client.send_bytes(client.frame(ASK_VERSIONS, 7) * 10_000)
    await other.ask(ASK_VERSIONS)
    for _ in range(10_000):
        assert (await client.receive_frame())[:4] == pack(">i", 7)


async def test_requests_behind_long_polls_do_not_keep_honest_ones_waiting(
    start: Start, connect: Connect, until: Until, batch: Batch
) -> None:
    broker = await start(request_memory_bytes=8 * MIB, request_max_bytes=8 * MIB)
    for topic in ("t", "other"):
        await broker.topics.create(topic)
    hostile = [await connect(broker) for _ in range(40)]
    poll = hostile[0].frame(fetch_request(hostile[0], MIB, wait=600), 1)
    behind = hostile[0].frame(ASK_VERSIONS, 2) * 5_000
    for each in hostile:
        await each.send_bytes(poll + behind)
    await until(lambda: used(broker, "unread request") >= MIB)
    client = await connect(broker)
    honest = produce_request(client, batch(b"x" * 800_000), topic="other")
    async with asyncio.timeout(60):
        response = await client.ask(honest)
    assert response.responses[0].partition_responses[0].error_code == 0
    assert used(broker, "request") == 0
    # Each connection keeps what it received at once; beyond the limit that is little.
    assert used(broker, "unread request") <= MIB + 512 * 1024 + 40 * 4096


@pytest.mark.parametrize("whole", [8 * MIB, 2 * MIB - 100], ids=["large", "usual"])
async def test_requests_that_stand_still_do_not_keep_honest_ones_waiting(
    start: Start,
    connect: Connect,
    until: Until,
    batch: Batch,
    monkeypatch: pytest.MonkeyPatch,
    whole: int,
) -> None:
    monkeypatch.setattr("kmr.broker.server.partial_request.STILL_SECONDS", 0.1)
    broker = await start(request_memory_bytes=16 * MIB, request_max_bytes=8 * MIB)
    await broker.topics.create("t")
    pool = "large request" if whole > 2 * MIB else "request"
    for _ in range(12):
        await (await connect(broker)).send_bytes(pack(">i", whole) + HEADER + bytes(500_000))
    await until(lambda: used(broker, pool) >= 4 * MIB)
    client = await connect(broker)
    async with asyncio.timeout(60):
        response = await client.ask(produce_request(client, batch(b"x" * 800_000), topic="t"))
    assert response.responses[0].partition_responses[0].error_code == 0


async def test_an_incomplete_request_closes_the_connection(
    start: Start, connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    client = await connect(await start(request_timeout=0.05))
    await client.send_bytes(pack(">i", 1000) + HEADER)
    assert await client.is_closed_by_broker()
    assert "the rest of a request did not arrive" in capsys.readouterr().out


async def test_an_unread_response_closes_the_connection(
    start: Start, connect: Connect, batch: Batch, until: Until, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = await start(response_timeout=0.05, fetch_max_bytes=32 * MIB)
    await broker.topics.create("t")
    client = await connect(broker)
    data = batch(*(b"x" * 1000 for _ in range(1000)))
    for _ in range(20):
        await client.ask(produce_request(client, data))
    client.reader._transport.pause_reading()
    await client.send(fetch_request(client, 32 * MIB))
    shown = ""

    def closed() -> bool:
        nonlocal shown
        shown += capsys.readouterr().out
        return "did not read its response" in shown

    await until(closed)


async def test_an_unread_response_closes_the_connection_soon_if_others_need_its_memory(
    start: Start, connect: Connect, batch: Batch
) -> None:
    broker = await start(
        response_timeout=600.0,
        request_timeout=0.05,
        fetch_max_bytes=32 * MIB,
        response_memory_bytes=32 * MIB,
    )
    await broker.topics.create("t")
    client, other = await connect(broker), await connect(broker)
    data = batch(*(b"x" * 1000 for _ in range(1000)))
    for _ in range(20):
        await client.ask(produce_request(client, data))
    client.reader._transport.pause_reading()
    await client.send(fetch_request(client, 32 * MIB))
    await other.ask(ASK_VERSIONS)
    async with asyncio.timeout(60):
        answer = await other.ask(fetch_request(other, 32 * MIB))
    assert len(answer.responses[0].partitions[0].records) >= len(data)


async def test_clients_that_read_no_response_keep_nobody_from_small_ones(
    start: Start, connect: Connect, batch: Batch, until: Until
) -> None:
    broker = await start(fetch_max_bytes=8 * MIB, response_memory_bytes=32 * MIB)
    await broker.topics.create("t")
    await broker.topics.create("small")
    honest = await connect(broker)
    data = batch(*(b"x" * 1000 for _ in range(1000)))
    for _ in range(8):
        await honest.ask(produce_request(honest, data))
    await honest.ask(produce_request(honest, batch(b"x"), topic="small"))
    hostile = [await connect(broker) for _ in range(20)]
    for client in hostile:
        client.reader._transport.pause_reading()
        for _ in range(3):
            await client.send(fetch_request(client, 8 * MIB))
    assert broker._server is not None
    memory = broker._server.dispatcher._services.response_buffers
    await until(lambda: memory.is_awaited)
    assert memory.large.used <= 24 * MIB
    async with asyncio.timeout(20):  # less than `request_timeout`
        answer = await honest.ask(fetch_request(honest, 8 * MIB, topic="small"))
    assert len(answer.responses[0].partitions[0].records) == len(batch(b"x"))
    assert memory.is_awaited
    async with asyncio.timeout(60):
        answer = await honest.ask(fetch_request(honest, 8 * MIB))
    assert len(answer.responses[0].partitions[0].records) >= len(data)


async def test_a_large_response_to_a_disconnected_client_is_discarded_silently(
    start: Start, connect: Connect, batch: Batch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await start(fetch_max_bytes=32 * MIB)
    await broker.topics.create("t")
    client, other = await connect(broker), await connect(broker)
    data = batch(*(b"x" * 1000 for _ in range(1000)))
    for _ in range(20):
        await other.ask(produce_request(other, data))
    await client.ask(ASK_VERSIONS)
    at_once = pack("ii", 1, 0)  # the connection is reset, without reading the rest
    client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
    client.writer.write(client.frame(fetch_request(client, 32 * MIB), 1))
    client.writer.transport.abort()
    await other.ask(ASK_VERSIONS)
    await other.ask(fetch_request(other, 32 * MIB))
    assert not caplog.records


async def test_an_idle_connection_is_closed(start: Start, connect: Connect) -> None:
    client = await connect(await start(connection_idle_seconds=0.5))
    await client.ask(ASK_VERSIONS)
    assert await client.is_closed_by_broker()


async def test_a_long_poll_is_not_idle(start: Start, connect: Connect, until: Until) -> None:
    broker = await start(connection_idle_seconds=0.5, request_timeout=0.05)
    topic = await broker.topics.create("t")
    client = await connect(broker)
    answer = await client.ask(fetch_request(client, 1000, wait=1.5))
    assert answer.responses[0].partitions[0].error_code == 0
    assert not topic.partitions[0].watches


async def test_a_client_that_leaves_ends_its_long_poll(
    client: Any, broker: Broker, until: Until
) -> None:
    partition = broker.topics.partition("t", 0)
    assert partition is not None
    await client.send(fetch_request(client, 1000, wait=600))
    await until(lambda: bool(partition.watches))
    await client.close()
    await until(lambda: not partition.watches)


async def test_requests_behind_a_long_poll_wait_for_it(
    client: Any, broker: Broker, connect: Connect, batch: Batch
) -> None:
    poll = fetch_request(client, 1000, wait=600)
    latest = {"partition_index": 0, "timestamp": -1}
    offsets = client.message(LIST_OFFSETS, 7, topics=[{"name": "t", "partitions": [latest]}])
    await client.send_bytes(client.frame(poll, 1) + client.frame(offsets, 2))
    other = await connect(broker)
    await other.ask(produce_request(other, batch(b"a")))
    assert (await client.receive(poll, 1)).responses[0].partitions[0].records.endswith(b"a\x00")
    assert (await client.receive(offsets, 2)).topics[0].partitions[0].offset == 1


async def test_with_sync_a_request_behind_a_produce_request_does_not_wait_for_the_disk(
    start: Start, connect: Connect, batch: Batch
) -> None:
    broker = await start(fsync="always")
    await broker.topics.create("t")
    client = await connect(broker)
    requests = 200
    frames = [client.frame(produce_request(client, batch(b"v")), n) for n in range(requests)]
    await client.send_bytes(b"".join(frames))
    answers = [produced_offset(await client.receive_frame()) for _ in range(requests)]
    assert answers == [(0, offset) for offset in range(requests)]


async def test_an_unknown_failure_is_logged_and_closes_only_its_connection(
    client: Any,
    broker: Broker,
    connect: Connect,
    batch: Batch,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(type(broker.topics), "partition", fail)
        await client.send(produce_request(client, batch(b"a")))
        assert await client.is_closed_by_broker()
    assert "a bug" in capsys.readouterr().out
    other = await connect(broker)
    assert (await other.ask(ASK_VERSIONS)).error_code == 0


async def test_an_unknown_failure_during_a_long_poll_closes_the_connection_too(
    client: Any,
    broker: Broker,
    until: Until,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    partition = broker.topics.partitions[0]
    await client.send(fetch_request(client, 1000, wait=600))
    await until(lambda: bool(partition.watches))
    monkeypatch.setattr(type(broker.topics), "get", fail)
    partition.wake()
    assert await client.is_closed_by_broker()
    assert "a bug" in capsys.readouterr().out


async def test_many_busy_connections_share_the_time_of_one_turn(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch, until: Until
) -> None:
    """However many clients send many requests at once, that of another client is soon handled."""
    now = count()
    monkeypatch.setattr(connection, "monotonic", lambda: next(now) / 1000)  # 1 ms for each request
    honest, clients = await connect(broker), [await connect(broker) for _ in range(60)]
    await honest.ask(honest.message(METADATA, 12, topics=[]))
    await honest.ask(ASK_VERSIONS)
    assert broker._server is not None
    answered = broker._server.dispatcher._services.requests.of(18).buckets
    for client in clients:
        client.writer.write(client.frame(ASK_VERSIONS, 1) * 60)
    await until(lambda: sum(answered) > 1)
    before = sum(answered)
    await honest.ask(honest.message(METADATA, 12, topics=[]))
    assert sum(answered) - before < 1_000  # of 3,600; with 6 of each connection in a turn 2,166
