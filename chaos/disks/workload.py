"""Clients that use every feature by which a broker promises something."""

# ruff: noqa: S101  these assertions are the tests'
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from chaos.disks.promises import Answer, Change, Register
from chaos.disks.wire import (
    DELETE_GROUPS,
    INIT,
    MINUTE,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OK,
    produce,
)
from kmr.broker.log.records import NewRecord, build_batch
from kmr.broker.operations.maintenance import compact, retain

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from chaos.disks.promises import History
    from kmr.broker import Broker

SETTINGS: dict[str, dict[str, str]] = {
    "plain": {"internal.segment.bytes": "400"},
    "kept": {"internal.segment.bytes": "300", "retention.bytes": "600"},
    "keyed": {
        "internal.segment.bytes": "400",
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.0",
        "delete.retention.ms": "0",
    },
    "paid": {"internal.segment.bytes": "500"},
    "read": {},
}
"""Topics of the workload, and their own settings."""

PARTS = {
    "records": ["plain", "kept", "keyed"],
    "transactions": ["paid"],
    "groups": ["read"],
    "topics": [],
}
"""Parts of the workload, and the topics of each."""


class Workload:
    """Clients that use every feature by which a broker promises something."""

    def __init__(self, history: History, broker: Broker, clients: tuple[Any, Any]) -> None:
        """`clients`: connections of two that work at the same time."""
        self._history = history
        self._broker = broker
        self._client, self._other_client = clients
        self._address = broker.bootstrap_servers

    async def run(self, round_: int, parts: Collection[str]) -> None:
        """One round of work; several, with restarts between them, make a history.

        `parts`: of `PARTS`, at the same time.
        """
        admin = AIOKafkaAdminClient(bootstrap_servers=self._address)
        await admin.start()
        try:
            if not round_:
                for part in parts:
                    for topic in PARTS[part]:
                        await self._create(admin, topic, 2, SETTINGS[topic])
            async with anyio.create_task_group() as tasks:
                if "records" in parts:
                    tasks.start_soon(self._produce_idempotently, round_)
                if "transactions" in parts:
                    tasks.start_soon(self._pay, round_)
                if "groups" in parts:
                    tasks.start_soon(self._commit, round_)
                if "topics" in parts:
                    tasks.start_soon(self._administer, admin, round_)
            if "records" in parts:
                await self._keep_house(admin)
        finally:
            await admin.close()

    async def _produce_idempotently(self, round_: int) -> None:
        producer_id = await self.new_producer_id()
        for number in range(6):
            for topic in ("plain", "kept"):
                values = [b"%d-%d-%d-%s" % (round_, number, n, b"x" * 40) for n in range(2)]
                await self._send_batch((topic, 0), producer_id, 2 * number, values)
        for number in range(8):
            key, value = b"key %d" % (number % 3), b"%d-%d-%s" % (round_, number, b"y" * 50)
            await self._send_batch(("keyed", 0), producer_id, number, [value], key=key)

    async def new_producer_id(self) -> int:
        answer = await self._client.call(INIT, 4, transactional_id=None, transaction_timeout=MINUTE)
        assert answer.error_code is OK
        self._history.registers["producer ids",].changes.append(
            Change(self._history.disk.now, answer.producer_id, self._history.disk.now)
        )
        return int(answer.producer_id)

    async def _send_batch(
        self,
        partition: tuple[str, int],
        producer_id: int,
        sequence: int,
        values: list[bytes],
        *,
        key: bytes | None = None,
    ) -> None:
        batch = bytes(
            build_batch(
                [NewRecord(key, value, (), 1_700_000_000_000) for value in values],
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequence,
            )
        )
        sent = [self._history.send(partition, value, key=key) for value in values]
        code, offset = await produce(self._client, partition, batch)
        assert code is OK
        for each, at in zip(sent, range(offset, offset + len(sent)), strict=True):
            self._history.acknowledged(each, at)
        self._history.answers.append(Answer(partition, batch, offset, self._history.disk.now))

    async def _pay(self, round_: int) -> None:
        """Transactions over two partitions and the offsets of a group; the last one stays open."""
        history = self._history
        producer = AIOKafkaProducer(bootstrap_servers=self._address, transactional_id="cashier")
        await producer.start()
        manager = producer._txn_manager  # noqa: SLF001  nothing public says who it is
        identity = (manager.producer_id, manager.producer_epoch)
        history.registers["cashier",].changes.append(
            Change(history.disk.now, identity, history.disk.now)
        )
        for number, commits in enumerate((True, False, True, None)):
            await producer.begin_transaction()
            outcome = Register()
            for partition in (0, 1):
                value = b"%d-%d-%d-%s" % (round_, number, partition, b"z" * 60)
                sent = history.send(("paid", partition), value, transaction=outcome)
                metadata = await producer.send_and_wait("paid", value, partition=partition)
                history.acknowledged(sent, metadata.offset)
            offset = 100 * round_ + number
            wanted = {TopicPartition("paid", 0): offset}
            if not commits:
                history.unfinished["committed", "auditors", "paid", 0].append(offset)
            await producer.send_offsets_to_transaction(wanted, "auditors")
            if commits is None:
                break
            decision = Change(history.disk.now, commits)
            outcome.changes.append(decision)
            if commits:
                async with history.change(("committed", "auditors", "paid", 0), offset):
                    await producer.commit_transaction()
            else:
                await producer.abort_transaction()
            decision.done = history.disk.now
        await producer.stop()  # and leave its transaction open

    async def _commit(self, round_: int) -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._address, group_id="readers", enable_auto_commit=False
        )
        await consumer.start()
        partition = TopicPartition("read", 1)
        consumer.assign([partition])
        for number in range(6):
            offset = 100 * round_ + number
            async with self._history.change(("committed", "readers", *partition), offset):
                await consumer.commit({partition: offset})
        await consumer.stop()
        await self._leave_nothing(round_)

    async def _leave_nothing(self, round_: int) -> None:
        """A group that commits an offset, which is then deleted, and is deleted itself."""
        topics = [{"name": "read", "partitions": [{"partition_index": 0}]}]
        by_offset: dict[str, Any] = {"group_id": "leavers", "topics": topics}
        by_group: dict[str, Any] = {"groups_names": ("leavers",)}
        for key, version, request in ((OFFSET_DELETE, 0, by_offset), (DELETE_GROUPS, 2, by_group)):
            await self._commit_once("leavers", round_)
            async with self._history.change(("committed", "leavers", "read", 0), None):
                answer = await self._other_client.call(key, version, **request)
                results = answer.results if key == DELETE_GROUPS else answer.topics[0].partitions
                assert results[0].error_code is OK

    async def _commit_once(self, group: str, offset: int) -> None:
        partition = {"partition_index": 0, "committed_offset": offset}
        topics = [{"name": "read", "partitions": [partition]}]
        async with self._history.change(("committed", group, "read", 0), offset):
            answer = await self._other_client.call(OFFSET_COMMIT, 7, group_id=group, topics=topics)
            assert answer.topics[0].partitions[0].error_code is OK

    async def _create(
        self, admin: Any, topic: str, partitions: int, settings: Mapping[str, str]
    ) -> None:
        async with self._history.change(
            ("topic", topic), (partitions, frozenset(settings.items()))
        ):
            answer = await admin.create_topics(
                [NewTopic(topic, partitions, 1, topic_configs=dict(settings))]
            )
            assert [code for _, code, *_ in answer.topic_errors] == [0]

    async def _administer(self, admin: Any, round_: int) -> None:
        change = self._history.change
        topic = f"short lived {round_}".replace(" ", "-")
        await self._create(admin, topic, 1, {"retention.ms": "1000"})
        async with change(("topic", topic), (1, frozenset({("retention.ms", "2000")}))):
            resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "2000"})
            await admin.alter_configs([resource])
        async with change(("topic", topic), (3, frozenset({("retention.ms", "2000")}))):
            await admin.create_partitions({topic: NewPartitions(3)})
        async with change(("topic", topic), None):
            await admin.delete_topics([topic])
        settings = {"retention.ms": str(10**9 + round_)}
        await self._create(admin, f"long-lived-{round_}", 1, settings)

    async def _keep_house(self, admin: Any) -> None:
        """Deletes records, applies retention and compacts, at moments that the test decides."""
        history = self._history
        end = len(history.records["plain", 0])
        async with history.change(("start", "plain", 0), end - 3):
            await admin.delete_records({TopicPartition("plain", 0): RecordsToDelete(end - 3)})
        now_ms = 1_700_000_000_000
        await retain(self._broker.topics, self._broker.health.supervisor, now_ms=now_ms)
        partition = self._broker.topics.partition("keyed", 0)
        assert partition is not None
        assert await compact(partition, self._broker.topics, now_ms=now_ms)
