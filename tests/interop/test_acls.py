"""Administrators change access rules with their clients, and the rules hold at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import confluent_kafka as ck
import kafka
import pytest
from confluent_kafka import admin as librdkafka_admin
from kafka import admin as kafka_admin
from kafka.errors import NoError

from kmr.broker.authorization.rules import Operation, Rule, read_rules, write_rules

if TYPE_CHECKING:
    from pathlib import Path

    from kmr.broker import Broker
    from kmr.testing import StartBroker

ck_admin: Any = librdkafka_admin
"""Its types lack what it takes from others."""

TIMEOUT = 30.0
ADMINISTRATORS = Rule(principal="User:ANONYMOUS", operations=(Operation.ALL,), cluster=True)


@pytest.fixture
async def guarded(start_broker: StartBroker, tmp_path: Path) -> Broker:
    """A broker on which everybody may do everything with the cluster, nothing with topics."""
    acls = tmp_path / "acls.json"
    write_rules(acls, [ADMINISTRATORS])
    broker = await start_broker(acl_file=acls)
    await broker.topics.create("orders-1")
    return broker


async def test_librdkafka_allows_and_revokes(guarded: Broker, tmp_path: Path) -> None:
    binding = ck_admin.AclBinding(
        ck_admin.ResourceType.TOPIC,
        "orders",
        ck_admin.ResourcePatternType.PREFIXED,
        "User:ANONYMOUS",
        "*",
        ck_admin.AclOperation.WRITE,
        ck_admin.AclPermissionType.ALLOW,
    )
    everything = ck_admin.AclBindingFilter(
        ck_admin.ResourceType.TOPIC,
        None,
        ck_admin.ResourcePatternType.ANY,
        None,
        None,
        ck_admin.AclOperation.ANY,
        ck_admin.AclPermissionType.ANY,
    )

    def produced() -> Any:
        errors: list[Any] = []
        producer = ck.Producer({"bootstrap.servers": guarded.bootstrap_servers})
        producer.produce("orders-1", b"value", on_delivery=lambda error, _: errors.append(error))
        producer.flush(TIMEOUT)
        return errors[0] and errors[0].code()

    def change() -> None:
        admin = ck_admin.AdminClient({"bootstrap.servers": guarded.bootstrap_servers})
        assert produced() == ck.KafkaError.TOPIC_AUTHORIZATION_FAILED
        (created,) = admin.create_acls([binding]).values()
        assert created.result(TIMEOUT) is None
        assert produced() is None
        assert admin.describe_acls(everything).result(TIMEOUT) == [binding]
        (deleted,) = admin.delete_acls([everything]).values()
        assert deleted.result(TIMEOUT) == [binding]
        assert produced() == ck.KafkaError.TOPIC_AUTHORIZATION_FAILED
        assert admin.describe_acls(everything).result(TIMEOUT) == []

    await asyncio.to_thread(change)
    assert read_rules(tmp_path / "acls.json") == (ADMINISTRATORS,)


async def test_kafka_python_allows_and_revokes(guarded: Broker) -> None:
    pattern = kafka_admin.ResourcePattern(kafka_admin.ResourceType.GROUP, "billing")
    acl = kafka_admin.ACL(
        principal="User:alice",
        host="*",
        operation=kafka_admin.ACLOperation.READ,
        permission_type=kafka_admin.ACLPermissionType.ALLOW,
        resource_pattern=pattern,
    )
    wanted = kafka_admin.ACLFilter(
        principal="User:alice",
        host=None,
        operation=kafka_admin.ACLOperation.ANY,
        permission_type=kafka_admin.ACLPermissionType.ANY,
        resource_pattern=pattern,
    )

    def change() -> None:
        admin = kafka.KafkaAdminClient(bootstrap_servers=guarded.bootstrap_servers)
        try:
            created = admin.create_acls([acl])
            assert (created["succeeded"], created["failed"]) == ([acl], [])
            assert admin.describe_acls(wanted) == ([acl], NoError)
            ((_, deleted, error),) = admin.delete_acls([wanted])
            assert (deleted, error) == ([acl], NoError)
            assert admin.describe_acls(wanted) == ([], NoError)
        finally:
            admin.close()

    await asyncio.to_thread(change)
