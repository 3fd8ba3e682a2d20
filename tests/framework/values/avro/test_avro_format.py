"""`Avro` against the bundled registry: ids, evolution, unknown and damaged values, writing."""

from __future__ import annotations

import datetime as dt
import pickle
from dataclasses import dataclass
from decimal import Decimal
from io import BytesIO
from typing import TYPE_CHECKING, Any
from uuid import UUID

import fastavro
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from anyio.to_thread import run_sync

from kmr import Avro, Record, Registry, Strategy, map_batch, map_record
from kmr.errors import StrategyError
from kmr.mapping.functions import apply
from kmr.mapping.results import Failure
from kmr.testing import Journal, MemoryWriter, batch_of
from kmr.values.registry.framing import prefix
from kmr.values.registry.registry import RegisteredSchema
from kmr.values.value_format import RowsDoNotFit

if TYPE_CHECKING:
    from kmr.broker import Broker

HIT = {
    "type": "record",
    "name": "Hit",
    "fields": [{"name": "path", "type": "string"}, {"name": "status", "type": "int"}],
}
WIDER = {
    "type": "record",
    "name": "Hit",
    "fields": [
        {"name": "status", "type": "long"},
        {"name": "ms", "type": ["null", "double"], "default": None},
        {"name": "url", "type": "string", "aliases": ["path"]},
    ],
}


def binary(*values: bytes | None) -> pa.BinaryArray:
    return pa.array(values, pa.binary())


def encoded(schema: Any, value: Any, schema_id: int | None = None) -> bytes:
    into = BytesIO()
    fastavro.schemaless_writer(into, fastavro.parse_schema(schema), value)
    return (b"" if schema_id is None else prefix(schema_id)) + into.getvalue()


def rows_of(format_: Avro, *values: bytes | None) -> tuple[list[Any], dict[int, str]]:
    columns, failures = format_.decode(binary(*values))
    assert columns.schema == format_.schema
    return columns.to_pylist(), failures


async def test_values_of_several_schemas_in_one_batch_are_read_by_the_readers(
    broker: Broker,
    registry_url: str,
) -> None:
    def work() -> None:
        registry = Registry(registry_url)
        old = registry.register("hits-value", RegisteredSchema(msgspec.json.encode(HIT).decode()))
        new = registry.register("hits-value", RegisteredSchema(msgspec.json.encode(WIDER).decode()))
        text = registry.register("text", RegisteredSchema('"string"'))
        values = [
            encoded(HIT, {"path": "/a", "status": 200}, old),
            encoded(WIDER, {"url": "/b", "status": 2**40, "ms": 0.5}, new),
            None,
            b"hello",
            prefix(9999) + b"?",
            prefix(text) + b"\2a",
            encoded(HIT, {"path": "/c", "status": 404}, old)[:-1],
            prefix(0) + prefix(old)[1:] + b"?",
        ]
        for format_ in (
            Avro(WIDER, registry=registry),
            Avro(registry=registry, subject="hits-value"),
        ):
            rows, failures = rows_of(pickle.loads(pickle.dumps(format_)), *values)
            assert rows == [
                {"status": 200, "ms": None, "url": "/a"},
                {"status": 2**40, "ms": 0.5, "url": "/b"},
                *[{"status": None, "ms": None, "url": None}] * 6,
            ]
            assert sorted(failures) == [3, 4, 5, 6, 7]
            assert failures[3].startswith("the value does not begin with the id of a schema")
            assert failures[4].startswith("schema 9999 is unknown: registry http://127.0.0.1")
            assert failures[5] == f"schema {text}: string of the writer's schema is not a record"
            assert failures[6].startswith("field status: the value ends inside it")
            assert "ids of 8 bytes begin so: let Apicurio's serializers write 4" in failures[7]

    await run_sync(work)


