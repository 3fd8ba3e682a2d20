"""Events that Debezium 3.3.1 made of a PostgreSQL 15, through its embedded engine, byte for byte.

`postgres-3.3.jsonl` has some of them, without schemas. `plain` are those of the default settings;
`strings` those of `decimal.handling.mode=string`, `time.precision.mode=isostring` and
`interval.handling.mode=string`; `connect` those of `double` and `connect`. `snapshots` has an incremental
and a blocking snapshot between changes.
"""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest

from kmr import Debezium, Json

EVENTS = [
    msgspec.json.decode(line)
    for line in (Path(__file__).parent / "postgres-3.3.jsonl").read_text().splitlines()
]


class Pair(msgspec.Struct):
    a: int
    b: str
    v: int
    extra: str | None = None


class Thing(msgspec.Struct):
    id: int
    name: str
    price: Decimal | None = None
    anyn: Decimal | None = None
    d: dt.date | None = None
    t: dt.time | None = None
    ttz: dt.time | None = None
    ts: dt.datetime | None = None
    tsz: dt.datetime | None = None
    tags: list[str | None] | None = None
    nums: list[int | None] | None = None
    js: str | None = None
    u: UUID | None = None
    f8: float | None = None
    f4: float | None = None
    i8: int | None = None
    money_: Decimal | None = None


PLAIN = {
    "d": "Date",
    "t": "MicroTime",
    "ts": "MicroTimestamp",
    "price": "Decimal(2)",
    "money_": "Decimal(2)",
}
SNAPSHOT = {
    "id": 1,
    "name": "snap1",
    "price": Decimal("12.34"),
    "anyn": Decimal("123456.7890123"),
    "d": dt.date(2024, 2, 29),
    "t": dt.time(23, 59, 59, 123456),
    "ttz": dt.time(10, 34, 56),
    "ts": dt.datetime(2024, 2, 29, 1, 2, 3, 456789, dt.UTC),
    "tsz": dt.datetime(2024, 2, 28, 20, 2, 3, 456789, dt.UTC),
    "tags": ["a", None, "b c"],
    "nums": [1, 2, None],
    "js": '{"a": [1, null]}',
    "u": "123e4567-e89b-12d3-a456-426614174000",
    "f8": 1.5,
    "f4": 2.5,
    "i8": 9_007_199_254_740_993,
    "money_": Decimal("1.23"),
}


def rows(mode: str, topic: str, cls: type, **options: Any) -> list[dict[str, Any]]:
    values = [e["value"] for e in EVENTS if (e["mode"], e["topic"]) == (mode, topic)]
    array = pa.array([None if v is None else v.encode() for v in values], pa.binary())
    columns, failures = Debezium(Json(cls), **options).decode(array)
    assert not failures
    return columns.to_pylist()


def test_the_table_equals_the_source_after_a_snapshot_changes_of_keys_and_a_new_column() -> None:
    table: dict[Any, Any] = {}
    ops = []
    for row in rows("plain", "srv.public.pairs", Pair):
        ops.append(row["op"])
        key = row["a"], row["b"]
        if row["op"] == "d":
            del table[key]
        elif row["op"] is not None:
            table[key] = (row["v"], row["extra"])
    assert ops == ["r", "c", "c", "d", None, "c", "d", None, "u", "u", "c", "c"]
    assert table == {
        (1, "b"): (3, None),
        (1, "c"): (10, None),
        (7, "z"): (7, None),
        (8, "y"): (8, "ee"),
    }


@pytest.mark.parametrize(
    ("mode", "options", "cut"),
    [
        ("plain", {"encodings": PLAIN}, 1),
        ("strings", {"decimals": "string", "times": "isostring"}, 1),
        ("connect", {"decimals": "double", "times": "connect"}, 1000),
    ],
)
def test_each_type_has_the_value_of_the_source(
    mode: str, options: dict[str, Any], cut: int
) -> None:
    found = rows(mode, "srv.public.things", Thing, **options)[0]
    expected: dict[str, Any] = dict(SNAPSHOT)
    for name in ("t", "ts"):  # `connect` sends milliseconds
        value = expected[name]
        expected[name] = value.replace(microsecond=value.microsecond // cut * cut)
    assert {name: found[name] for name in expected} == expected


def test_the_newest_position_of_a_key_is_its_last_event_also_of_incremental_snapshots() -> None:
    events = rows("snapshots", "srv.public.pairs", Pair)
    assert [row["op"] for row in events] == ["r", "u", "c", "u", "r", "r", "u", "r", "r", "u"]
    for key, value in ((1, 52), (5, 53)):
        mine = [row for row in events if row["a"] == key]
        positions = [row["position"] for row in mine]
        assert positions == sorted(positions)
        assert mine[-1]["v"] == value


def test_a_changed_key_is_a_delete_and_a_row_and_floats_that_are_no_numbers_are_values() -> None:
    found = rows("plain", "srv.public.things", Thing, encodings=PLAIN)
    assert [(r["op"], r["id"]) for r in found] == [
        ("r", 1),
        ("d", 2),
        (None, None),
        ("c", 20),
        ("u", 20),
    ]
    assert math.isnan(found[-1]["f8"])
    assert found[-1]["f4"] == math.inf
    assert found[-1]["price"] is None
    again = rows("strings", "srv.public.things", Thing, decimals="string", times="isostring")
    assert math.isnan(again[-1]["f8"])


@pytest.mark.parametrize("mode", ["plain", "strings"])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("txt", str),
        ("js", str),
        ("b", bytes),
        ("b", str),
        ("ta", list[str]),
        ("ia", list[int]),
        ("ba", list[int]),
        ("ua", list[UUID]),
        ("ua", list[str]),
    ],
)
def test_a_large_value_that_the_source_did_not_send_is_no_value(
    mode: str, name: str, kind: Any
) -> None:
    cls = msgspec.defstruct("Large", [("id", int), (name, kind | None, None)])
    values = [e["value"] for e in EVENTS if (e["mode"], e["topic"]) == (mode, "srv.public.toast")]
    _, failures = Debezium(Json(cls)).decode(pa.array([v.encode() for v in values]))
    if (mode, name, kind) == ("strings", "b", bytes):  # in hex, which is no base64
        assert failures
    else:
        (reason,) = failures.values()
        assert reason.startswith(
            f"field after.{name}: the source did not send it, because it is large"
        )
    event = b'{"op":"c","after":{"id":1,"ia":[95,95],"ua":[],"ta":["__"],"b":"X18="},"source":'
    event += b'{"connector":"postgresql","lsn":7}}'
    _, failures = Debezium(Json(cls)).decode(pa.array([event]))
    assert not failures


def test_a_row_before_its_change_keeps_its_floats() -> None:
    value = b'{"op":"u","before":{"id":1,"name":"a","f8":0.1},"after":{"id":1,"name":"a","f8":"-Infinity"},'
    value += b'"source":{"connector":"postgresql","lsn":7}}'
    columns, failures = Debezium(Json(Thing)).decode(pa.array([value]))
    assert not failures
    (row,) = columns.to_pylist()
    assert (row["f8"], row["before"]["f8"]) == (-math.inf, 0.1)


@pytest.mark.parametrize("topic", ["__debezium-heartbeat.srv", "srv.transaction", "srv.message"])
def test_events_of_no_row_are_dropped(topic: str) -> None:
    assert {row["op"] for row in rows("plain", topic, Pair)} == {None}
