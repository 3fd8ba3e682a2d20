"""Being a member of a group: rebalances, listeners, commits, leaving."""

from __future__ import annotations

import contextlib
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import confluent_kafka as ck
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.protocol.group import LeaveGroupRequest

from kmr.broker import Broker, BrokerSettings, Fault
from kmr.broker.authorization.rules import Operation, Rule, write_rules
from kmr.broker.authorization.users import make_user, write_users
from kmr.chaos.services import free_port
from kmr.errors import BrokerUnavailable, CommitFenced, ConsumerError
from kmr.kafka.consumer import CommitOffset
from kmr.kafka.group_offsets import Membership, commit_offsets
from kmr.kafka.kafka_consumer import KafkaConsumer
from kmr.record import TopicPartition

from .members import Member, Silent, consumer_config, numbers, values

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from anyio.abc import TaskStatus

    from .members import Consume, CreateTopic, Produce


T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


async def test_poll_returns_nothing_until_the_listener_has_returned(
    consume: Consume, produce: Produce
) -> None:
    await produce("t", numbers(3))
    async with consume() as member:
        entered, agreed = anyio.Event(), anyio.Event()

        async def wait() -> None:
            entered.set()
            await agreed.wait()

        member.on_assigned = wait
        await entered.wait()
        with anyio.move_on_after(0.5):
            assert not await member.consumer.poll()
        agreed.set()
        assert values(await member.read(3)) == numbers(3)


@pytest.mark.parametrize("event", ["on_revoked", "on_assigned"])
async def test_poll_raises_an_error_of_the_listener(consume: Consume, event: str) -> None:
    async def fail() -> None:
        raise LookupError("no such state")

    async with consume() as member:
        setattr(member, event, fail)
        with pytest.raises(LookupError, match="no such state"):
            await member.consumer.poll()


async def test_members_share_the_partitions_and_keep_most_of_theirs(
    consume: Consume, produce: Produce, create_topic: CreateTopic
) -> None:
    await create_topic("t", 6)
    everything = {TopicPartition("t", n) for n in range(6)}
    async with consume(heartbeat_interval=0.1) as one:
        await one.until_assigned(lambda p: len(p) == 6)
        first_generation = one.consumer.generation
        async with consume(heartbeat_interval=0.1) as two:
            await one.until_assigned(lambda p: len(p) == 3)
            await two.until_assigned(bool)
            assert one.partitions | two.partitions == everything
            assert one.calls == [
                ("revoked", set()),
                ("assigned", everything),
                ("revoked", everything),
                ("assigned", set(one.partitions)),
            ]
            assert one.consumer.generation == two.consumer.generation > first_generation
            assert one.consumer.member_id != two.consumer.member_id != ""
            before = one.partitions
            async with consume(heartbeat_interval=0.1) as three:
                await one.until_assigned(lambda p: len(p) == 2)
                await two.until_assigned(lambda p: len(p) == 2)
                await three.until_assigned(bool)
                assert one.partitions < before
        # Both have left, and said so: no need to wait for the session timeout.
        await one.until_assigned(lambda p: len(p) == 6)
        await produce("t", numbers(3), 5)
        await one.read(3)


async def test_commits_of_another_generation_are_refused(
    consume: Consume, create_topic: CreateTopic
) -> None:
    await create_topic("t", 2)
    async with consume(heartbeat_interval=0.1) as one:
        with pytest.raises(CommitFenced, match="t-0 is no longer assigned to us"):
            await one.consumer.commit({T0: CommitOffset(1)})
        await one.until_assigned(lambda p: len(p) == 2)
        old = one.consumer._membership

        async def commit() -> None:
            await one.consumer.commit({T0: CommitOffset(5), T1: CommitOffset(6)})

        one.on_revoked = commit  # at the very last moment: still accepted
        async with consume(heartbeat_interval=0.1) as two:
            await one.until_assigned(lambda p: len(p) == 1)
            await two.until_assigned(bool)
            (lost,) = two.partitions
            with pytest.raises(CommitFenced, match=f"{lost} is no longer assigned to us"):
                await one.consumer.commit({lost: CommitOffset(9)})
            coordinator = one.consumer._consumer._coordinator
            for membership, message in (
                (old, "the group has moved on"),
                (old._replace(member_id="somebody"), "the group has moved on"),
                (Membership(), "not a member now"),
            ):
                with pytest.raises(CommitFenced, match=message):
                    await commit_offsets(coordinator, membership, {lost: CommitOffset(9)}, 5)
            assert await two.consumer.committed([T0, T1]) == {
                T0: CommitOffset(5),
                T1: CommitOffset(6),
            }


