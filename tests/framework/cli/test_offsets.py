"""kmr offsets, against the broker of this process."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from anyio import to_thread

from kmr.delivery.announcement import Announcement, Closed, Generation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kmr.broker import Broker

    from ..conftest import CreateTopic

GROUP = "flights-group"
TOPIC = "flights"


@pytest.fixture
def offsets(kmr: Callable[..., Any], broker: Broker) -> Callable[..., Awaitable[Any]]:
    """Runs `kmr offsets` for the group, in a thread, because the broker is on this event loop."""

    async def run(command: str, *flags: str) -> Any:
        where = ("--group", GROUP, "--bootstrap-servers", broker.bootstrap_servers)
        return await to_thread.run_sync(partial(kmr, "offsets", command, *where, *flags))

    return run


async def produce(broker: Broker, count: int = 10) -> None:
    """Records at 1000, 2000, ... milliseconds in partition 0."""
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    await producer.start()
    try:
        for number in range(1, count + 1):
            await producer.send_and_wait(TOPIC, b"x", partition=0, timestamp_ms=number * 1000)
    finally:
        await producer.stop()


async def commit(broker: Broker, offset: int, metadata: str = "") -> None:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers, group_id=GROUP, enable_auto_commit=False
    )
    await consumer.start()
    try:
        consumer.assign([TopicPartition(TOPIC, 0)])
        await consumer.commit({TopicPartition(TOPIC, 0): (offset, metadata)})
    finally:
        await consumer.stop()


async def committed(offsets: Callable[..., Awaitable[Any]]) -> int | None:
    shown = json.loads((await offsets("show", "--json")).out)
    (partition,) = shown["partitions"]
    offset: int | None = partition["committed"]
    return offset


async def test_show_has_the_lag_of_every_partition(
    broker: Broker, offsets: Callable[..., Awaitable[Any]]
) -> None:
    await produce(broker)
    await commit(broker, 4)
    output = await offsets("show")
    assert output.code == 0
    lines = [line.split() for line in output.out.splitlines()]
    assert lines[0][:3] == ["group", f"{GROUP}:", "Empty,"]
    assert lines[2] == ["flights-0", "4", "0", "10", "6", "-"]
    assert output.out.endswith("total lag: 6\n")


async def test_a_pattern_chooses_topics(
    broker: Broker, offsets: Callable[..., Awaitable[Any]]
) -> None:
    await produce(broker)
    reset = await offsets("reset", "--topic-pattern", "f.*s", "--to-offset", "3")
    assert reset.code == 0
    assert (await offsets("show", "--topic-pattern", "fl.*")).out.endswith("total lag: 7\n")
    missing = await offsets("show", "--topic-pattern", "light.")
    assert missing.err == "kmr: no topic matches light.\n"


async def test_an_announced_range_is_shown_and_a_reset_says_what_it_forgets(
    broker: Broker, offsets: Callable[..., Awaitable[Any]]
) -> None:
    await produce(broker)
    announcement = Announcement(first=4, last=7, token="token", writer="one", rows=8)
    await commit(broker, 4, announcement.metadata)
    shown = await offsets("show")
    assert "4..7, 8 rows by one" in shown.out
    (partition,) = json.loads((await offsets("show", "--json")).out)["partitions"]
    assert partition["announced"] == json.loads(announcement.metadata)
    assert partition["generation"] == 0
    output = await offsets("reset", "--to-offset", "6")
    assert "4..7, 8 rows by one" in output.out
    assert "may have been written already" in output.out
    assert "announced ranges" not in (await offsets("reset", "--to-offset", "7")).out


async def test_what_open_windows_hold_is_no_lag(
    broker: Broker, offsets: Callable[..., Awaitable[Any]]
) -> None:
    await produce(broker)
    await commit(broker, 4, Generation(0, closed=Closed(read_to=7)).metadata)
    shown = (await offsets("show")).out
    assert "open windows hold 4" in shown
    assert shown.endswith("total lag: 2\n")
    (partition,) = json.loads((await offsets("show", "--json")).out)["partitions"]
    assert (partition["held"], partition["lag"]) == (4, 2)


async def test_each_reset_begins_a_new_generation_of_offsets(
    broker: Broker, offsets: Callable[..., Awaitable[Any]]
) -> None:
    await produce(broker)
    generations = []
    for _ in range(3):
        assert (await offsets("reset", "--to-earliest", "--topic", TOPIC)).code == 0
        (partition,) = json.loads((await offsets("show", "--json")).out)["partitions"]
        generations.append(partition["generation"])
    assert 0 < generations[0] < generations[1] < generations[2]


async def test_a_reset_is_the_remedy_for_metadata_that_cannot_be_read(
    broker: Broker, offsets: Callable[..., Awaitable[Any]]
) -> None:
    await produce(broker)
    await commit(broker, 4, '{"kmr":99}')
    assert "newer kmr" in (await offsets("show")).err
    assert (await offsets("reset", "--to-offset", "4")).code == 0
    assert await committed(offsets) == 4


async def test_show_names_a_topic_that_the_group_has_not_committed(
    broker: Broker, offsets: Callable[..., Awaitable[Any]]
) -> None:
    await produce(broker, 2)
    output = await offsets("show", "--topic", TOPIC)
    assert ["flights-0", "-", "0", "2", "-", "-"] in [x.split() for x in output.out.splitlines()]
    assert "no committed offsets" in output.out


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--to-earliest",), 0),
        (("--to-latest",), 10),
        (("--to-offset", "7"), 7),
        (("--shift-by", "3"), 7),
        (("--shift-by", "-3"), 1),
        (("--shift-by", "-100"), 0),
        (("--shift-by", "100"), 10),
        (("--to-timestamp", "2500"), 2),
        (("--to-timestamp", "1970-01-01T00:00:05"), 4),
        (("--to-timestamp", "1970-01-01T01:00:05+01:00"), 4),
        (("--to-timestamp", "2999-01-01"), 10),
    ],
)
async def test_reset_sets_the_offsets_of_the_group(
    broker: Broker, offsets: Callable[..., Awaitable[Any]], flags: tuple[str, ...], expected: int
) -> None:
    await produce(broker)
    await commit(broker, 4)
    dry = await offsets("reset", *flags, "--dry-run")
    assert dry.code == 0
    assert dry.out.endswith("dry run: nothing was changed\n")
    assert await committed(offsets) == 4
    output = await offsets("reset", *flags)
    assert output.code == 0, output.err
    assert await committed(offsets) == expected


async def test_reset_is_refused_while_the_group_has_members(
    broker: Broker, offsets: Callable[..., Awaitable[Any]]
) -> None:
    await produce(broker)
    member = AIOKafkaConsumer(
        TOPIC,
        bootstrap_servers=broker.bootstrap_servers,
        group_id=GROUP,
        client_id="worker-1",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await member.start()
    try:
        await member.getone()
        await member.commit()
        shown = await offsets("show")
        name = f"worker-1-{member._coordinator.member_id.removeprefix('worker-1-')[:8]}"
        assert ["flights-0", "1", "0", "10", "9", name] in [
            line.split() for line in shown.out.splitlines()
        ]
        output = await offsets("reset", "--to-latest")
        assert output.code == 1
        assert f"group {GROUP} has 1 member (worker-1 at " in output.err
        dry = await offsets("reset", "--to-latest", "--dry-run")
        assert "a reset would be refused while the group has members (1)" in dry.out
    finally:
        await member.stop()
    assert await committed(offsets) == 1


async def test_an_offset_beyond_the_log_is_refused_and_changes_nothing(
    broker: Broker, offsets: Callable[..., Awaitable[Any]]
) -> None:
    await produce(broker)
    await commit(broker, 4)
    output = await offsets("reset", "--to-offset", "11")
    assert output.code == 1
    assert "flights-0: offset 11 is not in the log, which has 0 to 10" in output.err
    assert await committed(offsets) == 4


async def test_a_reset_of_one_partition_leaves_the_others_as_they_are(
    broker: Broker, offsets: Callable[..., Awaitable[Any]], create_topic: CreateTopic
) -> None:
    await create_topic(TOPIC, 3)
    await produce(broker)
    assert (await offsets("reset", "--topic", TOPIC, "--to-latest")).code == 0
    one = ("--topic", TOPIC, "--partition", "0", "--to-offset", "4")
    assert (await offsets("reset", *one)).out.endswith("reset 1 offset\n")
    shown = json.loads((await offsets("show", "--json")).out)["partitions"]
    assert [each["committed"] for each in shown] == [4, 0, 0]
    absent = await offsets("reset", "--topic", TOPIC, "--partition", "99", "--to-earliest")
    assert absent.err == f"kmr: topic {TOPIC} has no partition 99\n"


async def test_a_group_without_offsets_needs_a_topic(
    broker: Broker, offsets: Callable[..., Awaitable[Any]]
) -> None:
    await produce(broker)
    output = await offsets("reset", "--to-latest")
    assert output.code == 1
    assert "has no committed offsets; name the topics with --topic" in output.err
    assert (await offsets("reset", "--to-latest", "--topic", TOPIC)).code == 0
    assert await committed(offsets) == 10
    missing = await offsets("reset", "--shift-by", "1", "--topic", "other")
    assert missing.code == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "give exactly one of --to-earliest"),
        (("--to-earliest", "--to-offset", "0"), "give exactly one of"),
        (("--to-timestamp", "yesterday"), "--to-timestamp must be a time such as"),
        (("--to-timestamp", "9" * 20), "--to-timestamp must be a time such as"),
        (("--to-earliest", "--partition", "0"), "name that topic with --topic"),
    ],
)
def test_reset_needs_exactly_one_valid_target(
    kmr: Callable[..., Any], flags: tuple[str, ...], message: str
) -> None:
    output = kmr("offsets", "reset", "--group", GROUP, *flags)
    assert output.code == 2
    assert message in output.err


def test_an_address_without_a_broker_is_one_message(kmr: Callable[..., Any]) -> None:
    output = kmr("offsets", "show", "--group", GROUP, "--bootstrap-servers", "127.0.0.1:1")
    assert output.code == 1
    assert output.err.count("\n") == 1
    assert "no Kafka broker answers at bootstrap_servers (127.0.0.1:1" in output.err