async def test_a_schema_may_refer_to_others(broker: Broker, registry_url: str) -> None:
    def work() -> None:
        registry = Registry(registry_url)
        money = {
            "type": "record",
            "name": "shop.Money",
            "fields": [{"name": "cents", "type": "long"}],
        }
        registry.register("money", RegisteredSchema(msgspec.json.encode(money).decode()))
        order = {
            "type": "record",
            "name": "shop.Order",
            "fields": [{"name": "total", "type": "shop.Money"}],
        }
        text = msgspec.json.encode(order).decode()
        references = ({"name": "shop.Money", "subject": "money", "version": 1},)
        schema = msgspec.convert(
            {"schema": text, "schemaType": "AVRO", "references": references}, RegisteredSchema
        )
        number = registry.register("orders-value", schema)
        format_ = Avro(registry=registry, subject="orders-value")
        assert rows_of(format_, prefix(number) + b"\x0a") == ([{"total": {"cents": 5}}], {})

    await run_sync(work)


async def test_what_a_writer_encodes_is_read_back(broker: Broker, registry_url: str) -> None:
    table = pa.table(
        {
            "id": pa.array([1, 2], pa.int64()),
            "name": ["a", None],
            "at": pa.array(
                [dt.datetime(2026, 1, 2, tzinfo=dt.UTC), None], pa.timestamp("us", "UTC")
            ),
            "day": [dt.date(2026, 1, 2), None],
            "price": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
            "tags": [["x", "y"], []],
            "counts": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
            "inner": [{"x": 1.5, "ok": True}, None],
        }
    )

    def work() -> None:
        registry = Registry(registry_url)
        written = Avro(registry=registry).encode(table, "out")
        assert all(str(each).startswith(str(prefix(1))[:-1]) for each in written.to_pylist())
        format_ = Avro(registry=registry, subject="out-value")
        assert rows_of(format_, *written.to_pylist()) == (table.to_pylist(), {})
        strict = Avro({**HIT, "name": "Strict"}, registry=registry)
        with pytest.raises(RowsDoNotFit, match=r"column status \(int32\) cannot hold '\?'"):
            strict.encode(pa.table({"path": [1], "status": ["?"]}), "hits")

    await run_sync(work)


class Hit(msgspec.Struct, rename={"url": "path"}):
    url: str
    status: int
    ms: float | None = None
    host: str = "here"


@dataclass
class Item:
    path: str
    status: int


def test_a_users_type_is_the_readers_schema_and_the_class_of_objects() -> None:
    values = binary(encoded(HIT, {"path": "/a", "status": 200}))
    format_ = Avro(Item)
    assert format_.schema.names == ["path", "status"]
    assert format_.decode_objects(values).objects == [Item("/a", 200)]
    fields: list[pa.Field[Any]] = [
        pa.field("url", pa.string(), nullable=False),
        pa.field("status", pa.int64(), nullable=False),
        pa.field("ms", pa.float64()),
        pa.field("host", pa.string(), nullable=False),
    ]
    assert Avro(Hit).schema == pa.schema(fields)


async def test_fields_that_the_writer_lacks_have_the_defaults_of_the_type(
    broker: Broker,
    registry_url: str,
) -> None:
    def work() -> None:
        registry = Registry(registry_url)
        number = registry.register("x", RegisteredSchema(msgspec.json.encode(HIT).decode()))
        value = encoded(HIT, {"path": "/a", "status": 200}, number)
        decoded = Avro(Hit, registry=registry).decode_objects(binary(value, None))
        assert decoded == ([Hit("/a", 200, None, "here"), None], {})

    await run_sync(work)


async def test_a_number_is_no_time_of_a_class_unless_the_writers_schema_says_its_unit(
    broker: Broker,
    registry_url: str,
) -> None:
    class Visit(msgspec.Struct):
        at: dt.datetime

    def work() -> None:
        registry = Registry(registry_url)
        field: dict[str, Any] = {"name": "at", "type": "long"}
        schema = {"type": "record", "name": "Visit", "fields": [field]}
        plain = registry.register("plain", RegisteredSchema(msgspec.json.encode(schema).decode()))
        value = encoded(
            schema, {"at": 1_700_000_000_000}, plain
        )  # milliseconds, as its reader may know
        reason = f"schema {plain}: field at: long of the writer's schema says no unit of time"
        _, failures = Avro(Visit, registry=registry).decode(binary(value))
        assert failures[0].startswith(reason)
        in_millis = pa.schema([("at", pa.timestamp("ms", "UTC"))])
        found = Avro(in_millis, registry=registry).decode(binary(value))
        at = dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC)
        assert found.columns.to_pylist() == [{"at": at}]
        field["type"] = {"type": "long", "logicalType": "timestamp-millis"}
        named = registry.register("named", RegisteredSchema(msgspec.json.encode(schema).decode()))
        found = Avro(Visit, registry=registry).decode(binary(encoded(schema, {"at": at}, named)))
        assert found.columns.to_pylist() == [{"at": at}]

    await run_sync(work)


