"""librdkafka with `group.protocol=consumer`: members come and go, and what they own is counted."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import confluent_kafka as ck

from .clients.base import Message
from .clients.via_librdkafka import Librdkafka

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from kmr.broker import Broker

PARTITIONS = 6
EACH = 50


class Journal:
    """Who owns which partition, and which records were read how often."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.owners: dict[tuple[str, int], str] = {}
        self.doubled: list[tuple[str, int]] = []
        self.read: dict[tuple[str, int, int], int] = {}

    def wait_shares(self, *shares: int) -> None:
        """Wait until the members own these numbers of partitions."""

        def is_so() -> bool:
            names = list(self.owners.values())
            return sorted(names.count(name) for name in set(names)) == list(shares)

        with self.lock:
            assert self.lock.wait_for(is_so, 60), self.owners

    def wait_read(self, count: int) -> None:
        """Wait until so many records have been read."""
        with self.lock:
            assert self.lock.wait_for(lambda: len(self.read) == count, 60), len(self.read)


def _member(
    servers: str, name: str, topics: list[str], journal: Journal, stop: threading.Event, **more: str
) -> None:
    consumer = ck.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "g",
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
            **more,
        }
    )

    def assigned(_: Any, partitions: list[ck.TopicPartition]) -> None:
        with journal.lock:
            for each in partitions:
                where = (each.topic, each.partition)
                if where in journal.owners:
                    journal.doubled.append(where)
                journal.owners[where] = name
            journal.lock.notify_all()
        consumer.incremental_assign(partitions)

    def revoked(_: Any, partitions: list[ck.TopicPartition]) -> None:
        try:
            consumer.commit(asynchronous=False)
        except ck.KafkaException as error:
            if error.args[0].code() != ck.KafkaError._NO_OFFSET:  # it has read nothing
                raise
        lost(None, partitions)

    def lost(_: Any, partitions: list[ck.TopicPartition]) -> None:
        with journal.lock:
            for each in partitions:
                journal.owners.pop((each.topic, each.partition), None)
            journal.lock.notify_all()
        consumer.incremental_unassign(partitions)

    consumer.subscribe(topics, on_assign=assigned, on_revoke=revoked, on_lost=lost)
    try:
        while not stop.is_set():
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                where = (str(message.topic()), message.partition() or 0, message.offset() or 0)
                with journal.lock:
                    journal.read[where] = journal.read.get(where, 0) + 1
                    journal.lock.notify_all()
    finally:
        consumer.close()


@contextmanager
def member(
    servers: str, name: str, topics: list[str], journal: Journal, **more: str
) -> Iterator[None]:
    """A member in a thread, until the end of the block."""
    stop = threading.Event()
    thread = threading.Thread(
        target=_member, args=(servers, name, topics, journal, stop), kwargs=more
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


async def test_members_join_leave_and_restart_and_each_record_is_read_once(
    start_broker: Callable[..., Awaitable[Broker]],
) -> None:
    broker = await start_broker(group_consumer_heartbeat_interval=0.1)
    await _each_record_is_read_once(broker, _storm)


async def _each_record_is_read_once(
    broker: Broker, scenario: Callable[[str, Journal], None]
) -> None:
    servers = broker.bootstrap_servers
    await broker.topics.create("t", PARTITIONS)
    async with Librdkafka().producer(servers) as producer:
        for index in range(PARTITIONS):
            await producer.send("t", [Message(b"x")] * EACH, partition=index)
    journal = Journal()
    await asyncio.to_thread(scenario, servers, journal)
    assert not journal.doubled
    assert set(journal.read.values()) == {1}
    assert len(journal.read) == PARTITIONS * EACH


def _storm(servers: str, journal: Journal) -> None:
    static = {"group.instance.id": "static"}
    with member(servers, "a", ["t"], journal):
        journal.wait_shares(6)
        with member(servers, "b", ["^t$"], journal):
            journal.wait_shares(3, 3)
            for _ in range(2):  # a static member leaves, and has its partitions again
                with member(servers, "c", ["t"], journal, **static):
                    journal.wait_shares(2, 2, 2)
                journal.wait_shares(2, 2)
    with member(servers, "c", ["t"], journal, **static):
        journal.wait_shares(6)
        journal.wait_read(PARTITIONS * EACH)
