"""The internals of aiokafka that we use: when the first of these tests fail, aiokafka has changed.

Look at what changed, mend `kmr.kafka.fetching` (or `kmr.kafka.group_offsets`), then move the pin in
pyproject and `AIOKAFKA_VERSION`.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiokafka.protocol.fetch
import anyio
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection
from aiokafka.consumer.fetcher import Fetcher, FetchError
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import (
    Assignment,
    SubscriptionState,
    TopicPartitionState,
)
from aiokafka.protocol.fetch import FetchRequest

from kmr.errors import ConsumerError, CorruptRecords
from kmr.kafka import kafka_consumer
from kmr.kafka.fetching import (
    AIOKAFKA_VERSION,
    BatchFetcher,
    FetchedPartition,
    require_aiokafka,
    unpack_response,
)
from kmr.kafka.kafka_consumer import KafkaConsumer
from kmr.record import TopicPartition

from .members import Silent, consumer_config, numbers, values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kmr.broker import Broker
    from kmr.formats.batch_decoder import FetchedPart

    from .members import Consume, CreateTopic, Produce


T0 = TopicPartition("t", 0)

# Methods that we call or override, with their parameters.
METHODS: dict[type, dict[str, tuple[str, ...]]] = {
    Fetcher: {
        "_proc_fetch_request": ("self", "assignment", "node_id", "request"),
        "_get_actions_per_node": ("self", "assignment"),
        "_create_fetch_waiter": ("self",),
        "_notify": ("self", "future"),
        "_set_error": ("self", "tp", "error"),
        "seek_to": ("self", "tp", "offset"),
        "end_offsets": ("self", "partitions", "timeout_ms"),
        "close": ("self",),
    },
    AIOKafkaClient: {
        "_metadata_update": ("self", "cluster_metadata", "topics"),
        "_get_conn": ("self", "node_id", "group", "no_hint"),
    },
    AIOKafkaConnection: {"_handle_frame": ("self", "resp"), "close": ("self", "reason", "exc")},
    FetchError: {"check_raise": ("self",), "calculate_backoff": ("self",)},
    GroupCoordinator: {
        "_send_req": ("self", "request"),
        "ensure_coordinator_known": ("self",),
        "coordinator_dead": ("self",),
        "check_errors": ("self",),
    },
}
# Attributes of classes, or of parts of a started consumer, which are named by its attributes.
ATTRIBUTES: dict[type | str, tuple[str, ...]] = {
    SubscriptionState: ("subscription", "reassignment_in_progress"),
    Assignment: ("tps", "active", "state_value"),
    TopicPartitionState: (
        "paused",
        "position",
        "has_valid_position",
        "consumed_to",
        "await_reset",
    ),
    "_client": ("cluster", "set_topics", "send", "force_metadata_update"),
    "_coordinator": ("generation", "member_id", "group_id", "_coordination_task"),
    "_fetcher": (
        "_client",
        "_subscriptions",
        "_fetch_min_bytes",
        "_fetch_max_bytes",
        "_fetch_max_wait_ms",
        "_max_partition_fetch_bytes",
        "_fetcher_timeout",
        "_retry_backoff",
        "_isolation_level",
        "_records",
        "_fetch_waiters",
        "_fetch_task",
        "_wait_consume_future",
        "_closed",
    ),
}


@pytest.fixture
def consumer(broker: Broker) -> KafkaConsumer:
    return KafkaConsumer(consumer_config(bootstrap_servers=broker.bootstrap_servers))


def test_the_pin_is_the_version_that_the_code_names_and_that_is_installed() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert f"aiokafka=={AIOKAFKA_VERSION}*" in project["dependencies"]
    assert importlib.metadata.version("aiokafka").startswith(AIOKAFKA_VERSION)


def test_another_version_is_refused_with_the_command_that_installs_this_one() -> None:
    require_aiokafka("0.14.9")
    with pytest.raises(
        ConsumerError,
        match=r"^aiokafka 0\.15\.0 is installed, but kmr needs 0\.14\.\*: "
        r"run pip install 'aiokafka==0\.14\.\*'$",
    ):
        require_aiokafka("0.15.0")


async def test_with_another_version_nothing_is_started(
    consumer: KafkaConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kmr.kafka.fetching.AIOKAFKA_VERSION", "0.13.")
    with pytest.raises(ConsumerError, match=r"but kmr needs 0\.13"):
        await consumer.start(Silent())
    assert consumer._consumer is None


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [(owner, name, parameters) for owner, of in METHODS.items() for name, parameters in of.items()],
)
def test_a_method_that_is_called_or_overridden_is_unchanged(
    owner: type, name: str, parameters: tuple[str, ...]
) -> None:
    assert tuple(inspect.signature(getattr(owner, name)).parameters) == parameters


async def test_every_attribute_that_is_used_is_there(broker: Broker) -> None:
    async with AIOKafkaConsumer(bootstrap_servers=broker.bootstrap_servers, group_id="g") as theirs:
        for owner, names in ATTRIBUTES.items():
            part = getattr(theirs, owner) if isinstance(owner, str) else owner
            assert [name for name in names if not hasattr(part, name)] == [], owner


async def test_a_response_becomes_a_batch_of_raw_bytes(
    consumer: KafkaConsumer, produce: Produce
) -> None:
    await produce("t", [b"%d" % n for n in range(1000)])
    await consumer.start(Silent())
    assert isinstance(consumer._fetcher, BatchFetcher)
    (batch,) = await consumer.poll()
    assert (batch.first, batch.last, len(batch)) == (0, 999, 1000)
    theirs: Any = consumer._consumer
    assert await theirs.position(TopicPartition("t", 0)) == 1000
    assert theirs._fetcher is consumer._fetcher
    await consumer.stop()
    assert consumer._fetcher.error_future.done()


@pytest.mark.parametrize("version", range(12))
def test_a_response_of_every_version_is_unpacked(version: int) -> None:
    kind = getattr(aiokafka.protocol.fetch, f"FetchResponse_v{version}")
    (topics,) = (
        field
        for name, field in zip(kind.SCHEMA.names, kind.SCHEMA.fields, strict=True)
        if name == "topics"
    )
    known = {
        "partition": 3,
        "error_code": 0,
        "highwater_offset": 9,
        "last_stable_offset": 7,
        "log_start_offset": 2,
        "aborted_transactions": [(5, 6)],
        "preferred_read_replica": -1,
        "message_set": b"batches",
    }
    names = topics.array_of.fields[1].array_of.names
    response = kind(
        **{name: 0 for name in kind.SCHEMA.names if name != "topics"},
        topics=[("t", [tuple(known[name] for name in names)])],
    )
    assert list(unpack_response(response)) == [
        FetchedPartition(
            "t",
            3,
            0,
            9,
            b"batches",
            last_stable=7 if version >= 4 else None,
            log_start=2 if version >= 5 else None,
            aborted=[(5, 6)] if version >= 4 else [],
            preferred_replica=-1 if version >= 11 else None,
        )
    ]


async def test_records_are_fetched_from_the_replica_that_the_leader_names_for_our_rack(
    consume: Consume, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    def from_leader(response: Any) -> Any:
        return [each._replace(preferred_replica=0) for each in unpack_response(response)]

    monkeypatch.setattr("kmr.kafka.fetching.unpack_response", from_leader)
    await produce("t", [b"1"])
    for rack, cached in ((None, None), ("zone-a", 0)):
        async with consume(client_rack=rack) as member:
            await member.read(1)
            found = member.consumer._fetcher._preferred_read_replica.get(T0, (None,))
            assert found[0] == cached


def test_a_request_has_the_topics_that_were_requested() -> None:
    request = FetchRequest(1, 2, 3, 0, [("t", [(0, 17, 4)])])
    assert list(request.topics) == [("t", [(0, 17, 4)])]


async def test_fetches_wait_for_the_poll_but_not_for_paused_partitions(
    consume: Consume, produce: Produce, create_topic: CreateTopic
) -> None:
    """One response then brings all partitions, and none waits long behind an empty one."""
    await create_topic("t", 2)
    async with consume() as member:
        await member.until_assigned(bool)
        requests: list[tuple[set[int], int]] = []
        sent = anyio.Event()
        client: Any = member.consumer._consumer._client
        fetcher = member.consumer._fetcher
        assert fetcher is not None
        send = client.send

        async def recorded(node: int, request: Any, **options: Any) -> Any:
            if isinstance(request, FetchRequest):
                asked = {each.partition for each in fetcher._sessions[node].positions}
                requests.append((asked, request._max_wait_ms))
                sent.set()
            return await send(node, request, **options)

        client.send = recorded
        await produce("t", numbers(3), 0)
        held = member.consumer._consumer._fetcher._records
        with anyio.fail_after(60):
            while T0 not in held:  # noqa: ASYNC110  then no request should go out
                await anyio.sleep(0.01)
        del requests[:]
        await anyio.sleep(0.2)
        assert requests == []
        sent = anyio.Event()
        member.consumer.pause([T0])
        await sent.wait()
        assert T0 in held
        assert requests[0] == ({1}, 50)
        member.consumer.resume([T0])
        assert values(await member.read(3)) == numbers(3)
        await produce("t", numbers(3), 0)
        await member.read(3)
        assert requests[-1] == ({0, 1}, 500)


async def test_records_gather_for_as_long_as_wanted_or_until_the_next_assignment(
    consume: Consume, produce: Produce, create_topic: CreateTopic
) -> None:
    await create_topic("t", 1)
    async with consume() as member:
        await member.until_assigned(bool)
        await produce("t", numbers(1), 0)
        await member.consumer.poll()
        member.consumer.let_gather(0.2)
        member.consumer.let_gather(0.1)
        began = anyio.current_time()
        await produce("t", numbers(1), 0)
        await produce("t", numbers(1), 0)
        (batch,) = await member.consumer.poll()
        assert anyio.current_time() - began >= 0.15
        assert len(batch) == 2
        member.consumer.let_gather(3600)
        await produce("t", numbers(1), 0)
        await member.consumer.join_anew()
        with anyio.fail_after(60):
            await member.consumer.poll()


async def test_batches_of_a_paused_partition_are_not_fetched_again(
    consume: Consume, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    await produce("t", numbers(3))
    async with consume() as member:
        fetched: list[int] = []
        arrived = anyio.Event()
        decoder = member.consumer._fetcher._decoder
        decode = decoder.batches

        def counted(parts: Sequence[FetchedPart]) -> Any:
            for part in parts:
                if part.data:
                    fetched.append(part.first)
                    arrived.set()
            return decode(parts)

        monkeypatch.setattr(decoder, "batches", counted)
        await arrived.wait()
        await anyio.lowlevel.checkpoint()
        member.consumer.pause([T0])
        member.consumer.resume([T0])
        member.consumer.pause([T0])
        with anyio.move_on_after(0.3):
            assert not await member.consumer.poll()
        member.consumer.resume([T0])
        assert values(await member.read(3)) == numbers(3)
        assert fetched == [0]


async def test_a_partition_that_is_not_fetched_has_an_older_answer_than_the_others(
    create_topic: CreateTopic, consume: Consume, produce: Produce
) -> None:
    await create_topic("t", 2)
    async with consume() as member:
        await member.until_assigned(bool)
        member.consumer.pause([T0])
        for _ in range(3):  # the fetch that is under way is for both
            await produce("t", numbers(1), 1)
            await member.read(1)
        consumer, other = member.consumer, TopicPartition("t", 1)
        assert (consumer.answered_at(T0) or 0.0) < (consumer.answered_at(other) or 0.0)
        fetcher = consumer._fetcher
        assert fetcher is not None
        fetcher._unreachable.add(fetcher._client.cluster.leader_for_partition(T0))
        assert consumer.answered_at(T0) is None, "its broker does not answer"


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
async def test_the_end_of_a_partition_that_intake_leaves_waiting_is_asked_for(
    create_topic: CreateTopic,
    consume: Consume,
    produce: Produce,
    isolation_level: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await create_topic("t", 1)
    await produce("t", numbers(3))
    async with consume(isolation_level=isolation_level) as member:
        await member.until_assigned(bool)
        consumer = member.consumer
        with anyio.fail_after(60):
            # Fetched, and not polled.
            while consumer.end_offset(T0) != 3:  # noqa: ASYNC110  there is no event to wait for
                await anyio.sleep(0.01)
        await produce("t", numbers(2))
        fetcher, answered = consumer._fetcher, consumer.answered_at(T0)
        assert fetcher is not None
        assert answered is not None
        await fetcher.look_up_ends(answered - 1)
        assert consumer.end_offset(T0) == 3, "a fetch has told later"
        monkeypatch.setattr(kafka_consumer, "_ENDS_AFTER", 0.0)
        await consumer.look_up_ends()
        assert consumer.end_offset(T0) == 5
        assert values(await member.read(5)) == [*numbers(3), *numbers(2)]


async def test_a_poll_takes_no_more_batches_than_there_is_room_for_and_loses_none(
    consume: Consume, produce: Produce, create_topic: CreateTopic
) -> None:
    await create_topic("t", 3)
    for partition in range(3):
        await produce("t", numbers(3), partition)
    async with consume() as member:
        polls = [await member.consumer.poll(1) for _ in range(3)]
    assert [len(batches) for batches in polls] == [1, 1, 1]
    assert sorted(batch.partition for batches in polls for batch in batches) == [0, 1, 2]


async def test_batches_of_paused_partitions_beyond_a_whole_response_are_not_kept(
    consume: Consume, produce: Produce, create_topic: CreateTopic
) -> None:
    """They are fetched again after the pause."""
    await create_topic("t", 2)
    async with consume() as member:
        await member.until_assigned(bool)
        fetcher = member.consumer._fetcher
        assert fetcher is not None
        fetcher._fetch_max_bytes = 1
        member.consumer.pause([T0, TopicPartition("t", 1)])  # the fetch under way is for both
        await produce("t", numbers(3), 0)
        await produce("t", numbers(3), 1)
        with anyio.move_on_after(0.8):
            assert not await member.consumer.poll()
        assert len(fetcher._records) <= 1
        member.consumer.resume([T0, TopicPartition("t", 1)])
        assert values(await member.read(6)) == numbers(3) * 2


def segment_with(directory: Path, content: bytes) -> Path:
    (found,) = (path for path in directory.rglob("*.log") if content in path.read_bytes())
    return found


async def test_damaged_records_are_an_error_that_says_where(
    consume: Consume, produce: Produce, tmp_path: Path
) -> None:
    await produce("t", numbers(5))
    await produce("t", [b"precious" * 20])
    segment = segment_with(tmp_path, b"precious")
    raw = segment.read_bytes()
    batch_at = raw.rindex((5).to_bytes(8, "big"), 0, raw.index(b"precious"))
    segment.write_bytes(raw.replace(b"preciousprecious", b"preciousPrecious", 1))
    async with consume() as member:
        assert values(await member.read(5)) == numbers(5)  # those before it are not lost
        for _ in range(2):
            with pytest.raises(CorruptRecords, match=r"t-0: .* offset 5 is damaged: its checksum"):
                await member.consumer.poll()
        segment.write_bytes(raw[: batch_at + 57] + b"\xff" * 4 + raw[batch_at + 61 :])
        member.consumer.seek(T0, 0)
        assert values(await member.read(5)) == numbers(5)
        for _ in range(2):
            with pytest.raises(CorruptRecords, match=r"offset 5 .* its record count is impossible"):
                await member.consumer.poll()
        segment.write_bytes(raw)
        assert values(await member.read(1)) == [b"precious" * 20]
