"""Strategies: parts that do not fit together are refused when the strategy is made."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from kmr import Aggregate, ErrorLimit, Strategy, TopicMap
from kmr.delivery.failures import FAILED_SCHEMA
from kmr.errors import StrategyError
from kmr.kafka.subscription import Subscription
from kmr.mapping.functions import map_batch, map_record
from kmr.reducers.collect import Batcher
from kmr.sinks import ClickHouseWriter, DeadLetterWriter, KafkaWriter, StreamWriter
from kmr.testing import Journal, MemoryWriter
from kmr.values.json.json_format import Json
from kmr.values.plain import MessagePack

from .workers import locate


def writer(**limits: Any) -> MemoryWriter:
    return MemoryWriter(Journal(), **limits)


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        (
            {"reduce": [ClickHouseWriter("a"), ClickHouseWriter("b")]},
            "ClickHouseWriter writes, so it must be the last of its chain",
        ),
        (
            {"reduce": [writer(forward=True), Batcher()]},
            "Batcher is the last and writes nothing, so its rows would be lost",
        ),
        (
            {"reduce": Aggregate(["a"], {"n": ("*", "count")})},
            "Aggregate is the last and writes nothing",
        ),
        ({"map": 3}, "map must be a function or None, not 3"),
        ({"reduce": []}, "reduce= is empty"),
        ({"reduce": [print]}, "the function print is not a reducer: pass Collect\\(print\\)"),
        ({"reduce": StreamWriter}, "StreamWriter is a class: pass an object of it"),
        ({"value": Json}, "value= is the class Json, .* pass Json\\(...\\)"),
        ({"err_limit": 0.1}, "err_limit=0.1 is not a limit: pass ErrorLimit\\(share=0.1\\)"),
        ({"reduce_err": writer(on_error="divert")}, "cannot divert its own errors"),
        ({"reduce_err": [writer()]}, "reduce_err= is one reducer, not a list"),
        ({"err_limit": ErrorLimit(1)}, "err_limit= needs reduce_err="),
        ({"reduce": [writer(on_error="divert")]}, "on_error='divert' needs reduce_err="),
        ({"delivery": "twice"}, "delivery must be .*, not 'twice'"),
        ({"delivery": "exactly-once"}, "MemoryWriter cannot recognise a repeated write"),
    ],
)
def test_parts_that_do_not_fit_are_refused(parts: dict[str, Any], complaint: str) -> None:
    with pytest.raises(StrategyError, match=complaint):
        Strategy(**{"map": locate, "reduce": [writer()], **parts})


def test_the_last_reducer_decides_the_delivery_unless_the_strategy_does() -> None:
    clickhouse = ClickHouseWriter("t")
    assert Strategy(locate, [writer()]).requested_delivery == "at-least-once"
    assert Strategy(locate, [Batcher(), clickhouse]).requested_delivery == "exactly-once"
    chosen = Strategy(locate, [clickhouse], delivery="at-most-once")
    assert chosen.requested_delivery == "at-most-once"


def test_transactions_make_exactly_once_unless_the_strategy_asks_for_another_delivery() -> None:
    writer = KafkaWriter("out", delivery="exactly-once")
    assert Strategy(locate, [writer]).is_transactional
    assert not Strategy(locate, [writer], delivery="at-least-once").is_transactional
    assert not Strategy(locate, [KafkaWriter("out")]).is_transactional
    with pytest.raises(StrategyError, match="reduce_err: KafkaWriter cannot be exactly-once"):
        Strategy(locate, [KafkaWriter("out")], reduce_err=writer)


def test_the_columns_of_declared_rows_are_known_until_a_reducer_makes_others() -> None:
    declared = pa.schema([("x", pa.int64())])
    reducers = [Batcher(), writer(forward=True), ClickHouseWriter("t")]
    mapped = map_record(schema=declared)(lambda record: None)
    strategy = Strategy(mapped, reducers, reduce_err=writer())
    assert strategy.schema_of("reduce-1") == strategy.schema_of("reduce-2") == declared
    assert strategy.schema_of("reduce-3") is None
    assert strategy.schema_of("reduce-err") == FAILED_SCHEMA
    assert Strategy(locate, reducers).schema_of("reduce-1") is None


@pytest.mark.parametrize(
    ("stages", "refused"),
    [
        ({"reduce": [KafkaWriter("b")]}, "reduce-1: KafkaWriter writes to topic b"),
        ({"reduce": [Batcher(), KafkaWriter("a")]}, "reduce-2: .* topic a"),
        ({"reduce_err": DeadLetterWriter("a")}, "reduce-err: DeadLetterWriter writes to topic a"),
        ({"reduce_err": DeadLetterWriter("a", bootstrap_servers="x:1, K:2")}, "topic a"),
        ({"reduce_err": DeadLetterWriter("a", bootstrap_servers="other:1")}, None),
        ({"reduce": [KafkaWriter("out")], "reduce_err": DeadLetterWriter("dead")}, None),
    ],
)
def test_a_stage_that_writes_to_an_input_topic_is_refused(
    stages: dict[str, Any], refused: str | None
) -> None:
    strategy = Strategy(**{"map": locate, "reduce": [writer()], **stages})
    with nullcontext() if refused is None else pytest.raises(StrategyError, match=refused):
        strategy.refuse_loop(["a", "b"], "k:1,k:2")


def test_a_stage_that_writes_to_a_topic_of_the_pattern_is_refused() -> None:
    strategy = Strategy(locate, [writer()], DeadLetterWriter("orders-dead"))
    strategy.refuse_loop(Subscription(pattern="orders-[0-9]+"), "k:1")
    with pytest.raises(StrategyError, match="writes to topic orders-dead"):
        strategy.refuse_loop(Subscription(pattern="orders.*"), "k:1")


def test_stages_are_numbered_in_the_order_of_the_chain() -> None:
    first, last = writer(forward=True), writer()
    assert Strategy(locate, [first, last]).stages == {"reduce-1": first, "reduce-2": last}


def test_a_part_that_cannot_be_pickled_is_named() -> None:
    strategy = Strategy(map=lambda record: None, reduce=[writer()])
    strategy.validate()
    with pytest.raises(StrategyError, match="executor='process': map cannot be pickled"):
        strategy.require_pickle()


class Order(msgspec.Struct):
    number: int


class Click(msgspec.Struct):
    page: str


class Event(msgspec.Struct):
    name: str


@map_record
def of_order(order: Order) -> Event:
    return Event(f"order {order.number}")


@map_record
async def of_click(click: Click) -> Event:
    return Event(f"click on {click.page}")


BY_TOPIC = {
    "orders": TopicMap(of_order, value=Json(Order)),
    "clicks": TopicMap(of_click, value=MessagePack(Click)),
}


def test_each_topic_has_its_own_map_and_format() -> None:
    strategy = Strategy(by_topic=BY_TOPIC, reduce=[writer()], version="3")
    orders = strategy.of_topic("orders")
    assert (orders.map, orders.version, orders.by_topic) == (of_order, "3", None)
    assert strategy.of_topic("clicks").map_spec.is_async
    assert strategy.row_schema == pa.schema([pa.field("name", pa.string(), nullable=False)])
    assert len(strategy.parts) == 2
    strategy.validate()
    with pytest.raises(
        StrategyError, match="does not name topic users, which is read, only orders"
    ):
        strategy.of_topic("users")
    alone = Strategy(locate, [writer()])
    assert alone.of_topic("users") is alone


def test_columns_that_a_batch_map_makes_of_lists_are_not_known_without_rows() -> None:
    @map_batch
    def lengths(batch: pa.RecordBatch) -> pa.Table:
        keys = batch.column("key").to_pylist()
        return pa.table({"key": batch.column("key"), "length": [len(key or b"") for key in keys]})

    strategy = Strategy(map=lengths, reduce=[MemoryWriter(Journal())])
    assert strategy.row_schema is None


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ({"by_topic": BY_TOPIC, "map": locate}, "remove map=, value= and key="),
        ({"by_topic": {}}, "by_topic= is empty"),
        (
            {"by_topic": {"a": TopicMap()}},
            r"by_topic\['a'\]: a strategy needs map=, value= or both",
        ),
        (
            {"by_topic": {"a": TopicMap(value=Json(Order)), "b": TopicMap(value=Json(Click))}},
            "different rows .a has number: int64; b has page: string.: .* return the same row type",
        ),
    ],
)
def test_maps_of_topics_that_do_not_fit_together_are_refused(
    parts: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(StrategyError, match=complaint):
        Strategy(reduce=[writer()], **parts)
