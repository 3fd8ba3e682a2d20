"""The models beside the real things: the same random operations on both, the same answers."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import clickhouse_connect
from hypothesis import given, settings
from hypothesis import strategies as st

from kmr.errors import CommitFenced
from kmr.kafka.consumer import CommitOffset
from kmr.record import TopicPartition
from kmr.simulation.clickhouse import ModelTable
from kmr.simulation.group import Offsets
from tests.broker.coordinators.conftest import GroupBench
from tests.examples import examples

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from kmr.broker.coordinators.group_types import JoinResult

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
        f"CREATE TABLE {table} (partition Int64, offset Int64) ENGINE = MergeTree ORDER BY offset "
        f"SETTINGS non_replicated_deduplication_window = {WINDOW}"
    )
    model = ModelTable({"partition": "Int64", "offset": "Int64"}, WINDOW)
    for operation in [*operations, ("count", 0, 0, 20), ("count", 1, 0, 20)]:
        match operation:
            case "insert", token, partition, first, rows:
                offsets = range(first, first + rows)
                client.insert(
                    table,
                    [[partition, offset] for offset in offsets],
                    ["partition", "offset"],
                    settings={"insert_deduplication_token": f"t{token}", "async_insert": 0},
                )
                model.insert(f"t{token}", [{"partition": partition, "offset": o} for o in offsets])
            case "count", partition, first, more:
                sql = (
                    f"SELECT count() FROM {table} WHERE partition = {partition} "
                    f"AND offset BETWEEN {first} AND {first + more}"
                )
                found = client.query(sql).result_rows[0][0]
                assert found == model.count(partition, [(first, first + more)])
    client.command(f"DROP TABLE {table}")


AT: Final = TopicPartition("t", 0)


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
