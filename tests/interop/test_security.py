"""Real clients over TLS and SASL, with the right and the wrong credentials, and with access rules."""

from __future__ import annotations

import asyncio
import gc
import logging
import ssl
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import confluent_kafka as ck
import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import GroupAuthorizationFailedError as AioGroupRefused
from aiokafka.errors import KafkaConnectionError as AioNoConnection
from aiokafka.errors import TopicAuthorizationFailedError as AioTopicRefused
from kafka.errors import TopicAuthorizationFailedError
from structlog.testing import capture_logs

from kmr.broker.authorization.rules import Operation, Rule, write_rules
from kmr.broker.authorization.users import make_user, write_users
from kmr.errors import ConsumerError
from kmr.mapping.functions import map_record
from kmr.settings import SecuritySettings, Settings
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryWriter
from kmr.worker import Worker

from .conftest import LEAKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from kmr.broker import Broker
    from kmr.record import Record
    from kmr.testing import StartBroker

TIMEOUT = 60.0
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
PASSWORD = "a pass=word, with ümlaut"
ALL = (Operation.ALL,)


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("users") / "users.json"
    names = ("alice", "admin")
    write_users(path, {name: make_user(PASSWORD, iterations=4096) for name in names})
    return path


def tls(certificates: Any) -> dict[str, Any]:
    return {"tls_certificate": certificates.certificate, "tls_key": certificates.key}


def client_context(certificates: Any, client: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificates.authority)
    if client is not None:
        context.load_cert_chain(client, certificates.client_key)
    return context


def sasl(broker: Broker, mechanism: str, user: str = "alice", password: str = PASSWORD) -> Any:
    """Arguments of aiokafka and kafka-python."""
    return {
        "bootstrap_servers": broker.bootstrap_servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }


def librdkafka(broker: Broker, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": password,
    }


async def round_trip(topic: str = "t", **options: Any) -> list[bytes | None]:
    """Produce a record and consume it in a group, by aiokafka."""
    async with asyncio.timeout(TIMEOUT):
        async with AIOKafkaProducer(**options, acks="all") as producer:
            await producer.send_and_wait(topic, b"value", partition=0)
        async with AIOKafkaConsumer(
            topic, **options, group_id="g", auto_offset_reset="earliest"
        ) as consumer:
            record = await consumer.getone()
            await consumer.commit()
    return [record.value]


