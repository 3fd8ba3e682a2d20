"""What a redirected strategy writes to, and that its rows name their records."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from kmr.chaos import redirect as module
from kmr.chaos.redirect import SOURCE, Places, redirect, source_of
from kmr.loading import load_strategy
from kmr.record import Range, Rows
from kmr.sinks import ClickHouseWriter, KafkaWriter, ParquetWriter
from tests.framework.chaos.strategies import CHAIN, LOSING, ORDERS, STREAM, TOPIC, LosingWriter

if TYPE_CHECKING:
    from kmr import Strategy

PLACES = Places(clickhouse="http://127.0.0.1:1", files="/files")


def rows(*ranges: Range, offsets: list[int] | None, count: int = 2) -> Rows:
    made = None if offsets is None else np.array(offsets, np.int64)
    return Rows(pa.table({"n": list(range(count))}), ranges, made)


def last(strategy: Strategy) -> ClickHouseWriter | KafkaWriter | ParquetWriter:
    found = strategy.reducers[-1]
    assert isinstance(found, ClickHouseWriter | KafkaWriter | ParquetWriter)
    return found


def test_a_row_names_its_record_or_the_ranges_of_its_flush() -> None:
    one = rows(Range("t", 3, 5, 9, 0), offsets=[5, 9])
    assert source_of(one) == ["t:3:5", "t:3:9"]
    many = rows(Range("a:b", 0, 5, 9, 0), Range("t", 1, 0, 0, 0), offsets=None)
    assert source_of(many) == ["a:b:0:5-9,t:1:0-0#0", "a:b:0:5-9,t:1:0-0#1"]


def test_no_sink_of_the_user_is_written_to() -> None:
    clickhouse = last(redirect(ORDERS, PLACES).strategy)
    assert isinstance(clickhouse, ClickHouseWriter)
    assert (clickhouse.url, clickhouse.table) == ("http://127.0.0.1:1", "chaos")
    assert isinstance(clickhouse.create, pa.Schema)
    assert clickhouse.create.names == ["customer", "amount", SOURCE]
    files = last(redirect(LOSING, PLACES).strategy)
    assert isinstance(files, LosingWriter)
    assert files.url == "/files"
    topic = last(redirect(TOPIC, PLACES).strategy)
    assert isinstance(topic, KafkaWriter)
    assert (topic.topic, topic.bootstrap_servers) == ("chaos-rows", None)
    assert topic.headers == {SOURCE: SOURCE}
    errors = redirect(ORDERS, PLACES).strategy.reduce_err
    assert isinstance(errors, KafkaWriter)
    assert errors.topic == "chaos-errors"


def test_the_users_own_strategy_stays_as_it_is() -> None:
    redirect(ORDERS, PLACES)
    writer = last(ORDERS)
    assert isinstance(writer, ClickHouseWriter)
    assert writer.url == "http://nowhere.invalid:8123/shop"
    assert writer.create is True


def test_a_sink_that_cannot_be_redirected_is_replaced_and_it_is_said() -> None:
    found = redirect(STREAM, PLACES)
    assert found.sink == "kafka"
    assert isinstance(last(found.strategy), KafkaWriter)
    assert last(found.strategy).max_rows == 7
    assert "its own code did not run" in found.notes[0]
    assert found.strategy.reduce_err is None


def test_rows_are_named_also_when_the_strategy_was_pickled() -> None:
    changed = redirect(CHAIN, PLACES).strategy
    changed.validate()
    for strategy in (changed, pickle.loads(pickle.dumps(changed))):
        writer = copy.deepcopy(last(strategy))
        assert isinstance(writer, ClickHouseWriter)
        writer.add(rows(Range("t", 0, 0, 1, 0), offsets=[0, 1]))
        assert writer.rows[0].table.column(SOURCE).to_pylist() == ["t:0:0", "t:0:1"]
        assert strategy.reducers[0].max_age == 0.5


def test_a_worker_finds_the_strategy_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in PLACES.environment("tests.framework.chaos.strategies:TOPIC").items():
        monkeypatch.setenv(name, value)
    strategy = load_strategy("kmr.chaos.redirect")
    assert isinstance(last(strategy), KafkaWriter)
    assert last(strategy).max_age == 0.5
    with pytest.raises(AttributeError):
        module.other  # noqa: B018
