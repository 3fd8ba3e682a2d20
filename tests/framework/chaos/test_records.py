"""Values that are made up fit the strategy's format, and what cannot be tried is refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime  # noqa: TC003  msgspec reads the annotations at run time
from decimal import Decimal
from typing import TYPE_CHECKING, TypedDict

import msgspec
import pyarrow as pa
import pytest

from kmr import Avro, Json, Record, Strategy, Text, map_record
from kmr.chaos.records import MapCounts, generate, read_lines, usable
from kmr.errors import SettingsError, StrategyError
from kmr.sinks import StreamWriter
from tests.framework.chaos.strategies import ORDERS, STREAM

if TYPE_CHECKING:
    from pathlib import Path


class Inner(TypedDict):
    at: date
    names: list[str]


class Everything(msgspec.Struct):
    number: int
    share: float
    flag: bool
    text: str
    data: bytes
    moment: datetime
    day: date
    inner: Inner
    counts: dict[str, int]
    maybe: int | None = None


@map_record
def positive(record: Record) -> dict[str, int] | None:
    number = int(msgspec.json.decode(record.value or b"")["id"])
    return {"id": number} if number else None


def test_every_value_that_is_not_broken_on_purpose_can_be_decoded() -> None:
    strategy = Strategy(
        value=Json(Everything), reduce=[StreamWriter("stdout")], reduce_err=StreamWriter("stderr")
    )
    counts = usable(strategy, "t", generate(strategy, "t", 1))
    assert counts == MapCounts(records=256, rows=240, filtered=0, failed=16)


def test_values_of_a_format_that_cannot_be_written_have_to_be_given() -> None:
    strategy = Strategy(value=Text(), reduce=[StreamWriter("stdout")])
    with pytest.raises(StrategyError, match=r"cannot be written.*give some with --records FILE"):
        generate(strategy, "t", 1)


def test_values_of_columns_can_be_made_up() -> None:
    kinds: dict[str, pa.DataType] = {
        "decimal": pa.decimal128(12, 2),
        "small": pa.uint8(),
        "list": pa.list_(pa.int32()),
        "moment": pa.timestamp("us", "UTC"),
    }
    strategy = Strategy(value=Json(pa.schema(kinds)), reduce=[StreamWriter("stdout")])
    values = generate(strategy, "t", 2)
    assert usable(strategy, "t", values).rows == 256
    assert Decimal(msgspec.json.decode(values[0] or b"")["decimal"]) >= 0


def test_without_a_format_they_are_json_objects_and_some_are_broken() -> None:
    strategy = Strategy(
        map=positive, reduce=[StreamWriter("stdout")], reduce_err=StreamWriter("stderr")
    )
    values = generate(strategy, "t", 1)
    assert values == generate(strategy, "t", 1)
    assert usable(strategy, "t", values) == MapCounts(256, 239, 1, 16)


def test_records_of_which_none_becomes_a_row_are_refused_with_the_reason() -> None:
    with pytest.raises(StrategyError, match=r"no record .* becomes a row .*amount.*--records FILE"):
        usable(ORDERS, "t", [b'{"customer": "a"}', b'{"customer": "a", "amount": 1}'])


def test_a_record_that_fails_is_refused_where_it_would_stop_the_worker() -> None:
    with pytest.raises(StrategyError, match=r"fails on record 1 .* no reduce_err"):
        usable(STREAM, "t", [b'{"customer": "a", "amount": 10}', b"broken"])


def test_a_format_whose_schemas_are_elsewhere_needs_records() -> None:
    avro = replace(ORDERS, value=Avro(Inner, registry="http://nowhere.invalid"), map=None)
    with pytest.raises(StrategyError, match="--records FILE"):
        generate(avro, "t", 1)


def test_the_lines_of_a_file_are_the_values(tmp_path: Path) -> None:
    file = tmp_path / "records"
    with pytest.raises(SettingsError, match="No such file"):
        read_lines(file)
    file.write_bytes(b"")
    with pytest.raises(SettingsError, match="empty"):
        read_lines(file)
    file.write_bytes(b"a\n\nb\n")
    assert read_lines(file) == [b"a", b"", b"b"]
