"""Mistakes in arguments are one message that leads to the mend."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from kmr import (
    Aggregate,
    Distinct,
    ErrorLimit,
    Json,
    Retries,
    Strategy,
    Window,
    map_batch,
    map_record,
    read,
)
from kmr.errors import StrategyError
from kmr.sinks import ClickHouseWriter, KafkaWriter, ParquetWriter, PostgresWriter, StreamWriter
from kmr.testing import run_strategy


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (
            ClickHouseWriter,
            {"max_row": 3},
            "ClickHouseWriter has no argument max_row; did you mean max_rows?",
        ),
        (ClickHouseWriter, {"max_rows": "3"}, "max_rows must be int or None, not '3' (str)"),
        (ClickHouseWriter, {"max_rows": True}, "max_rows must be int or None, not True (bool)"),
        (
            ClickHouseWriter,
            {"timeout": b"60s"},
            "timeout must be seconds, a text with a unit ('5m') or a timedelta, not b'60s' (bytes)",
        ),
        (
            PostgresWriter,
            {"concurrency": "4"},
            "PostgresWriter: concurrency must be int, not '4' (str)",
        ),
        (
            StreamWriter,
            {"max_agee": 1},
            "StreamWriter has no argument max_agee; did you mean max_age?",
        ),
        (Json, {"registri": "x"}, "Json has no argument registri; did you mean registry?"),
        (Retries, {"zzz": 1}, "no argument zzz; it has on, attempts, backoff, max_backoff"),
        (Distinct, {"max_rows": 1}, "Distinct has no argument max_rows; it has key, within, "),
        (
            ClickHouseWriter,
            {"delivery": "at-most-once"},
            "delivery must be 'exactly-once', 'at-least-once' or None, not",
        ),
        (StreamWriter, {"format": ["json"]}, "format must be 'json' or 'pretty', not ['json']"),
        (KafkaWriter, {"compression": "zip"}, "'lz4', 'zstd' or None, not 'zip'"),
        (KafkaWriter, {"value": 5}, "KafkaWriter: value= is 5, which is not a format"),
        (
            KafkaWriter,
            {"headers": {1: "a"}},
            "headers must be dict[str, str], str or None, not {1: 'a'}",
        ),
        (ClickHouseWriter, {"order_by": "a"}, "order_by must be list[str] or None, not 'a' (str)"),
        (ClickHouseWriter, {"columns": {"a": "Int8"}}, "must be list[str] or None"),
        (ClickHouseWriter, {"columns": ["a", 2]}, "must be list[str] or None, not ['a', 2] (list)"),
        (
            ClickHouseWriter,
            {"settings": "a=1"},
            "settings must be dict[str, Any] or None, not 'a=1'",
        ),
        (PostgresWriter, {"create": 5}, "create must be bool or pyarrow.Schema, not 5 (int)"),
        (ParquetWriter, {"partition_by": 5}, "partition_by must be str or list[str], not 5 (int)"),
    ],
)
def test_a_wrong_argument_is_named_with_what_was_meant(
    make: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(StrategyError) as caught:
        make("t", **arguments)
    assert message in str(caught.value)


def test_a_strategy_and_its_parts_say_the_same() -> None:
    wrong: Any = {"maps": len}
    with pytest.raises(StrategyError, match=r"Strategy has no argument maps; did you mean map\?"):
        Strategy(**wrong, reduce=StreamWriter("out"))
    limit: Any = {"recods": 3}
    with pytest.raises(StrategyError, match=r"did you mean records\?"):
        ErrorLimit(**limit)
    window: Any = Window
    with pytest.raises(StrategyError, match=r"argument late \('drop', 'dead-letter' or 'reemit'\)"):
        window("1m", time="at", columns={"n": ("*", "count")})
    unnamed: Any = ClickHouseWriter
    with pytest.raises(StrategyError, match="ClickHouseWriter needs the argument table"):
        unnamed()
    with pytest.raises(
        StrategyError, match="takes 1 argument without a name, not 2; write the names"
    ):
        unnamed("t", "http://127.0.0.1:8123")


def test_a_choice_is_checked_also_without_its_name() -> None:
    limit: Any = ErrorLimit
    assert limit(1, "5m", "drop").on_limit == "drop"
    with pytest.raises(StrategyError, match="on_limit must be 'stop', 'pause' or 'drop', not 'x'"):
        limit(1, 60, "x")


def test_a_duration_is_seconds_a_text_or_a_timedelta() -> None:
    for given in (90, 90.0, "90", "1.5m", timedelta(minutes=1.5)):
        assert StreamWriter("out", max_age=given).max_age == 90.0
    with pytest.raises(StrategyError, match="max_age must be above 0, not -1"):
        StreamWriter("out", max_age=timedelta(seconds=-1))


def test_an_error_inside_a_constructor_of_the_user_is_its_own() -> None:
    class Broken(StreamWriter):
        def __init__(self) -> None:
            super().__init__("out")
            raise TypeError("of my own")

    with pytest.raises(TypeError, match="of my own"):
        Broken()


def test_the_columns_that_an_aggregate_lacks_are_named_without_a_connection() -> None:
    import msgspec

    class Hit(msgspec.Struct):
        path: str

    def strategy(by: str) -> Strategy:
        counts = Aggregate([by], {"n": ("*", "count")})
        return Strategy(value=Json(Hit), reduce=[counts, StreamWriter("out")])

    strategy("path").validate()
    strategy("partition").validate()
    with pytest.raises(StrategyError, match="reduce-1: Aggregate: the rows have no column 'pth'"):
        strategy("pth").validate()


def test_a_column_of_order_by_that_may_be_null_is_named() -> None:
    import msgspec

    class Hit(msgspec.Struct):
        path: str | None
        host: str

    writer = ClickHouseWriter("t", create=True, order_by=["path", "host"])
    declared = Strategy(value=Json(Hit), reduce=writer).schema_of("reduce-1")
    (doubt,) = writer.doubts(declared)
    assert doubt.startswith("column path may be null")


def test_a_missing_column_of_order_by_is_a_doubt_unless_it_is_an_expression() -> None:
    writer = ClickHouseWriter("t", create=True, order_by=["nope", "offset", "lower(path)"])
    [doubt] = writer.doubts(pa.schema({"path": pa.string()}))
    assert doubt.startswith("order_by names nope, which the rows do not have")


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (
            map_record,
            {"schema": ErrorLimit},
            "map_record: schema must be pyarrow.Schema or None, not",
        ),
        (map_record, {"concurency": 4}, "no argument concurency; did you mean concurrency"),
        (map_record, {"timeout": "soon"}, "map_record: timeout: 'soon' is not a number"),
        (map_record, {"function": 3}, "map=3 is not a function"),
        (map_record, {"function": len}, "cannot be decorated; define a function that calls it"),
        (map_batch, {"across": "yes"}, "map_batch: across must be bool, not 'yes' (str)"),
        (read, {"topic": "t", "last": "9"}, "kmr.read: last must be int or None, not '9' (str)"),
        (
            run_strategy,
            {"strategy": Strategy, "records": []},
            "strategy must be a Strategy, not <class",
        ),
    ],
)
def test_a_wrong_argument_of_a_function_is_named_too(
    function: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(StrategyError) as caught:
        function(**arguments)
    assert message in str(caught.value)