def test_a_union_of_several_types_is_a_struct_of_its_branches_and_back() -> None:
    inner = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int"}]}
    schema = {
        "type": "record",
        "name": "Any",
        "fields": [
            {"name": "v", "type": ["null", "int", "string", inner]},
            {"name": "n", "type": ["int", "long"]},
        ],
    }
    table = (
        Avro(schema)
        .decode(
            binary(
                *(
                    encoded(schema, {"v": value, "n": n})
                    for value, n in [(None, 1), (7, 2**40), ("t", 2), ({"x": 3}, 3)]
                )
            )
        )
        .columns
    )
    empty = {"int": None, "string": None, "Point": None}
    assert table.to_pylist() == [
        {"v": None, "n": 1},
        {"v": {**empty, "int": 7}, "n": 2**40},
        {"v": {**empty, "string": "t"}, "n": 2},
        {"v": {**empty, "Point": {"x": 3}}, "n": 3},
    ]
    again = Avro(schema).encode(pa.Table.from_batches([table]), "t")
    assert Avro(schema).decode(again).columns.equals(table)


UUID_TEXT = {"type": "string", "logicalType": "uuid"}


def record(name: str, kind: str, *fields: str) -> Any:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": field, "type": kind} for field in fields],
    }


def test_a_union_inside_of_an_optional_record_is_written_whatever_its_branches_are() -> None:
    inner = {**record("Inner", "int"), "fields": [{"name": "id", "type": [UUID_TEXT, "int"]}]}
    schema = {**record("Outer", "int"), "fields": [{"name": "of", "type": ["null", inner]}]}
    id_ = "e3e70682-c209-4cac-629f-6fbed82c07cd"
    expected: list[dict[str, Any]] = [{"of": {"id": {"string": id_, "int": None}}}, {"of": None}]
    rows = pa.Table.from_pylist(expected, Avro(schema).schema)
    assert rows_of(Avro(schema), *Avro(schema).encode(rows, "t").to_pylist()) == (expected, {})


@pytest.mark.parametrize("second", [record("b.Order", "int", "x"), record("b.Order", "int", "y")])
def test_branches_that_differ_in_their_namespace_have_it_in_their_names(second: Any) -> None:
    first = record("a.Order", "int", "x")
    schema = {**record("Event", "long"), "fields": [{"name": "body", "type": [first, second]}]}
    values = [(branch["name"], {branch["fields"][0]["name"]: 5}) for branch in (first, second)]
    rows, failures = rows_of(Avro(schema), *(encoded(schema, {"body": each}) for each in values))
    empty = {"a.Order": None, "b.Order": None}
    assert failures == {}
    assert rows == [{"body": {**empty, name: value}} for name, value in values]
    again = Avro(schema).encode(pa.Table.from_pylist(rows, Avro(schema).schema), "t")
    assert rows_of(Avro(schema), *again.to_pylist()) == (rows, {})


def test_the_text_and_the_decimals_of_a_value_are_checked() -> None:
    schema = {
        "type": "record",
        "name": "Row",
        "fields": [
            {"name": "texts", "type": {"type": "array", "items": "string"}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 3}},
        ],
    }
    good = encoded(schema, {"texts": ["ä", "b"], "price": Decimal(999)})
    wrong = good.replace("ä".encode(), b"\xff\xfe")
    large = good.replace(b"\x03\xe7", b"\x03\xe8")
    longer = encoded({"type": "array", "items": "string"}, ["c"]) + b"\x22" + b"\1" * 17
    rows, failures = rows_of(Avro(schema), good, wrong, large, longer, good)
    assert [row["price"] for row in rows] == [Decimal(999), None, None, None, Decimal(999)]
    assert failures == {
        1: "field texts: the text is not UTF-8",
        2: "field price: the decimal has too many digits",
        3: "field price: the decimal has too many digits",
    }


