"""Values and tombstones of compacted topics, and events of Debezium, as the rows of a strategy."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from kmr import Change, Debezium, Json, Record, Strategy, Text, map_batch
from kmr.errors import StrategyError
from kmr.sinks import StreamWriter
from kmr.testing import run_strategy

SINK = StreamWriter("stdout")
KEY = Json(pa.schema({"id": pa.int64()}))


class Customer(msgspec.Struct):
    id: int
    name: str


def records(*pairs: tuple[bytes | None, bytes | None]) -> list[Record]:
    return [Record("t", 0, at, key, value, 0, 0) for at, (key, value) in enumerate(pairs)]


def run(*pairs: tuple[bytes | None, bytes | None], **options: Any) -> Any:
    options = {"value": Json(Customer), "key": KEY, "changes": "keyed", **options}
    return run_strategy(Strategy(reduce=SINK, reduce_err=SINK, **options), records(*pairs))


def test_a_value_is_an_upsert_and_a_null_value_the_delete_of_its_key() -> None:
    found = run((b'{"id":1}', b'{"id":1,"name":"a"}'), (b'{"id":1}', None))
    assert found.rows == [{"id": 1, "name": "a", "op": "u"}, {"id": 1, "name": None, "op": "d"}]
    assert not found.failures


def test_a_key_that_the_value_lacks_is_a_column_of_its_own() -> None:
    found = run((b"k", b'{"id":1,"name":"a"}'), (b"k", None), key=Text())
    assert [(row["key"], row["op"]) for row in found.rows] == [("k", "u"), ("k", "d")]


def test_a_delete_without_a_key_and_a_key_that_cannot_be_decoded_fail() -> None:
    found = run((None, None), (b"{", None), (b'{"id":1}', b"{"))
    reasons = [failure["reason"] for failure in found.failures]
    assert reasons[0] == "key: null, and so is the value: nothing says what is deleted"
    assert reasons[1].startswith("key: ")
    assert len(reasons) == 3
    assert not found.rows


def test_a_per_batch_map_gets_the_changes() -> None:
    @map_batch
    def upper(batch: pa.RecordBatch) -> pa.Table:
        return pa.table(batch).select(["id", "op", "kmr_offset"])

    found = run((b'{"id":1}', b'{"id":1,"name":"a"}'), (b'{"id":1}', None), map=upper)
    assert found.rows == [{"id": 1, "op": "u"}, {"id": 1, "op": "d"}]


def _event(op: str, before: Any, after: Any) -> bytes:
    source = {"connector": "postgresql", "ts_ms": 1, "lsn": 1}
    return msgspec.json.encode({"before": before, "after": after, "source": source, "op": op})


def test_a_delete_of_debezium_without_the_row_takes_the_key_of_the_record() -> None:
    found = run(
        (b'{"id":1}', _event("d", None, None)),
        (b'{"id":2}', _event("c", None, {"id": 2, "name": "b"})),
        (b'{"id":2}', None),
        value=Debezium(Json(Customer)),
        changes=None,
    )
    assert [(row["id"], row["op"]) for row in found.rows] == [(1, "d"), (2, "c")]


def test_flattened_rows_whose_deletes_are_tombstones_are_keyed_changes() -> None:
    value = Debezium(Json(Customer), flattened=True)
    found = run((b'{"id":1}', b'{"id":1,"name":"a","__op":"r"}'), (b'{"id":1}', None), value=value)
    assert [(row["id"], row["op"]) for row in found.rows] == [(1, "r"), (1, "d")]


def test_a_per_record_map_is_called_with_changes_alone() -> None:
    seen: list[Change[Customer]] = []

    def note(change: Change[Customer]) -> None:
        seen.append(change)

    run_strategy(
        Strategy(value=Debezium(Json(Customer)), map=note, reduce=SINK),
        [
            _event("c", None, {"id": 1, "name": "a"}),
            None,
            '{"ts_ms":5}',
            _event("d", {"id": 1}, None),
        ],
    )
    assert [(change.op, change.after) for change in seen] == [("c", Customer(1, "a")), ("d", None)]


def test_tombstones_of_debezium_fail_if_told() -> None:
    found = run(
        (b'{"id":1}', None), value=Debezium(Json(Customer)), changes=None, tombstones="fail"
    )
    assert [failure["reason"] for failure in found.failures] == ["value: null (a tombstone)"]


def test_arguments_that_do_not_fit_changes_are_refused() -> None:
    with pytest.raises(StrategyError, match="needs value= and key="):
        Strategy(value=Json(Customer), changes="keyed", reduce=SINK)
    with pytest.raises(StrategyError, match="must be 'keyed'"):
        Strategy(value=Json(Customer), key=KEY, changes="key", reduce=SINK)  # type: ignore[arg-type]
    with pytest.raises(StrategyError, match="has no meaning for changes"):
        Strategy(value=Debezium(Json(Customer)), tombstones="null", reduce=SINK)