@pytest.mark.parametrize("name", [None, "one"])
async def test_a_member_that_joins_anew_leaves_its_unanswered_commits_behind(
    broker: Broker, consume: Consume, name: str | None
) -> None:
    async with consume(heartbeat_interval=0.1, group_instance_id=name) as member:
        for round_ in range(4):  # two processes with one name would be an error after three
            del member.calls[:]
            await member.until_assigned(lambda p: p == {T0})
            assert not member.consumer.has_unanswered_commit
            broker.faults.add(Fault(api="OffsetCommit", times=1, lose_response=True))
            await member.consumer.commit({T0: CommitOffset(round_)})
            assert member.consumer.has_unanswered_commit
            coordinator: Any = member.consumer._consumer._coordinator
            before = Membership(member.consumer.generation, member.consumer.member_id)
            member.partitions = frozenset()
            await member.consumer.join_anew()
            await member.until_assigned(lambda p: p == {T0})
            assert member.consumer.member_id != before.member_id
            with pytest.raises(CommitFenced):
                await commit_offsets(coordinator, before, {T0: CommitOffset(99)}, 5)
            assert await member.consumer.committed([T0]) == {T0: CommitOffset(round_)}


async def test_a_commit_that_was_never_sent_is_not_unanswered(
    broker: Broker, consume: Consume
) -> None:
    async with consume(heartbeat_interval=0.1) as member:
        await member.until_assigned(lambda p: p == {T0})
        broker.faults.add(Fault(api="OffsetCommit", times=2, error="COORDINATOR_NOT_AVAILABLE"))
        broker.faults.add(Fault(api="FindCoordinator", times=1, error="COORDINATOR_NOT_AVAILABLE"))
        await member.consumer.commit({T0: CommitOffset(1)})
        assert not member.consumer.has_unanswered_commit


async def test_a_removed_member_is_fenced_and_joins_again(
    consume: Consume, produce: Produce
) -> None:
    await produce("t", numbers(3))
    async with consume(heartbeat_interval=0.2) as member:
        await member.read(3)
        old = member.consumer.member_id
        consumer: Any = member.consumer._consumer
        await consumer._client.send(
            consumer._coordinator.coordinator_id, LeaveGroupRequest("g", old)
        )
        with pytest.raises(CommitFenced, match="the group has moved on"):
            await member.consumer.commit({T0: CommitOffset(3)})
        del member.calls[:]
        assert values(await member.read(3)) == numbers(3)  # nothing was committed
        assert member.calls == [("revoked", {T0}), ("assigned", {T0})]
        assert member.consumer.member_id != old
        await member.consumer.commit({T0: CommitOffset(3)})


