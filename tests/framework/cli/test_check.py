"""`kmr check` on tables with gaps and doubles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import clickhouse_connect
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from framework.cli.check import app, check, show
from framework.errors import SinkError, StrategyError

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

FillTable = Callable[..., str]


@pytest.fixture
def client(clickhouse_url: str) -> Iterator[Client]:
    with clickhouse_connect.get_client(dsn=clickhouse_url, autogenerate_session_id=False) as client:
        yield client


@pytest.fixture
def fill(client: Client) -> Iterator[FillTable]:
    """Makes a table that holds what is given, dropped after the test."""
    names: list[str] = []

    def fill(columns: str, *values: tuple[object, ...]) -> str:
        name = f"check_{len(names)}"
        client.command(
            f"CREATE OR REPLACE TABLE {name} ({columns}) ENGINE = MergeTree ORDER BY tuple()"
        )
        names.append(name)
        if values:
            client.insert(name, [list(row) for row in values])
        return name

    yield fill
    for name in names:
        client.command(f"DROP TABLE IF EXISTS {name}")


PLAIN = "`partition` UInt32, `offset` UInt64"


def test_a_whole_delivery_is_clean(clickhouse_url: str, fill: FillTable) -> None:
    table = fill(PLAIN, (0, 5), (0, 6), (0, 7), (1, 0))
    result = check(url=clickhouse_url, table=table)
    assert result.clean
    assert (result.messages, result.missing, result.doubled) == (4, 0, 0)
    assert [(p.partition, p.first, p.last) for p in result.partitions] == [(0, 5, 7), (1, 0, 0)]


def test_gaps_are_missing_and_repetitions_are_doubled(clickhouse_url: str, fill: FillTable) -> None:
    table = fill(PLAIN, (0, 1), (0, 4), (0, 4), (0, 4), (1, 7), (1, 7), (1, 8))
    result = check(url=clickhouse_url, table=table)
    assert not result.clean
    zero, one = result.partitions
    assert (zero.missing, zero.doubled, zero.surplus, zero.example) == (2, 1, 2, 4)
    assert (one.missing, one.doubled, one.surplus, one.example) == (0, 1, 1, 7)
    assert (result.deliveries, result.messages, result.missing, result.doubled) == (7, 4, 2, 2)


def test_topics_are_told_apart(clickhouse_url: str, fill: FillTable) -> None:
    table = fill("`topic` String, " + PLAIN, ("a", 0, 1), ("b", 0, 1), ("b", 0, 3))
    result = check(url=clickhouse_url, table=table)
    assert [(p.topic, p.missing) for p in result.partitions] == [("a", 0), ("b", 1)]
    assert result.doubled == 0


def test_columns_may_have_other_names(clickhouse_url: str, fill: FillTable) -> None:
    table = fill("`t x` String, `p` Int32, `kafka offset` Int64", ("a", 0, 1), ("b", 0, 3))
    found = partial(
        check,
        url=clickhouse_url,
        table=table,
        partition_column="p",
        offset_column="kafka offset",
    )
    assert found().missing == 1
    assert found(topic_column="t x").clean


def test_what_is_expected_shows_what_is_missing_at_the_ends(
    clickhouse_url: str, fill: FillTable
) -> None:
    table = fill(PLAIN, (0, 1), (0, 2))
    assert check(url=clickhouse_url, table=table, expected=2).clean
    assert check(url=clickhouse_url, table=table, expected=5).missing == 3
    assert not check(url=clickhouse_url, table=table, expected=1).clean
    empty = fill(PLAIN)
    assert check(url=clickhouse_url, table=empty).clean
    assert not check(url=clickhouse_url, table=empty, expected=1).clean


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), max_size=40))
def test_the_counts_are_those_of_a_naive_count(
    clickhouse_url: str, fill: FillTable, deliveries: list[tuple[int, int]]
) -> None:
    result = check(url=clickhouse_url, table=fill(PLAIN, *deliveries))
    partitions = {partition for partition, _ in deliveries}
    offsets = {p: [offset for q, offset in deliveries if p == q] for p in partitions}
    assert result.missing == sum(max(o) - min(o) + 1 - len(set(o)) for o in offsets.values())
    assert result.doubled == len({d for d in deliveries if deliveries.count(d) > 1})
    assert result.messages == len(set(deliveries))


@pytest.mark.parametrize(
    ("values", "code", "verdict"),
    [
        ([(0, 1), (0, 2)], 0, "2 messages: 0 missing, 0 doubled"),
        ([(0, 1), (0, 3), (0, 3)], 1, "2 messages: 1 missing, 1 doubled"),
    ],
)
def test_the_exit_code_says_whether_something_was_found(
    clickhouse_url: str,
    fill: FillTable,
    capsys: pytest.CaptureFixture[str],
    values: list[tuple[int, int]],
    code: int,
    verdict: str,
) -> None:
    arguments = ["--url", clickhouse_url, "--table", fill(PLAIN, *values)]
    assert app(arguments, exit_on_error=False, result_action="return_value") == code
    assert verdict in capsys.readouterr().out


def test_what_is_shown_names_an_offset_to_look_at(clickhouse_url: str, fill: FillTable) -> None:
    table = fill("`topic` String, " + PLAIN, ("flights", 3, 7), ("flights", 3, 7))
    console = Console(record=True, width=120, color_system=None)
    show(check(url=clickhouse_url, table=table, expected=1), console)
    text = console.export_text()
    assert "flights" in text
    assert "1 (offset 7, ...)" in text
    assert "1 messages of 1 expected: 0 missing, 1 doubled" in text


def test_a_table_or_column_or_server_that_is_not_there_is_one_clear_line(
    clickhouse_url: str, fill: FillTable
) -> None:
    with pytest.raises(SinkError, match=r"has no table default\.nowhere$"):
        check(url=clickhouse_url, table="nowhere")
    with pytest.raises(SinkError, match="has no column offset, but a"):
        check(url=clickhouse_url, table=fill("`a` UInt8, `partition` UInt8"))
    with pytest.raises(
        SinkError, match=r"http://127\.0\.0\.1:1 does not answer: Connection refused$"
    ):
        check(url="http://user:secret@127.0.0.1:1", table="t")
    with pytest.raises(SinkError, match="no ClickHouse directory /nowhere"):
        check(url="chdb:///nowhere", table="t")
    with pytest.raises(StrategyError, match="ClickHouse URL"):
        check(url="kafka://host", table="t")
