"""What `kmr doctor` finds: each fault is made, and then found, with a remedy; a healthy cluster has none."""

from __future__ import annotations

import resource
import socket
import time
from contextlib import AsyncExitStack
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete

from kmr.broker.authorization.rules import Operation, Rule, write_rules
from kmr.doctor import examination
from kmr.doctor.examination import examine
from kmr.kafka.kafka_consumer import KafkaConsumer
from kmr.memory.distinct import Distinct
from kmr.memory.window import Window
from kmr.observe.status import StageStatus, WorkerStatus
from kmr.reducers.finding import Finding
from kmr.settings import HttpSettings, Settings
from kmr.sinks import DeadLetterWriter, KafkaWriter, ParquetWriter, RangeRows, RangeWriter
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryWriter
from kmr.values.json.json_format import Json

from ..kafka.members import Silent, consumer_config

if TYPE_CHECKING:
    from pathlib import Path

    from kmr.broker import Broker
    from kmr.reducers.reducer import Context
    from kmr.testing import StartBroker

    from ..conftest import CreateTopic, Produce

MIB = 1 << 20
SESSION_REFUSED = (
    "30 s; the brokers allow 6 to 20 s (group.min.session.timeout.ms, group.max.session.timeout.ms) and "
    "refuse the worker"
)


class Hit(msgspec.Struct):
    path: str


def strategy(*, errors: Any = None, sink: Any = None) -> Strategy:
    return Strategy(reduce=[sink or MemoryWriter(Journal())], reduce_err=errors, value=Json(Hit))


def settings(broker: Broker | str, **changed: Any) -> Settings:
    servers = broker if isinstance(broker, str) else broker.bootstrap_servers
    base: dict[str, Any] = {"topics": ("t",), "group": "g", "inflight_bytes": 4 * MIB}
    return Settings(bootstrap_servers=servers, **base | changed)


def without_ok(found: list[Finding]) -> list[tuple[str, str]]:
    return [(each.level, each.subject) for each in found if each.level != "ok"]


class Ranges(RangeWriter):
    """Writes two ranges a second."""

    def __init__(self, **limits: Any) -> None:
        super().__init__(inserts_per_second=2, **limits)

    def has(self, rows: RangeRows) -> bool:
        return False

    def write(self, rows: RangeRows) -> None: ...


async def test_more_partitions_than_turns_in_max_age_are_told(
    broker: Broker, create_topic: CreateTopic
) -> None:
    await create_topic("t", 40)
    told = await examine(strategy(sink=Ranges()), settings(broker))
    (late,) = [each for each in told if each.subject == "reduce-1" and each.level == "warning"]
    assert "rows of 40 partitions are written up to 20 s after they came" in late.text
    for sink in (Ranges(max_age=30.0), Ranges(delivery="at-least-once")):
        told = await examine(strategy(sink=sink), settings(broker))
        assert not [each for each in told if each.subject == "reduce-1" and each.level != "ok"]


async def test_a_healthy_cluster_has_neither_problems_nor_warnings(
    broker: Broker, create_topic: CreateTopic, produce: Produce
) -> None:
    await create_topic("t", 2)
    await produce("t", [b"x"] * 5, timestamp=round(time.time() * 1000))
    found = await examine(strategy(), settings(broker))
    assert without_ok(found) == []
    texts = [each.text for each in found]
    assert "we may read its 2 partitions" in texts
    assert (
        "committed offsets of 0 partitions, with a lag of 0; 2 begin at auto_offset_reset "
        "(earliest)"
    ) in texts


