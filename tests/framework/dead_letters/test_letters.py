"""What letters say: written by `letter_headers`, read by `Letters` and `original_records`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa

from kmr.dead_letters.letters import (
    HEADERS,
    EarlierFailure,
    Letters,
    letter_headers,
    letters_among,
    original_records,
    without_contents,
)
from kmr.delivery.failures import FAILED_SCHEMA
from kmr.record import SCHEMA, TopicPartition
from kmr.reducers.reducer import Context

FAILED: dict[str, Any] = {
    "key": b"UA",
    "value": b"\xff not json",
    "topic": "flights",
    "partition": 3,
    "offset": 41,
    "timestamp": datetime(2026, 1, 1, tzinfo=UTC),
    "timestampType": 1,
    "headers": [{"key": "trace", "value": b"t"}],
    "reason": "ValueError: no json",
    "stage": "map",
    "attempt": 2,
    "exception": "ValueError",
    "traceback": "where\nValueError: no json",
}
WRITTEN = datetime(2026, 2, 2, tzinfo=UTC)


def written(*failed: dict[str, Any], context: Context | None = None) -> pa.RecordBatch:
    """The letters of failed records, as a worker that reads their topic gets them."""
    table = pa.Table.from_pylist(list(failed), schema=FAILED_SCHEMA)
    rows = [
        {
            "key": row["key"],
            "value": row["value"],
            "topic": "dead",
            "partition": 0,
            "offset": offset,
            "timestamp": WRITTEN,
            "timestampType": 0,
            "headers": [{"key": name, "value": value} for name, value in headers],
        }
        for offset, (row, headers) in enumerate(
            zip(failed, letter_headers(table, context), strict=True)
        )
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def short_letters() -> pa.RecordBatch:
    """Two letters without the contents of their records."""
    bare = FAILED | {"offset": 42, "headers": None, "key": None, "value": None}
    table = pa.Table.from_pylist([FAILED, bare], schema=FAILED_SCHEMA)
    return written(*without_contents(table).to_pylist())


def headers_of(letters: pa.RecordBatch, row: int = 0) -> dict[str, str]:
    return {pair["key"]: pair["value"].decode() for pair in letters.column("headers")[row].as_py()}


def failed_again(letters: pa.RecordBatch, **failure: Any) -> dict[str, Any]:
    return letters.to_pylist()[0] | {"stage": "map", "attempt": 1, "reason": "again"} | failure


def test_the_record_of_a_letter_is_the_record_that_failed() -> None:
    bare = FAILED | {"offset": 42, "headers": None, "key": None, "value": None}
    records = original_records(written(FAILED, bare)).to_pylist()
    wanted = [{name: each[name] for name in SCHEMA.names} for each in (FAILED, bare)]
    for record, original in zip(records, wanted, strict=True):
        assert record | {"timestampType": 1} == original


def test_a_slice_of_letters_has_the_records_of_the_slice() -> None:
    letters = written(*(FAILED | {"offset": offset} for offset in range(5)))
    assert original_records(letters.slice(2, 2)).column("offset").to_pylist() == [2, 3]
    assert letters_among(letters.slice(3)).num_rows == 2


def test_a_letter_names_group_strategy_and_generation() -> None:
    context = Context(
        group="g",
        stage="reduce-err",
        strategy="flow:strategy",
        strategy_version="1.4",
    ).with_sinks(generations={TopicPartition("flights", 3): 7})
    headers = headers_of(written(FAILED, context=context))
    assert headers["kmr.group"] == "g"
    assert headers["kmr.strategy"] == "flow:strategy"
    assert headers["kmr.strategy-version"] == "1.4"
    assert headers["kmr.generation"] == "7"
    assert set(headers) - {"trace"} < set(HEADERS)


def test_a_letter_has_class_and_traceback_of_its_exception_if_there_was_one() -> None:
    headers = headers_of(written(FAILED))
    assert headers["kmr.exception"] == "ValueError"
    assert headers["kmr.traceback"] == "where\nValueError: no json"
    headers = headers_of(written(FAILED | {"exception": None, "traceback": None}))
    assert not {"kmr.exception", "kmr.traceback"} & set(headers)


def test_a_letter_has_the_schema_id_where_values_have_one_also_after_a_replay_that_failed() -> None:
    context = Context("g", "reduce-err").with_sinks(has_schema_ids=True)
    framed = FAILED | {"value": b"\0\0\0\1\2value"}
    letters = written(framed, FAILED, context=context)
    assert headers_of(letters)["kmr.schema-id"] == "258"
    assert "kmr.schema-id" not in headers_of(letters, 1)
    assert "kmr.schema-id" not in headers_of(written(framed))
    assert headers_of(written(failed_again(letters)))["kmr.schema-id"] == "258"


def test_a_letter_that_fails_again_is_a_letter_of_the_same_record_with_a_history() -> None:
    letters = written(FAILED)
    again = written(failed_again(letters, reason="still no json"))
    assert original_records(again).column("offset").to_pylist() == [41]
    assert original_records(again).column("headers").to_pylist() == [FAILED["headers"]]
    headers = headers_of(again)
    assert headers["kmr.reason"] == "still no json"
    assert headers["kmr.replays"] == "1"
    past = msgspec.json.decode(headers["kmr.history"], type=list[EarlierFailure])
    assert past == [
        EarlierFailure("map", "ValueError: no json", 2, int(WRITTEN.timestamp() * 1000))
    ]


def test_a_letter_without_the_contents_of_its_record_says_so_also_when_it_fails_again() -> None:
    letters = short_letters()
    headers = headers_of(letters)
    assert headers["kmr.not-stored"] == "key of 2 bytes, value of 10 bytes, 1 headers"
    assert set(headers) < set(HEADERS)
    assert headers_of(letters, 1)["kmr.reason"] == "ValueError: no json"
    again = headers_of(written(failed_again(letters)))
    assert again["kmr.not-stored"] == headers["kmr.not-stored"]
    assert again["kmr.offset"] == "41"


def test_a_history_keeps_the_latest_five_failures() -> None:
    letters = written(FAILED)
    for number in range(7):
        letters = written(failed_again(letters, reason=f"replay {number}"))
    headers = headers_of(letters)
    past = msgspec.json.decode(headers["kmr.history"], type=list[EarlierFailure])
    assert headers["kmr.replays"] == "7"
    assert [each.reason for each in past] == [f"replay {number}" for number in range(1, 6)]


def test_reasons_are_cut() -> None:
    assert len(headers_of(written(FAILED | {"reason": "x" * 5000}))["kmr.reason"]) == 1000


def test_letters_are_columns_the_oldest_first_and_other_records_are_left_out() -> None:
    letters = written(FAILED, FAILED | {"stage": "reduce-1", "offset": 40})
    stranger = letters.slice(0, 1).set_column(
        letters.schema.get_field_index("headers"),
        SCHEMA.field("headers"),
        pa.array([None], SCHEMA.field("headers").type),
    )
    earlier = written(FAILED | {"offset": 7}).set_column(
        SCHEMA.get_field_index("timestamp"),
        SCHEMA.field("timestamp"),
        pa.array([datetime(2026, 1, 5, tzinfo=UTC)], SCHEMA.field("timestamp").type),
    )
    found = Letters.of(letters_among(each) for each in (letters, stranger, earlier))
    assert found.numbers["offset"].tolist() == [7, 41, 40]
    assert found.texts["stage"].to_pylist() == ["map", "map", "reduce-1"]
    assert found.numbers["replays"].tolist() == [-1, -1, -1]
    assert len(Letters.of([])) == 0


def test_a_header_that_is_no_number_is_no_offset() -> None:
    letters = written(FAILED)
    rows = letters.to_pylist()
    rows[0]["headers"].append({"key": "kmr.offset", "value": b"many"})
    assert letters_among(pa.RecordBatch.from_pylist(rows, schema=SCHEMA)).num_rows == 0


def test_records_of_other_programs_with_our_headers_hide_no_letter() -> None:
    letters = written(FAILED, FAILED | {"offset": 42})
    rows = letters.to_pylist()
    odd = {"kmr.topic": b"\xff", "kmr.reason": b"\xfe\x00", "kmr.timestamp": b"9" * 18}
    rows[0]["headers"] = [
        {"key": each["key"], "value": odd.get(each["key"], each["value"])}
        for each in rows[0]["headers"]
    ]
    letters = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    assert letters_among(letters).column("kmr.reason").to_pylist() == [
        "\\xfe\x00",
        "ValueError: no json",
    ]
    original = original_records(letters)
    assert original.column("topic").to_pylist() == ["\\xff", "flights"]
    assert original.column("timestamp").to_pylist() == [WRITTEN, FAILED["timestamp"]]


def test_the_record_of_a_letter_keeps_a_time_before_1970() -> None:
    past = datetime(1969, 7, 20, tzinfo=UTC)
    letters = written(FAILED | {"timestamp": past})
    assert original_records(letters).column("timestamp").to_pylist() == [past]
