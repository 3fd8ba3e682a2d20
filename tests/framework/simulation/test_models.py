"""The models beside the real things: the same random operations on both, the same answers."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, Final, cast

import clickhouse_connect
from aiokafka.errors import KafkaError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from kmr.broker import Broker, BrokerSettings
from kmr.broker.log.records import NewRecord, build_batch
from kmr.errors import CommitFenced
from kmr.kafka.consumer import CommitOffset
from kmr.kafka.group_offsets import Membership
from kmr.record import TopicPartition
from kmr.simulation.clickhouse import ModelTable
from kmr.simulation.group import Offsets
from kmr.simulation.log import LogRange
from kmr.simulation.transactions import Coordinator
from tests.broker.apis.transactions.conftest import Fetched, Wire
from tests.broker.coordinators.conftest import GroupBench
from tests.broker.raw_client import RawClient
from tests.examples import examples

if TYPE_CHECKING:
    from pathlib import Path

    from clickhouse_connect.driver.client import Client

    from kmr.broker.coordinators.groups.group_types import JoinResult
    from kmr.broker.log.producers import ProducerIdentity

WINDOW: Final = 3
_tables = itertools.count()

inserts = st.tuples(
    st.just("insert"), st.integers(0, 5), st.integers(0, 1), st.integers(0, 9), st.integers(1, 4)
)
counts = st.tuples(st.just("count"), st.integers(0, 1), st.integers(0, 9), st.integers(0, 9))


def test_the_model_of_clickhouse_answers_as_clickhouse_does(clickhouse_url: str) -> None:
    client = clickhouse_connect.get_client(dsn=clickhouse_url)

    @settings(max_examples=examples(24), deadline=None)
    @given(st.lists(st.one_of(inserts, counts), max_size=10))
    def answers_alike(operations: list[tuple[Any, ...]]) -> None:
        _compare_tables(client, operations)

    answers_alike()
    client.close()


def _compare_tables(client: Client, operations: list[tuple[Any, ...]]) -> None:
    table = f"model_{next(_tables)}"
    client.command(
        f"CREATE TABLE {table} (topic String, partition Int64, offset Int64) ENGINE = MergeTree "
        f"ORDER BY offset SETTINGS non_replicated_deduplication_window = {WINDOW}"
    )
    model = ModelTable({"topic": "String", "partition": "Int64", "offset": "Int64"}, WINDOW)
    for operation in [*operations, ("count", 0, 0, 20), ("count", 1, 0, 20)]:
        match operation:
            case "insert", token, partition, first, rows:
                offsets = range(first, first + rows)
                client.insert(
                    table,
                    [["t", partition, offset] for offset in offsets],
                    ["topic", "partition", "offset"],
                    settings={"insert_deduplication_token": f"t{token}", "async_insert": 0},
                )
                made = [{"topic": "t", "partition": partition, "offset": o} for o in offsets]
                model.insert(f"t{token}", made)
            case "count", partition, first, more:
                sql = (
                    f"SELECT count() FROM {table} WHERE topic = 't' AND partition = {partition} "
                    f"AND offset BETWEEN {first} AND {first + more}"
                )
                found = client.query(sql).result_rows[0][0]
                assert found == model.count("t", partition, [(first, first + more)])
    client.command(f"DROP TABLE {table}")


AT: Final = TopicPartition("t", 0)
ANY_MEMBER: Final = cast("Any", None)
ONE_ROW: Final = cast("Any", "a row")


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("enter"), st.just(0)),
            st.tuples(st.just("leave"), st.integers(0, 3)),
            st.tuples(st.just("commit"), st.integers(0, 5)),
        ),
        max_size=25,
    )
)
def test_the_model_of_the_group_accepts_the_commits_that_the_broker_accepts(
    operations: list[tuple[str, int]],
) -> None:
    bench, model = GroupBench(), Offsets()
    members: list[JoinResult] = []
    known: list[JoinResult] = []  # every membership that there ever was
    for number, (operation, which) in enumerate(operations):
        match operation:
            case "enter":
                joins = [bench.join(), *(bench.join(member.member_id) for member in members)]
                members = bench.rebalanced(*joins)
                model.members = {member.member_id for member in members}
                model.generation += 1
                assert {member.generation for member in members} == {model.generation}
                known += members
            case "leave" if which < len(members):
                left = members.pop(which)
                bench.leave(left.member_id)
                model.members.discard(left.member_id)
                if not members:
                    model.generation += 1  # the empty generation
            case "commit" if known:
                sender = known[-1 - which % len(known)]
                accepted = bench.commit(sender) is None
                try:
                    model.commit(sender.member_id, sender.generation, {AT: CommitOffset(number)})
                except CommitFenced:
                    assert not accepted
                else:
                    assert accepted
                    assert model.committed[AT] == CommitOffset(number)


@settings(
    max_examples=examples(90),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["init", "send", "offsets", "commit", "commit"]),
            st.sampled_from([0, 0, 0, 1]),
        ),
        min_size=4,
        max_size=14,
    )
)
def test_the_model_of_transactions_accepts_and_shows_what_the_broker_does(
    tmp_path: Path, operations: list[tuple[str, int]]
) -> None:
    asyncio.run(_compare_transactions(tmp_path / f"broker-{next(_tables)}", operations))


async def _compare_transactions(data: Path, operations: list[tuple[str, int]]) -> None:
    offsets, seen = Offsets(), list[object]()
    offsets.members, offsets.generation = {""}, -1  # an outside client's, which any group accepts
    model = Coordinator(offsets, on_rows=lambda _member, rows: seen.extend(rows))
    producers: list[tuple[ProducerIdentity, int]] = []  # with the model's epochs
    sent: dict[ProducerIdentity, int] = defaultdict(int)
    async with Broker(BrokerSettings(data_dir=data, port=0)) as broker:
        await broker.topics.create("t", 1)
        raw = await RawClient.connect(broker.bootstrap_servers)
        wire = Wire(raw)
        for number, (operation, back) in enumerate([("init", 0), *operations]):
            if operation == "init":
                producers.append((await wire.begin(), model.init("x")))
            else:
                producer, epoch = producers[max(0, len(producers) - 1 - back)]
                accepted = await _broker_accepts(wire, producer, operation, number, sent)
                assert _model_accepts(model, epoch, operation, number) is accepted
        error, committed = await wire.committed(stable=True)
        assert (error is ErrorCode.none) is offsets.are_stable([AT])
        if error is ErrorCode.none:
            assert committed == offsets.committed.get(AT, CommitOffset(-1)).offset
        assert _rows_seen(await wire.fetch(committed=True)) == len(seen)
        await raw.close()


@settings(
    max_examples=examples(75),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(
        st.tuples(st.sampled_from(["append", "append", "remove", "read"]), st.integers(0, 5)),
        min_size=8,
        max_size=20,
    )
)
def test_the_model_of_a_log_can_be_read_where_the_broker_can_after_records_were_removed(
    tmp_path: Path, operations: list[tuple[str, int]]
) -> None:
    asyncio.run(_compare_logs(tmp_path / f"broker-{next(_tables)}", operations))


async def _compare_logs(data: Path, operations: list[tuple[str, int]]) -> None:
    model = LogRange()
    record = bytes(build_batch([NewRecord(None, b"v", (), 1_700_000_000_000)]))
    async with Broker(BrokerSettings(data_dir=data, port=0)) as broker:
        await broker.topics.create("t", 1)
        raw = await RawClient.connect(broker.bootstrap_servers)
        for operation, number in operations:
            at = {"partition_index": 0, "offset": number}
            match operation:
                case "append":
                    sent = {"index": 0, "records": record}
                    topics = [{"name": "t", "partition_data": [sent]}]
                    await raw.call(0, 8, acks=-1, topic_data=topics)
                    model.end += 1
                case "remove":
                    topics = [{"name": "t", "partitions": [at]}]
                    answer = (await raw.call(21, 2, topics=topics)).topics[0].partitions[0]
                    removed = model.remove_before(number)
                    assert (answer.error_code is ErrorCode.none) is removed
                    if removed:
                        assert answer.low_watermark == model.start
                case "read":
                    models = {"partition": 0, "fetch_offset": number, "partition_max_bytes": 1000}
                    topics = [{"topic": "t", "partitions": [models]}]
                    response = await raw.call(1, 11, max_bytes=1000, topics=topics)
                    answer = response.responses[0].partitions[0]
                    assert model.has_position(number) is (answer.error_code is ErrorCode.none)
                    if model.has_position(number):
                        assert answer.log_start_offset == model.start
                        assert bool(answer.records) is model.has_records_from(number)
                    else:
                        assert answer.error_code is ErrorCode.offset_out_of_range
        await raw.close()


def _model_accepts(model: Coordinator, epoch: int, operation: str, number: int) -> bool:
    try:
        match operation:
            case "send":
                model.send("x", epoch, ANY_MEMBER, [ONE_ROW])
            case "offsets":
                model.add_offsets("x", epoch, Membership(), {AT: CommitOffset(number)})
            case "commit":
                model.commit("x", epoch)
    except KafkaError:
        return False
    return True


async def _broker_accepts(
    wire: Wire,
    producer: ProducerIdentity,
    operation: str,
    number: int,
    sent: dict[ProducerIdentity, int],
) -> bool:
    match operation:
        case "send" if accepted := await wire.add(producer) == {ErrorCode.none}:
            assert await wire.produce(producer, sent[producer]) is ErrorCode.none
            sent[producer] += 1
        case "offsets" if accepted := await wire.add_offsets(producer) is ErrorCode.none:
            assert await wire.commit_offsets(producer, number) is ErrorCode.none
        case "commit":
            accepted = await wire.end(producer, commit=True) is ErrorCode.none
    return accepted


def _rows_seen(fetched: Fetched) -> int:
    """Count the batches that are left to a reader of committed ones; each has one record."""
    aborted, aborting, count = (
        deque(sorted(fetched.aborted or [], key=lambda each: each[1])),
        False,
        0,
    )
    for base_offset, _, is_control in fetched.batches:
        if is_control:
            aborting = False
            continue
        if aborted and aborted[0][1] <= base_offset:
            aborted.popleft()
            aborting = True
        count += not aborting
    return count