async def test_a_commit_without_an_answer_fails_in_time(consume: Consume, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        settings = BrokerSettings(data_dir=tmp_path / "other", port=0)
        async with Broker(settings) as other:
            options = {"bootstrap_servers": other.bootstrap_servers, "commit_timeout": 0.5}
            member = await stack.enter_async_context(consume(**options))
            await member.until_assigned(lambda p: p == {T0})
        with pytest.raises(ConsumerError, match=r"group g: commit not acknowledged in 0\.5 s: .+"):
            await member.consumer.commit({T0: CommitOffset(1)})


async def test_reading_and_committing_survive_a_restart_of_the_broker(
    consume: Consume, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        settings = BrokerSettings(data_dir=tmp_path / "other", port=free_port())
        async with Broker(settings) as other:
            servers = other.bootstrap_servers
            await send(servers, numbers(5))
            member = await stack.enter_async_context(consume(bootstrap_servers=servers))
            assert values(await member.read(5)) == numbers(5)
            await member.consumer.commit({T0: CommitOffset(5)})
        async with Broker(settings):
            await send(servers, numbers(5, 9))
            assert values(await member.read(4)) == numbers(5, 9)
            while True:
                with contextlib.suppress(CommitFenced):  # until it has joined again
                    await member.consumer.commit({T0: CommitOffset(9)})
                    break
                await anyio.sleep(0.05)
            assert await member.consumer.committed([T0]) == {T0: CommitOffset(9)}
            await member.consumer.stop()


async def send(servers: str, records: Iterable[bytes | None]) -> None:
    async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
        for record in records:
            await producer.send("t", record)


async def test_a_consumer_whose_password_has_changed_is_silent_and_says_who_refuses_it(
    tmp_path: Path,
) -> None:
    users = tmp_path / "users.json"
    write_users(users, {"ada": make_user("secret")})
    kept: dict[str, Any] = {"data_dir": tmp_path / "data", "users_file": users}
    async with AsyncExitStack() as stack:
        settings = BrokerSettings(port=free_port(), **kept)
        async with Broker(settings) as first:
            config = consumer_config(
                bootstrap_servers=first.bootstrap_servers,
                security_protocol="SASL_PLAINTEXT",
                sasl_username="ada",
                sasl_password="secret",
                heartbeat_interval=0.1,
            )
            options = config.client_options()
            del options["metadata_max_age_ms"]
            admin = AIOKafkaAdminClient(**options)
            await admin.start()
            await admin.create_topics([NewTopic("t", 1, 1)])
            await admin.close()
            consumer = KafkaConsumer(config)
            member = Member(consumer)
            await consumer.start(member)
            stack.push_async_callback(consumer.stop)
            await member.until_assigned(bool)
            assert consumer.silent is None
        with pytest.raises(BrokerUnavailable):
            await consumer.reach()
        write_users(users, {"ada": make_user("another")})
        async with Broker(settings):
            with anyio.fail_after(60):
                while consumer.silent is None:  # noqa: ASYNC110  until the next heartbeat
                    await anyio.sleep(0.02)
            with pytest.raises(ConsumerError, match=r"credentials of 'ada': .* wrong user"):
                await consumer.reach()


async def until_refused(consumer: KafkaConsumer) -> None:
    while True:
        await consumer.reach()


async def test_a_consumer_whose_password_changes_before_it_joins_is_silent(tmp_path: Path) -> None:
    users = tmp_path / "users.json"
    write_users(users, {"ada": make_user("secret")})
    settings = BrokerSettings(data_dir=tmp_path / "data", port=0, users_file=users)
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(Broker(settings))
        await broker.topics.create("t", 1)
        consumer = KafkaConsumer(
            consumer_config(
                bootstrap_servers=broker.bootstrap_servers,
                security_protocol="SASL_PLAINTEXT",
                sasl_username="ada",
                sasl_password="secret",
            )
        )

        async def change_the_password() -> None:
            write_users(users, {"ada": make_user("another")})
            with pytest.raises(ConsumerError, match="wrong user"):
                await until_refused(consumer)

        await consumer.start(Member(consumer), change_the_password)
        stack.push_async_callback(consumer.stop)
        await anyio.sleep(0.5)  # the coordinator's connection is refused, again and again
        assert consumer.silent == "group g: its coordinator does not answer"


@pytest.mark.parametrize(
    ("revoked", "said"),
    [
        ("topics", "group g: we are not allowed to read topic t: it needs READ of the topic"),
        ("groups", "group g: we are not allowed to be a member: it needs READ of the group"),
    ],
)
async def test_a_right_that_is_revoked_while_a_member_reads_is_named(
    tmp_path: Path, revoked: str, said: str
) -> None:
    rules = tmp_path / "acls.json"
    everyone: dict[str, Any] = {"principal": "User:ANONYMOUS", "operations": (Operation.ALL,)}
    rights = {
        "topics": Rule(topics=("*",), **everyone),
        "groups": Rule(groups=("*",), **everyone),
    }
    write_rules(rules, list(rights.values()))
    settings = BrokerSettings(data_dir=tmp_path / "data", port=0, acl_file=rules)
    async with Broker(settings) as broker:
        await broker.topics.create("t", 1)
        member = Member(
            KafkaConsumer(
                consumer_config(bootstrap_servers=broker.bootstrap_servers, heartbeat_interval=0.1)
            )
        )
        await member.consumer.start(member)
        try:
            await member.until_assigned(bool)
            write_rules(rules, [rights[each] for each in rights if each != revoked])
            with anyio.fail_after(20), pytest.raises(ConsumerError, match=said):
                await member.consumer.poll()
        finally:
            await member.consumer.stop()


async def test_a_consumer_says_that_the_certificates_on_the_disk_are_newer_than_its_own(
    tmp_path: Path, certificates: Any
) -> None:
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(certificates.authority.read_bytes())
    settings = BrokerSettings(
        data_dir=tmp_path / "data",
        port=0,
        tls_certificate=certificates.certificate,
        tls_key=certificates.key,
    )
    async with Broker(settings) as broker:
        await broker.topics.create("t", 1)
        config = consumer_config(
            bootstrap_servers=broker.bootstrap_servers,
            security_protocol="SSL",
            ssl_cafile=str(trusted),
        )
        consumer = KafkaConsumer(config)
        await consumer.start(Silent())
        try:
            await consumer.reach()
            trusted.write_bytes(certificates.authority.with_name("stranger.pem").read_bytes())
            await consumer.reach()  # by the certificates of the start
            consumer._options = config.client_options()
            with pytest.raises(ConsumerError, match="certificate that is not accepted"):
                await consumer.reach()
            trusted.write_bytes(certificates.authority.read_bytes())
            with pytest.raises(
                ConsumerError, match=r"those that the same files have now are .*pem"
            ):
                await consumer.reach()
        finally:
            await consumer.stop()


async def test_a_consumer_stops_at_once_and_only_once(consume: Consume) -> None:
    async with consume() as member:
        await member.until_assigned(bool)
        async with anyio.create_task_group() as tasks:

            async def poll() -> None:
                with pytest.raises(ConsumerError, match="the consumer is stopped"):
                    await member.consumer.poll()

            tasks.start_soon(poll)
            await anyio.wait_all_tasks_blocked()
            await member.consumer.stop()
            await member.consumer.stop()
        assert (member.consumer.generation, member.consumer.member_id) == (-1, "")
        member.consumer.pause([T0])
        member.consumer.resume([T0])
        assert member.consumer.end_offset(T0) is member.consumer.start_offset(T0) is None
        with pytest.raises(ConsumerError, match="the consumer is stopped"):
            await member.consumer.commit({T0: CommitOffset(1)})


async def test_stopping_in_the_middle_of_a_rebalance_does_not_wait_for_it(consume: Consume) -> None:
    async with consume(heartbeat_interval=0.1) as slow:
        await slow.until_assigned(bool)
        entered, done = anyio.Event(), anyio.Event()

        async def wait() -> None:
            entered.set()
            await done.wait()

        slow.on_revoked = wait
        async with consume(stop_timeout=0.5) as joining:
            await entered.wait()
            with anyio.fail_after(60):
                await joining.consumer.stop()
        done.set()
        await slow.until_assigned(lambda p: len(slow.calls) >= 4 and p == {T0})


async def test_nothing_is_lost_or_doubled_while_members_come_and_go(
    consume: Consume, produce: Produce, create_topic: CreateTopic
) -> None:
    """Each member commits its position when its partitions are revoked."""
    await create_topic("t", 5)
    total, changes = 3000, 20
    seen: list[tuple[int, bytes]] = []
    done = anyio.Event()

    async def live(*, task_status: TaskStatus[anyio.CancelScope]) -> None:
        positions: dict[TopicPartition, CommitOffset] = {}
        async with consume(heartbeat_interval=0.05, fetch_max_wait=0.02) as member:

            async def let_go() -> None:
                await member.consumer.commit(positions)
                positions.clear()

            member.on_revoked = let_go
            with anyio.CancelScope() as scope:
                task_status.started(scope)
                while True:
                    for batch in await member.consumer.poll():
                        positions[batch.topic_partition] = CommitOffset(batch.last + 1)
                        seen.extend((batch.partition, v) for v in values([batch]) if v)
                        if len(seen) >= total:
                            done.set()
            while positions:  # refused only while the group changes: then `let_go` does it
                with contextlib.suppress(CommitFenced):
                    await let_go()
                await anyio.sleep(0.02)

    async def feed() -> None:
        for n in range(total // 10):
            await produce("t", numbers(n * 10, n * 10 + 10), n % 5)
            await anyio.sleep(0.005)

    async with anyio.create_task_group() as tasks:
        members = [await tasks.start(live)]
        tasks.start_soon(feed)
        for change in range(changes):
            if len(members) < 3 and change % 3:
                members.append(await tasks.start(live))
            else:
                members.append(await tasks.start(live))
                members.pop(0).cancel()
            await anyio.sleep(0.1)
        await done.wait()
        for scope in members:
            scope.cancel()
    assert sorted(seen, key=lambda one: int(one[1])) == [
        (n // 10 % 5, b"%d" % n) for n in range(total)
    ]


async def test_a_session_timeout_that_the_broker_refuses_is_an_error(consume: Consume) -> None:
    async with consume(session_timeout=0.5, heartbeat_interval=0.1) as member:
        with pytest.raises(
            ConsumerError, match=r"refuse session_timeout=0\.5: it must be from 6 s"
        ):
            await member.consumer.poll()


async def test_a_static_member_comes_back_without_a_rebalance(
    consume: Consume, create_topic: CreateTopic
) -> None:
    await create_topic("t", 2)
    async with consume(heartbeat_interval=0.1) as other:
        async with consume(group_instance_id="one", heartbeat_interval=0.1) as member:
            await other.until_assigned(lambda p: len(p) == 1)
            await member.until_assigned(bool)
            held, generation = member.partitions, member.consumer.generation
        async with consume(group_instance_id="one", heartbeat_interval=0.1) as member:
            await member.until_assigned(bool)
            assert member.partitions == held
            assert other.consumer.generation == generation


async def test_a_member_goes_on_and_commits_when_its_group_refuses_the_other_protocol(
    broker: Broker, consume: Consume, create_topic: CreateTopic
) -> None:
    await create_topic("t", 2)
    async with consume(heartbeat_interval=0.1) as member:
        await member.until_assigned(lambda p: len(p) == 2)
        generation, calls = member.consumer.generation, list(member.calls)
        servers = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "log_level": 0}
        other = ck.Consumer(servers | {"group.protocol": "consumer"})
        try:
            other.subscribe(["t"])
            refused = None
            while refused is None:
                refused = await anyio.to_thread.run_sync(other.poll, 0.05)
        finally:
            await anyio.to_thread.run_sync(other.close)
        error = refused.error()
        assert error is not None
        assert "The group id does not exist" in error.str()
        await member.consumer.commit({T0: CommitOffset(5), T1: CommitOffset(6)})
        assert await member.consumer.committed([T0]) == {T0: CommitOffset(5)}
        assert (member.consumer.generation, member.calls) == (generation, calls)


async def test_two_processes_with_one_static_name_end_instead_of_putting_each_other_out_for_ever(
    consume: Consume, create_topic: CreateTopic
) -> None:
    await create_topic("t", 1)
    ended: list[str] = []
    name = {"group_instance_id": "one", "heartbeat_interval": 0.1}
    async with consume(**name) as first, consume(**name) as second:

        async def poll(member: Any) -> None:
            try:
                while True:
                    await member.consumer.poll()
            except ConsumerError as error:
                ended.append(str(error))
            tasks.cancel_scope.cancel()

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(poll, first)
                tasks.start_soon(poll, second)
    (message,) = ended
    assert message.startswith(
        "group g: another process has the group_instance_id one too, and each"
    )


@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup"])
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("FENCED_INSTANCE_ID", "another process has the group_instance_id one too"),
        ("GROUP_MAX_SIZE_REACHED", "the group has as many members as the broker allows"),
    ],
)
async def test_a_refusal_that_aiokafka_does_not_know_is_told_with_its_reason(
    broker: Broker, consume: Consume, api: str, error: str, reason: str
) -> None:
    broker.faults.add(Fault(api=api, error=error))
    async with consume(group_instance_id="one") as member:
        with pytest.raises(ConsumerError, match=f"^group g: {reason}"):
            await member.consumer.poll()


async def test_a_static_member_that_is_not_expected_back_leaves(
    consume: Consume, create_topic: CreateTopic
) -> None:
    await create_topic("t", 2)
    async with consume(heartbeat_interval=0.1) as other:
        async with consume(group_instance_id="one", heartbeat_interval=0.1) as member:
            await other.until_assigned(lambda p: len(p) == 1)
            await member.consumer.stop(leave=True)
        await other.until_assigned(lambda p: len(p) == 2)


@pytest.mark.slow
async def test_heartbeats_go_on_while_a_listener_takes_longer_than_the_session(
    consume: Consume, create_topic: CreateTopic
) -> None:
    await create_topic("t", 2)
    timing = {"session_timeout": 6.0, "heartbeat_interval": 0.5, "rebalance_timeout": 30.0}
    async with consume(**timing) as one:
        await one.until_assigned(lambda p: len(p) == 2)
        member_id = one.consumer.member_id

        async def linger() -> None:
            await anyio.sleep(8)
            await one.consumer.commit({T0: CommitOffset(1)})

        one.on_revoked = linger
        async with consume(**timing) as two:
            await one.until_assigned(lambda p: len(p) == 1)
            await two.until_assigned(bool)
        assert one.consumer.member_id == member_id
        assert (await one.consumer.committed([T0]))[T0] == CommitOffset(1)