async def test_without_a_broker_the_other_parts_are_still_checked(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        servers = f"127.0.0.1:{nobody.getsockname()[1]}"
        found = await examine(strategy(sink=ParquetWriter(tmp_path)), settings(servers))
    (problem,) = [each for each in found if each.level == "problem"]
    assert problem.subject == "brokers"
    assert "Connection refused" in problem.text
    assert Finding("ok", "reduce-1", "ParquetWriter opens") in found


async def test_missing_topics_are_found_and_none_is_made(start_broker: StartBroker) -> None:
    broker = await start_broker(auto_create_topics=False)
    wanted = strategy(errors=DeadLetterWriter("dead"))
    for _ in range(2):
        found = await examine(wanted, settings(broker))
        assert without_ok(found) == [("problem", "topic t"), ("problem", "reduce-err")]
        assert {each.remedy for each in found if each.level == "problem"} == {
            "create it, or correct its name"
        }


async def test_a_topic_that_the_broker_would_make_is_a_warning(
    start_broker: StartBroker, create_topic: CreateTopic, broker: Broker
) -> None:
    await create_topic("t")
    found = await examine(strategy(errors=DeadLetterWriter("dead")), settings(broker))
    assert without_ok(found) == [("warning", "reduce-err")]


async def test_each_permission_that_is_missing_is_named(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    everybody = partial(Rule, principal="User:ANONYMOUS")
    rules = [
        everybody(operations=(Operation.CREATE,), cluster=True),
        everybody(operations=(Operation.DESCRIBE,), topics=("t", "out")),
    ]
    write_rules(tmp_path / "acls.json", rules)
    broker = await start_broker(acl_file=tmp_path / "acls.json")
    await create(broker, "t", "out")
    wanted = strategy(sink=KafkaWriter("out"))
    problems = [each for each in await examine(wanted, settings(broker)) if each.level == "problem"]
    assert [(each.subject, each.text, each.remedy) for each in problems] == [
        (
            "topic t",
            "we may not read topic t: the worker fails at its start",
            "allow the user of this connection READ and DESCRIBE on the topic",
        ),
        (
            "group g",
            "we may not join it: the worker fails at its start",
            "allow the user of this connection READ on the group",
        ),
        (
            "reduce-1",
            "we may not write to topic out: the worker fails at its start",
            "allow the user of this connection WRITE and DESCRIBE on the topic",
        ),
    ]


async def test_a_group_that_we_may_not_join_is_one_problem(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    everybody = partial(Rule, principal="User:ANONYMOUS")
    rules = [
        everybody(operations=(Operation.CREATE,), cluster=True),
        everybody(operations=(Operation.READ,), topics=("t",)),
    ]
    write_rules(tmp_path / "acls.json", rules)
    broker = await start_broker(acl_file=tmp_path / "acls.json")
    await create(broker, "t")
    found = await examine(strategy(), settings(broker))
    assert [each.subject for each in found if each.level == "problem"] == ["group g"]


async def test_a_transactional_id_that_we_may_not_use_is_named(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    everybody = partial(Rule, principal="User:ANONYMOUS")
    rules = [
        everybody(operations=(Operation.ALL,), topics=("*",), groups=("*",), cluster=True),
        everybody(operations=(Operation.ALL,), transactional_ids=("mine-*",)),
    ]
    write_rules(tmp_path / "acls.json", rules)
    broker = await start_broker(acl_file=tmp_path / "acls.json")
    await create(broker, "t", "out")
    wanted = strategy(sink=KafkaWriter("out", delivery="exactly-once"))
    refused = settings(broker, group_instance_id="a")
    (problem,) = [each for each in await examine(wanted, refused) if each.level == "problem"]
    assert problem.text.startswith("we may not use the transactional id kmr-g-a:")
    allowed = settings(broker, transactional_id_prefix="mine", group_instance_id="a")
    assert without_ok(await examine(wanted, allowed)) == []


async def test_limits_of_the_brokers_that_refuse_the_worker_are_found(
    start_broker: StartBroker,
) -> None:
    broker = await start_broker(group_max_session_timeout=20.0, transaction_max_timeout=5.0)
    await create(broker, "t", "out")
    wanted = strategy(sink=KafkaWriter("out", delivery="exactly-once", transaction_timeout=40.0))
    found = [each for each in await examine(wanted, settings(broker)) if each.level != "ok"]
    assert [(each.level, each.subject, each.text.split(":")[0]) for each in found] == [
        (
            "problem",
            "session_timeout",
            SESSION_REFUSED,
        ),
        (
            "problem",
            "reduce-1",
            "transaction_timeout is 40 s, and the brokers allow 5 s (transaction.max.timeout.ms)",
        ),
        ("warning", "reduce-1", "transaction_timeout is 40 s, and session_timeout 30 s"),
    ]


async def test_committed_offsets_that_are_not_in_the_log_any_more_are_found(
    broker: Broker, create_topic: CreateTopic, produce: Produce
) -> None:
    await create_topic("t", 3)
    for partition in range(3):
        await produce("t", [b"x"] * 10, partition, timestamp=round(time.time() * 1000))
    await commit(broker, {0: 2, 1: 99, 2: 4})
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    await admin.start()
    await admin.delete_records({TopicPartition("t", 0): RecordsToDelete(before_offset=7)})
    await admin.close()
    found = await examine(strategy(), settings(broker))
    deleted, anew = [each.text for each in found if each.level == "problem"]
    assert deleted == (
        "t-0: the committed offset is 2, the log begins at 7: retention has deleted 5 records that the group "
        "has not read. The worker stops there"
    )
    assert anew.startswith(
        "t-1: the committed offset 99 is after the end of the log (10): the topic"
    )
    assert "committed offsets of 1 partition, with a lag of 6" in [each.text for each in found]
    continued = await examine(strategy(), settings(broker, on_out_of_range="earliest"))
    assert without_ok(continued) == [("warning", "topic t"), ("problem", "topic t")]


async def test_records_that_retention_will_soon_delete_and_records_of_the_future_are_found(
    broker: Broker, produce: Produce
) -> None:
    hour = 3_600_000
    await create(broker, "t", configs={"retention.ms": str(hour)})
    now = round(time.time() * 1000)
    await produce("t", [b"old"], timestamp=now - hour * 9 // 10)
    await produce("t", [b"new"], timestamp=now)
    await commit(broker, {0: 0})
    assert without_ok(await examine(strategy(), settings(broker))) == [("warning", "topic t")]
    await commit(broker, {0: 1})
    assert without_ok(await examine(strategy(), settings(broker))) == []
    await produce("t", [b"of the future"], timestamp=now + hour)
    assert without_ok(await examine(strategy(), settings(broker))) == [("warning", "clock")]


@pytest.mark.parametrize(("hours", "warned"), [(24, True), (48, False)])
async def test_a_retention_that_is_shorter_than_what_a_start_reads_again_is_found(
    broker: Broker, hours: int, warned: bool
) -> None:
    await create(broker, "t", configs={"retention.ms": str(hours * 3_600_000)})
    counts = {"n": ("*", "count")}
    window = Window("1h", time="timestamp", late="drop", lateness="1m", columns=counts)
    remembering = Strategy(
        value=Json(Hit), reduce=[Distinct("path", "10m"), window, MemoryWriter(Journal())]
    )
    found = [each for each in await examine(remembering, settings(broker)) if each.level != "ok"]
    text = "retention.ms (1d) is shorter than {} and a day without a worker: {}"
    gone = "records of open windows may be gone, without which no worker starts"
    texts = [
        text.format("within= of Distinct (10m)", "duplicates may pass after it"),
        text.format("what windows hold (61m)", gone),
    ]
    assert [each.text for each in found] == texts * warned


async def test_a_member_with_the_name_of_ours_and_idle_members_are_found(
    broker: Broker, create_topic: CreateTopic
) -> None:
    await create_topic("t")
    config = consumer_config(bootstrap_servers=broker.bootstrap_servers, group_instance_id="a")
    consumer, listener = KafkaConsumer(config), Listener()
    await consumer.start(listener)
    with anyio.fail_after(60):
        await listener.was_assigned.wait()
    same = await examine(strategy(), settings(broker, group_instance_id="a"))
    another = await examine(strategy(), settings(broker, group_instance_id="b"))
    await consumer.stop(leave=True)
    (alive,) = [each.text for each in same if each.level == "warning"]
    assert alive.startswith("a member named a is alive at 127.0.0.1: two of one name")
    (idle,) = [each.text for each in another if each.level == "warning"]
    assert idle == "with ours, 2 members share 1 partition: some have nothing to do"


async def test_members_of_another_protocol_are_found(
    broker: Broker, create_topic: CreateTopic
) -> None:
    await create_topic("t")
    other = AIOKafkaConsumer("t", bootstrap_servers=broker.bootstrap_servers, group_id="g")
    await other.start()
    found = await examine(strategy(), settings(broker))
    await other.stop()
    (problem,) = [each for each in found if each.level == "problem"]
    assert problem.text.startswith("its members use the protocol consumer roundrobin, ours is")


async def test_a_dead_letter_topic_that_is_too_narrow_is_found(broker: Broker) -> None:
    await create(broker, "t")
    await create(broker, "dead", configs={"max.message.bytes": str(MIB)})
    found = await examine(strategy(errors=DeadLetterWriter("dead")), settings(broker))
    (warning,) = [each for each in found if each.level == "warning"]
    assert warning.remedy == "set max.message.bytes of dead to 1058588 or more"


async def test_a_sink_that_raises_anything_is_a_problem_of_its_stage(
    broker: Broker, create_topic: CreateTopic
) -> None:
    class Broken(MemoryWriter):
        async def open(self, context: Context) -> None:
            raise RuntimeError("no such device")

    await create_topic("t")
    found = await examine(strategy(sink=Broken(Journal())), settings(broker))
    assert [each for each in found if each.level == "problem"] == [
        Finding("problem", "reduce-1", "Broken: RuntimeError: no such device")
    ]


def test_a_machine_that_is_too_small_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "memory_limit", lambda: 256 * MIB)
    monkeypatch.setattr(examination, "processor_limit", lambda: 2)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    large = settings(
        "localhost:1", inflight_bytes=64 * MIB, workers=4, heartbeat_interval=15.0,
        worker_live_timeout=5.0,
    )  # fmt: skip
    assert without_ok(examination.check_machine(large)) == [
        ("warning", "memory"),
        ("warning", "processors"),
        ("warning", "file descriptors"),
        ("warning", "session_timeout"),
        ("warning", "worker_live_timeout"),
    ]


def test_a_port_that_is_taken_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        http = HttpSettings(port=taken.getsockname()[1])
        found = examination.check_machine(settings("localhost:1", http=http))
    assert [each.subject for each in found if each.level == "problem"] == ["http"]


def test_a_worker_at_our_port_is_found_with_what_it_waits_for() -> None:
    waits = StageStatus("reduce-1", "retrying", 0, seconds=75.0, reason="hits: the disk is full")
    status = WorkerStatus(
        *("running", True, True, "reduce-1: hits: the disk is full", "g", ("t",), (waits,), ()),
        *(0, 0, 0, 0, 90.0),
        repeated=9,
    )

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(msgspec.json.encode(status))

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.handle_request, daemon=True).start()
        http = HttpSettings(port=server.server_port)
        found = examination.check_machine(settings("localhost:1", http=http))
    (of_port,) = (each for each in found if each.subject == "http")
    assert of_port.level == "warning"
    assert "a worker of group g answers" in of_port.text
    assert "hits: the disk is full (for 75 s, 9 attempts)" in of_port.text


class Listener(Silent):
    def __init__(self) -> None:
        self.was_assigned = anyio.Event()

    async def assigned(self, partitions: Any) -> None:
        self.was_assigned.set()


async def create(broker: Broker, *names: str, configs: dict[str, str] | None = None) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    await admin.start()
    topics = [NewTopic(name, 1, 1, topic_configs=configs) for name in names]
    response = await admin.create_topics(topics)
    await admin.close()
    assert {code for _, code, *_ in response.topic_errors} == {0}


async def commit(broker: Broker, offsets: dict[int, int]) -> None:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers, group_id="g", enable_auto_commit=False
    )
    async with AsyncExitStack() as stack:
        await consumer.start()
        stack.push_async_callback(consumer.stop)
        consumer.assign([TopicPartition("t", partition) for partition in offsets])
        await consumer.commit({TopicPartition("t", p): offset for p, offset in offsets.items()})