def test_long_lists_make_room_for_themselves() -> None:
    schema = {"type": "array", "items": {"type": "array", "items": "long"}}
    lists: list[list[list[int]]] = [[[n] * n for n in range(80)], [], [[7] * 5000]]
    decoded = Avro(schema).decode(binary(*(encoded(schema, each) for each in lists)))
    assert decoded.columns.column("value").to_pylist() == lists


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (None, "without a registry it needs schema="),
        ("{", "not JSON"),
        ({"type": "record"}, "not valid"),
        ("nothing", "not valid"),
        (record("R", "int", "a", "a"), "two of field a"),
        (
            {**record("R", "int"), "fields": [{"name": "a", "type": ["int", "int"]}]},
            "two of branch",
        ),
        (
            {**record("R", "int"), "fields": [{"name": "a", "type": ["null", ["int"]]}]},
            "a branch of",
        ),
        ({"type": "fixed", "name": "F", "size": "x"}, "the size of F is 'x'"),
    ],
)
def test_a_schema_that_is_not_one_is_refused_at_once(schema: Any, message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        Avro(schema)


@pytest.mark.parametrize(
    ("schema", "value", "rows"),
    [
        ({"type": "int", "logicalType": ["odd"]}, b"\2", [{"value": 1}]),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 0},
            b"\2a",
            [{"value": b"a"}],
        ),
        ({**record("R", "int"), "fields": [{"name": "a", "type": []}]}, b"", [{"a": None}]),
    ],
)
def test_logical_types_that_are_not_valid_are_ignored_and_a_union_of_nothing_is_null(
    schema: Any, value: bytes, rows: Any
) -> None:
    assert rows_of(Avro(schema), value)[0] == rows


def test_a_schema_that_is_nested_too_deep_is_refused() -> None:
    with pytest.raises(StrategyError, match="not JSON: maximum recursion depth"):
        Avro('{"type":"array","items":' * 3000 + '"int"' + "}" * 3000)
    deep: Any = "int"
    for _ in range(450):
        deep = {"type": "array", "items": deep}
    with pytest.raises(StrategyError, match=r"nested too deep|RecursionError"):
        _ = Avro(deep).schema


def test_a_record_without_fields_has_no_columns() -> None:
    with pytest.raises(StrategyError, match="R has no fields"):
        _ = Avro(record("R", "int")).schema


def test_without_schema_and_subject_the_columns_are_not_known() -> None:
    with pytest.raises(StrategyError, match=r"give schema= .* or subject="):
        _ = Avro(registry="http://127.0.0.1:1").schema


def test_a_schema_that_contains_itself_has_no_columns_but_can_be_left_out() -> None:
    node = {
        "type": "record",
        "name": "Node",
        "fields": [{"name": "id", "type": "int"}, {"name": "next", "type": ["null", "Node"]}],
    }
    with pytest.raises(StrategyError, match="field next: Node contains itself"):
        _ = Avro(node).schema


@map_batch
def server_errors(items: pa.RecordBatch) -> pa.RecordBatch:
    return items.filter(pc.field("status") >= 500)


@map_record
def path_of(item: Item, record: Record) -> dict[str, Any]:
    return {"path": item.path, "offset": record.offset}


def test_maps_get_the_columns_or_the_objects_and_a_damaged_value_is_a_failed_record() -> None:
    values = [encoded(HIT, {"path": "/a", "status": 200}), b"\x09", None]
    values.append(encoded(HIT, {"path": "/b", "status": 500}))
    records = batch_of("t", 3, 10, values).records
    failure = Failure(11, "field path: its length (-5) is negative, or beyond the end of the value")
    cases: list[tuple[Any, list[tuple[str, int]]]] = [
        (server_errors, [("/b", 13)]),
        (path_of, [("/a", 10), ("/b", 13)]),
    ]
    for function, expected in cases:
        made = Strategy(value=Avro(Item), map=function, reduce=[MemoryWriter(Journal())])
        result = apply(made.map, records, made.map_spec)
        assert result.failures == (failure,)
        assert result.table is not None
        rows = result.table.to_pylist()
        assert [(row["path"], row["offset"]) for row in rows] == expected


_DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}


@pytest.mark.parametrize(
    ("kind", "values", "type_"),
    [
        ("int", [1, 3_000_000_000], pa.int64()),
        ("long", [1.0, 1.5], pa.float64()),
        ("float", [0.1, 1e300], pa.float64()),
        ("boolean", [1, 5], pa.int64()),
        ("string", ["a", None], pa.string()),
        (["null", "int"], [None, 2**40], pa.int64()),
        (["int", "string"], [1, 2**40], pa.int64()),
        (_DECIMAL, [Decimal("1.50"), Decimal("12.34")], pa.decimal128(10, 2)),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, ["A", "Z"], pa.string()),
        ({"type": "fixed", "name": "F", "size": 2}, [b"ab", b"abc"], pa.binary()),
        ({"type": "long", "logicalType": "timestamp-millis"}, [1000, 1], pa.timestamp("us", "UTC")),
        ({"type": "string", "logicalType": "uuid"}, [str(UUID(int=1)), "x"], pa.string()),
        ({"type": "array", "items": "int"}, [[1], [2**40]], pa.list_(pa.int64())),
        ({"type": "array", "items": "int"}, [[1], [None]], pa.list_(pa.int64())),
        (
            {"type": "map", "values": "int"},
            [[("a", 1)], [("b", 1), ("b", 2)]],
            pa.map_(pa.string(), pa.int64()),
        ),
    ],
)
def test_a_row_that_does_not_fit_the_schema_is_refused_alone(
    kind: Any, values: list[Any], type_: Any
) -> None:
    format_ = Avro({"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]})
    table = pa.table({"x": pa.array(values, type_)})
    with pytest.raises(RowsDoNotFit, match="x") as caught:
        format_.encode(table, "t")
    assert [*caught.value.failures] == [1]
    again = format_.decode(format_.encode(table.slice(0, 1), "t"))
    assert again.failures == {}


def test_columns_that_the_schema_does_not_have_are_refused() -> None:
    with pytest.raises(StrategyError, match=r"Hit has no field extra"):
        Avro(HIT).encode(pa.table({"path": ["/a"], "status": [1], "extra": [1]}), "t")


def test_times_that_python_does_not_have_are_written_and_read_as_columns_and_fail_as_objects() -> (
    None
):
    kinds = {"at": "timestamp-micros", "day": "date"}
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {
                "name": name,
                "type": {"type": "int" if name == "day" else "long", "logicalType": kind},
            }
            for name, kind in kinds.items()
        ],
    }
    table = pa.table(
        {
            "at": pa.array([9223372036825200000, 1], pa.timestamp("us", "UTC")),
            "day": pa.array([1, 2_932_897], pa.date32()),
        }
    )
    encoded_ = Avro(schema).encode(table, "t")
    columns, failures = Avro(schema).decode(encoded_)
    assert failures == {}
    assert columns.column("at").cast(pa.int64()).to_pylist() == [9223372036825200000, 1]
    assert columns.column("day").cast(pa.int32()).to_pylist() == [1, 2_932_897]
    objects, failures = Avro(schema).decode_objects(encoded_)
    assert objects == [None, None]
    assert {row: reason.split(":")[0] for row, reason in failures.items()} == {
        0: "field at",
        1: "field day",
    }


def test_a_key_of_a_map_that_is_not_utf8_fails_alone() -> None:
    schema = {"type": "map", "values": "int"}
    good = encoded(schema, {"ab": 1})
    rows, failures = rows_of(Avro(schema), good, good.replace(b"ab", b"\xff\xfe"), good)
    assert rows == [{"value": [("ab", 1)]}, {"value": None}, {"value": [("ab", 1)]}]
    assert failures == {1: "field value: the text is not UTF-8"}