def confluent_round_trip(settings: dict[str, Any], value: bytes) -> list[bytes | None]:
    producer = ck.Producer(settings)
    producer.produce("t", value)
    assert producer.flush(TIMEOUT) == 0
    consumer = ck.Consumer({**settings, "group.id": "librdkafka", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    messages = consumer.consume(1, TIMEOUT)
    consumer.close()
    assert all(each.error() is None for each in messages)
    return [each.value() for each in messages]


def kafka_python_round_trip(settings: dict[str, Any], value: bytes) -> list[bytes]:
    producer = kafka.KafkaProducer(**settings)
    producer.send("t", value).get(TIMEOUT)
    producer.close()
    consumer = kafka.KafkaConsumer(
        "t",
        **settings,
        group_id="kafka-python",
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(TIMEOUT * 1000),
    )
    record = next(consumer)
    consumer.close()
    return [record.value]


# -- SASL ------------------------------------------------------------------------------------------


@pytest.fixture
def forgotten_sockets(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Collect the sockets that kafka-python forgets."""
    with caplog.at_level(logging.CRITICAL, "kafka"):  # log records would keep them alive
        yield
    gc.collect()  # while the warnings are ignored


@LEAKS
@pytest.mark.usefixtures("forgotten_sockets")
@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_every_client_produces_and_consumes_by_every_mechanism(
    start_broker: StartBroker, users: Path, mechanism: str
) -> None:
    broker = await start_broker(users_file=users)
    assert await round_trip(**sasl(broker, mechanism)) == [b"value"]
    settings = librdkafka(broker, mechanism)
    assert await asyncio.to_thread(confluent_round_trip, settings, b"value") == [b"value"]
    options = sasl(broker, mechanism)
    assert await asyncio.to_thread(kafka_python_round_trip, options, b"value") == [b"value"]


@contextmanager
def said_by(name: str) -> Iterator[list[str]]:
    """Capture a logger's records; PySpark, once imported, disconnects `caplog`."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger(name)
    logger.addHandler(handler)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_wrong_password_is_said_to_the_client(
    start_broker: StartBroker, users: Path, mechanism: str
) -> None:
    broker = await start_broker(users_file=users)
    async with asyncio.timeout(TIMEOUT):
        producer = AIOKafkaProducer(**sasl(broker, mechanism, password="wrong"))
        with said_by("aiokafka") as messages, pytest.raises(AioNoConnection):
            await producer.start()
        await producer.stop()
        assert any("wrong user or password" in message for message in messages)

        reasons: list[Any] = []
        client = ck.Producer({**librdkafka(broker, mechanism, "wrong"), "error_cb": reasons.append})

        while not reasons:
            await asyncio.to_thread(client.poll, 1)
        assert any(each.code() == ck.KafkaError._AUTHENTICATION for each in reasons)
        assert "wrong user or password" in str(reasons[0])


KAFKA_PYTHON = """
import logging, sys, kafka
logging.basicConfig()
kafka.KafkaProducer(
    bootstrap_servers=sys.argv[1],
    security_protocol="SASL_PLAINTEXT",
    sasl_mechanism="SCRAM-SHA-256",
    sasl_plain_username="alice",
    sasl_plain_password="wrong",
    bootstrap_timeout_ms=2000,  # it tries until then
)
"""


async def test_a_wrong_password_is_said_to_kafka_python(
    start_broker: StartBroker, users: Path
) -> None:
    """In a process of its own: it leaks sockets when it cannot connect."""
    broker = await start_broker(users_file=users)
    async with asyncio.timeout(TIMEOUT):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", KAFKA_PYTHON, broker.bootstrap_servers),
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await process.communicate()
    assert process.returncode == 1
    assert b"wrong user or password" in said


async def test_a_client_without_credentials_does_not_hang(
    start_broker: StartBroker, users: Path
) -> None:
    broker = await start_broker(users_file=users)
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    async with asyncio.timeout(TIMEOUT):
        with pytest.raises(AioNoConnection):
            await producer.start()
        await producer.stop()


# -- TLS -------------------------------------------------------------------------------------------


@LEAKS
@pytest.mark.usefixtures("forgotten_sockets")
async def test_every_client_produces_and_consumes_over_tls(
    start_broker: StartBroker, users: Path, certificates: Any
) -> None:
    broker = await start_broker(users_file=users, **tls(certificates))
    options = {
        **sasl(broker, "SCRAM-SHA-512"),
        "security_protocol": "SASL_SSL",
        "ssl_context": client_context(certificates),
    }
    assert await round_trip(**options) == [b"value"]
    assert await asyncio.to_thread(kafka_python_round_trip, options, b"value") == [b"value"]
    settings = {
        **librdkafka(broker, "SCRAM-SHA-512"),
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(certificates.authority),
    }
    assert await asyncio.to_thread(confluent_round_trip, settings, b"value") == [b"value"]


async def test_megabytes_pass_over_tls_both_ways(
    start_broker: StartBroker, certificates: Any
) -> None:
    broker = await start_broker(**tls(certificates))
    options = {
        "bootstrap_servers": broker.bootstrap_servers,
        "security_protocol": "SSL",
        "ssl_context": client_context(certificates),
    }
    values = [bytes([number]) * 500_000 for number in range(60)]
    async with asyncio.timeout(TIMEOUT):
        async with AIOKafkaProducer(**options, max_request_size=1_000_000) as producer:
            for each in [await producer.send("t", value, partition=0) for value in values]:
                await each
        async with AIOKafkaConsumer("t", **options, auto_offset_reset="earliest") as consumer:
            received = [(await consumer.getone()).value for _ in values]
    assert received == values


async def test_a_client_has_to_show_a_certificate_of_the_authority(
    start_broker: StartBroker, tmp_path: Path, certificates: Any
) -> None:
    """Mutual TLS: the subject of the certificate is the principal of rules."""
    acls = tmp_path / "acls.json"
    principal = r"User:CN=client,O=Example\, Inc."
    write_rules(acls, [Rule(principal=principal, operations=ALL, topics=("*",), groups=("*",))])
    broker = await start_broker(
        acl_file=acls, tls_client_ca=certificates.authority, **tls(certificates)
    )
    options: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap_servers,
        "security_protocol": "SSL",
    }
    right = client_context(certificates, certificates.client_certificate)
    assert await round_trip(**options, ssl_context=right) == [b"value"]
    stranger = client_context(certificates, certificates.stranger_certificate)
    for context in (client_context(certificates), stranger):
        async with asyncio.timeout(TIMEOUT):
            producer = AIOKafkaProducer(**options, ssl_context=context, request_timeout_ms=5000)
            with pytest.raises(AioNoConnection):
                await producer.start()
            await producer.stop()


# -- access rules ----------------------------------------------------------------------------------


async def guarded_broker(
    start_broker: StartBroker, users: Path, path: Path, rules: Sequence[Rule]
) -> Broker:
    everything = Rule(
        principal="User:admin",
        operations=ALL,
        topics=("*",),
        groups=("*",),
        transactional_ids=("*",),
        cluster=True,
    )
    acls = path / "acls.json"
    write_rules(acls, [everything, *rules])
    broker = await start_broker(users_file=users, acl_file=acls, auto_create_topics=False)
    for topic in ("open", "open-too", "closed"):
        await broker.topics.create(topic)
    return broker


ALICE = Rule(
    principal="User:alice",
    operations=(Operation.READ, Operation.WRITE),
    topics=("open*",),
    groups=("alice-*",),
)


async def test_a_producer_writes_only_where_it_may(
    start_broker: StartBroker, users: Path, tmp_path: Path
) -> None:
    broker = await guarded_broker(start_broker, users, tmp_path, [ALICE])
    async with asyncio.timeout(TIMEOUT):
        async with AIOKafkaProducer(**sasl(broker, "PLAIN")) as producer:
            await producer.send_and_wait("open", b"value")
            with pytest.raises(AioTopicRefused):
                await producer.send_and_wait("closed", b"value")

    def librdkafka_error() -> Any:
        failed: list[Any] = []
        client = ck.Producer(librdkafka(broker, "PLAIN"))
        client.produce("closed", b"value", on_delivery=lambda error, _: failed.append(error))
        client.flush(TIMEOUT)
        return failed[0].code()

    code = await asyncio.to_thread(librdkafka_error)
    assert code == ck.KafkaError.TOPIC_AUTHORIZATION_FAILED

    def kafka_python_error() -> None:
        client = kafka.KafkaProducer(**sasl(broker, "PLAIN"))
        try:
            client.send("closed", b"value").get(TIMEOUT)
        finally:
            client.close()

    with pytest.raises(TopicAuthorizationFailedError):
        await asyncio.to_thread(kafka_python_error)
    closed = broker.topics.partition("closed", 0)
    assert closed is not None
    assert closed.high_watermark == 0


async def test_a_consumer_reads_only_what_it_may_in_groups_that_it_may_join(
    start_broker: StartBroker, users: Path, tmp_path: Path
) -> None:
    broker = await guarded_broker(start_broker, users, tmp_path, [ALICE])
    options = sasl(broker, "SCRAM-SHA-256")
    async with asyncio.timeout(TIMEOUT):
        async with AIOKafkaProducer(**options) as producer:
            await producer.send_and_wait("open", b"value")
        async with AIOKafkaConsumer(
            "open", **options, group_id="alice-1", auto_offset_reset="earliest"
        ) as consumer:
            assert (await consumer.getone()).value == b"value"
            await consumer.commit()
        refused = AIOKafkaConsumer("open", **options, group_id="others")
        with pytest.raises(AioGroupRefused):
            await refused.start()
        await refused.stop()
        refused = AIOKafkaConsumer("closed", **options)
        with pytest.raises(AioTopicRefused):
            await refused.start()
        await refused.stop()
        async with AIOKafkaConsumer(**options) as consumer:
            assert await consumer.topics() == {"open", "open-too"}


async def test_only_an_administrator_makes_and_deletes_topics(
    start_broker: StartBroker, users: Path, tmp_path: Path
) -> None:
    broker = await guarded_broker(start_broker, users, tmp_path, [ALICE])
    async with asyncio.timeout(TIMEOUT):
        for user, code in (("alice", 29), ("admin", 0)):
            admin = AIOKafkaAdminClient(**sasl(broker, "PLAIN", user))
            await admin.start()
            made = await admin.create_topics([NewTopic("new", 1, 1)])
            assert [each[1] for each in made.topic_errors] == [code]
            deleted = await admin.delete_topics(["open"])
            assert [each[1] for each in deleted.topic_error_codes] == [code]
            await admin.close()


async def test_a_transactional_producer_needs_its_transactional_id(
    start_broker: StartBroker, users: Path, tmp_path: Path
) -> None:
    own = Rule(
        principal="User:alice", operations=(Operation.WRITE,), transactional_ids=("alice-*",)
    )
    broker = await guarded_broker(start_broker, users, tmp_path, [ALICE, own])

    def run(transactional_id: str, topic: str) -> int:
        settings = librdkafka(broker, "SCRAM-SHA-512")
        producer = ck.Producer({**settings, "transactional.id": transactional_id})
        try:
            producer.init_transactions(TIMEOUT)
            producer.begin_transaction()
            producer.produce(topic, b"value")
            producer.commit_transaction(TIMEOUT)
        except ck.KafkaException as error:
            return int(error.args[0].code())
        return 0

    assert await asyncio.to_thread(run, "alice-1", "open") == 0
    refused = ck.KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert await asyncio.to_thread(run, "bob-1", "open") == refused
    assert await asyncio.to_thread(run, "alice-2", "closed") != 0
    closed = broker.topics.partition("closed", 0)
    assert closed is not None
    assert closed.high_watermark == 0


# -- our own framework -----------------------------------------------------------------------------


@map_record
def value_of(record: Record) -> dict[str, bytes | None]:
    return {"value": record.value}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_worker_maps_reduces_and_commits_over_sasl_ssl_with_a_certificate(
    start_broker: StartBroker, users: Path, certificates: Any, tmp_path: Path, mechanism: Any
) -> None:
    acls = tmp_path / "acls.json"
    rule = Rule(
        principal="User:alice",
        operations=(Operation.READ, Operation.WRITE),
        topics=("t",),
        groups=("g",),
    )
    write_rules(acls, [rule])
    broker = await start_broker(
        users_file=users, acl_file=acls, tls_client_ca=certificates.authority, **tls(certificates)
    )
    await broker.topics.create("t")
    security = SecuritySettings(
        protocol="SASL_SSL",
        sasl_mechanism=mechanism,
        sasl_user="alice",
        sasl_password=PASSWORD,
        ssl_cafile=str(certificates.authority),
        ssl_certfile=str(certificates.client_certificate),
        ssl_keyfile=str(certificates.client_key),
    )
    options = {
        **sasl(broker, mechanism),
        "security_protocol": "SASL_SSL",
        "ssl_context": client_context(certificates, certificates.client_certificate),
    }
    async with asyncio.timeout(TIMEOUT):
        async with AIOKafkaProducer(**options) as producer:
            for value in (b"a", b"b", b"c"):
                await producer.send_and_wait("t", value)
        journal = Journal()
        settings = Settings(
            topics=("t",),
            group="g",
            bootstrap_servers=broker.bootstrap_servers,
            executor="inline",
            security=security,
        )
        worker = Worker(Strategy(value_of, [MemoryWriter(journal, max_rows=3)]), settings)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.run)
            await journal.until(lambda seen: seen.count == 3)
            worker.shutdown("the test is over")
        async with AIOKafkaConsumer(**options, group_id="g") as consumer:
            assert await consumer.committed(TopicPartition("t", 0)) == 3
    assert [row["value"] for row in journal.rows()] == [b"a", b"b", b"c"]


async def test_a_worker_with_a_wrong_password_says_so_and_ends(
    start_broker: StartBroker, users: Path
) -> None:
    broker = await start_broker(users_file=users)
    security = SecuritySettings(
        protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_user="alice",
        sasl_password="wrong",
    )
    settings = Settings(
        topics=("t",), group="g", bootstrap_servers=broker.bootstrap_servers, security=security
    )
    worker = Worker(Strategy(value_of, [MemoryWriter(Journal())]), settings)
    async with asyncio.timeout(TIMEOUT):
        with pytest.raises(ConsumerError, match="refuses SCRAM-SHA-512 credentials of 'alice'"):
            await worker.run()


def produce_for(seconds: float, send: Callable[[bytes], Any]) -> int:
    """Send a record after the other, each once the last one is acknowledged; return their number."""
    stop, sent = time.monotonic() + seconds, 0
    while time.monotonic() < stop:
        send(b"%d" % sent)
        sent += 1
        time.sleep(0.02)
    return sent


def by_librdkafka(broker: Broker, reasons: list[str]) -> int:
    settings = librdkafka(broker, "SCRAM-SHA-256")
    producer = ck.Producer({**settings, "error_cb": lambda error: reasons.append(str(error))})

    def send(value: bytes) -> None:
        producer.produce("t", value)
        assert producer.flush(TIMEOUT) == 0

    return produce_for(7.0, send)


def by_kafka_python(broker: Broker, reasons: list[str]) -> int:
    producer = kafka.KafkaProducer(**sasl(broker, "PLAIN"), enable_idempotence=False, retries=0)
    try:
        return produce_for(7.0, lambda value: producer.send("t", value, partition=0).get(TIMEOUT))
    finally:
        producer.close()


@pytest.mark.parametrize("produce", [by_librdkafka, by_kafka_python])
async def test_clients_authenticate_again_on_their_connections(
    start_broker: StartBroker, users: Path, produce: Callable[[Broker, list[str]], int]
) -> None:
    broker = await start_broker(users_file=users, authentication_lifetime=6, default_partitions=1)
    reasons: list[str] = []
    with capture_logs() as logs:
        sent = await anyio.to_thread.run_sync(produce, broker, reasons)
    assert reasons == []
    assert [each for each in logs if each["log_level"] != "info"] == []
    partition = broker.topics.partition("t", 0)
    assert partition is not None
    assert partition.log.next_offset == sent > 0


async def test_a_client_that_cannot_authenticate_again_connects_again(
    start_broker: StartBroker, users: Path
) -> None:
    """As aiokafka 0.14."""
    broker = await start_broker(users_file=users, authentication_lifetime=0.3)
    sent = 0
    async with asyncio.timeout(TIMEOUT):
        async with AIOKafkaProducer(**sasl(broker, "PLAIN"), acks="all") as producer:
            until = time.monotonic() + 1.5
            while time.monotonic() < until:
                await producer.send_and_wait("t", b"%d" % sent, partition=0)
                sent += 1
    partition = broker.topics.partition("t", 0)
    assert partition is not None
    assert partition.log.next_offset == sent > 0
