"""`Protobuf` with and without a registry: the message of a value, writing, and refusals."""

from __future__ import annotations

import datetime as dt
import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from anyio.to_thread import run_sync
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message_factory import GetMessageClass

from kmr import Protobuf, Registry
from kmr.errors import StrategyError
from kmr.values.encoding import DoesNotFit
from kmr.values.protobuf.protobuf_format import arguments
from kmr.values.value_format import RowsDoNotFit

from .types import POOL, All, Other, field

if TYPE_CHECKING:
    from kmr.broker import Broker


def rows_of(format_: Protobuf, *values: bytes | None) -> tuple[list[Any], dict[int, str]]:
    columns, failures = format_.decode(pa.array(values, pa.binary()))
    assert columns.schema == format_.schema
    return columns.to_pylist(), failures


def test_a_copy_by_pickle_needs_no_generated_module() -> None:
    format_ = pickle.loads(pickle.dumps(Protobuf(Other)))
    assert format_.schema.names == ["n"]
    copy = pickle.loads(pickle.dumps(Protobuf(All)))
    assert rows_of(copy, All(f_int32=5).SerializeToString())[0][0]["f_int32"] == 5


async def test_values_of_confluents_serializer_are_read_and_other_messages_fail(
    broker: Broker,
    registry_url: str,
) -> None:
    def work() -> None:
        url = registry_url
        context = SerializationContext("t", MessageField.VALUE)
        with SchemaRegistryClient({"url": url}) as client:
            values = [
                ProtobufSerializer(type(message), client)(message, context)
                for message in (All(f_string="x"), Other())
            ]
        rows, failures = rows_of(Protobuf(All, registry=url), *values, b"hello!", None)
        assert rows[0]["f_string"] == "x"
        assert failures == {
            1: "the value is another message of its schema than t.All",
            2: "the value does not begin with the id of a schema (a zero byte and 4 bytes)",
        }

    await run_sync(work)


async def test_what_a_writer_encodes_is_read_back(broker: Broker, registry_url: str) -> None:
    table = pa.table(
        {
            "f_int64": [1, None],
            "f_bytes": [b"\xff", b""],
            "color": ["RED", None],
            "at": pa.array(
                [dt.datetime(2026, 1, 2, tzinfo=dt.UTC), None], pa.timestamp("us", "UTC")
            ),
            "wrapped": [7, None],
            "counts": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
            "inners": [[{"n": 1, "tags": ["x"]}], None],
        }
    )

    def work() -> None:
        registry = Registry(registry_url)
        format_ = Protobuf(All, registry=registry)
        rows, failures = rows_of(format_, *format_.encode(table, "out").to_pylist())
        assert failures == {}
        assert [{name: row[name] for name in table.column_names} for row in rows] == [
            table.to_pylist()[0],
            {**table.to_pylist()[1], "f_int64": 0, "color": "NONE", "inners": []},
        ]
        assert registry.by_version("out-value").schema_type == "PROTOBUF"

    await run_sync(work)


async def test_files_that_are_imported_are_registered_before(
    broker: Broker, registry_url: str
) -> None:
    file = FileDescriptorProto(name="outer.proto", package="t", syntax="proto3")
    file.dependency.append("all.proto")
    field(file.message_type.add(name="Outer"), "inner", "message", 1, of=".t.Inner")
    POOL.AddSerializedFile(file.SerializeToString())
    outer = GetMessageClass(POOL.FindMessageTypeByName("t.Outer"))

    def work() -> None:
        registry = Registry(registry_url)
        Protobuf(outer, registry=registry).encode(pa.table({"inner": [{"n": 1}]}), "out")
        (reference,) = registry.by_version("out-value").references
        assert (reference.name, reference.subject, reference.version) == ("all.proto",) * 2 + (1,)

    await run_sync(work)


@pytest.mark.parametrize(
    ("name", "column", "reason"),
    [
        ("f_int32", [1, 2**40], r"column f_int32 \(int32\) cannot hold 1099511627776"),
        ("f_float", [1.5, 1e300], r"column f_float \(float\) cannot hold 1e\+300"),
        ("color", ["RED", "GREEN"], r"field color \(enum t.Color\) cannot hold 'GREEN'"),
        ("r_int32", [[1], [None]], "field r_int32: lists and maps cannot hold null"),
        ("at", [None, dt.date(1, 1, 1)], None),
    ],
)
def test_a_row_that_does_not_fit_is_refused_alone(name: str, column: Any, reason: Any) -> None:
    table = pa.table({name: column})
    if reason is None:
        assert rows_of(Protobuf(All), *Protobuf(All).encode(table, "t").to_pylist())[1] == {}
        return
    with pytest.raises(RowsDoNotFit, match=reason) as caught:
        Protobuf(All).encode(table, "t")
    assert [*caught.value.failures] == [1]


def test_a_row_without_a_required_field_is_refused_alone_and_names_it() -> None:
    file = FileDescriptorProto(name="required.proto", package="r", syntax="proto2")
    inner = file.message_type.add(name="Inner")
    inner.field.add(name="n", number=1, label=2, type=5)
    outer = file.message_type.add(name="Outer")
    outer.field.add(name="of", number=1, label=1, type=11, type_name=".r.Inner")
    POOL.AddSerializedFile(file.SerializeToString())
    form = Protobuf(GetMessageClass(POOL.FindMessageTypeByName("r.Outer")))
    rows = pa.table({"of": [{"n": 1}, None, {"n": None}]}, schema=form.schema)
    with pytest.raises(RowsDoNotFit, match=r"field of\.n is required, and null") as caught:
        form.encode(rows, "t")
    assert [*caught.value.failures] == [2]
    assert rows_of(form, *form.encode(rows.slice(0, 2), "t").to_pylist())[1] == {}


def test_a_message_that_lacks_a_field_beside_a_map_is_refused_and_does_not_end_the_process() -> (
    None
):
    file = FileDescriptorProto(name="lacking.proto", package="lacking", syntax="proto2")
    inner = file.message_type.add(name="Inner")
    inner.field.add(name="n", number=1, label=2, type=5)
    outer = file.message_type.add(name="Outer")
    entry = outer.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=1, type=9)
    entry.field.add(name="value", number=2, label=1, type=5)
    of_entry, of_inner = ".lacking.Outer.CountsEntry", ".lacking.Inner"
    outer.field.add(name="counts", number=1, label=3, type=11, type_name=of_entry)
    outer.field.add(name="many", number=2, label=3, type=11, type_name=of_inner)
    POOL.AddSerializedFile(file.SerializeToString())
    form = Protobuf(GetMessageClass(POOL.FindMessageTypeByName("lacking.Outer")))
    counts: Any = [("a", 1)]
    rows = pa.table({"counts": [counts, counts], "many": [[{"n": 1}], [{"n": None}]]}, form.schema)
    with pytest.raises(RowsDoNotFit, match=r"field many\.n is required, and null") as caught:
        form.encode(rows, "t")
    assert [*caught.value.failures] == [1]


def test_what_protobuf_cannot_hold_is_refused() -> None:
    with pytest.raises(StrategyError, match=r"t.All has no field nothing"):
        Protobuf(All).encode(pa.table({"nothing": [1]}), "t")
    twice = pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))
    with pytest.raises(RowsDoNotFit, match="field counts: its key 'a' is there twice"):
        Protobuf(All).encode(pa.table({"counts": twice}), "t")
    with pytest.raises(RowsDoNotFit, match="the oneof choice has values of a and b"):
        Protobuf(All).encode(pa.table({"a": ["x"], "b": [1]}), "t")
    late = pa.array([2**60], pa.timestamp("us", "UTC"))
    with pytest.raises(RowsDoNotFit, match="of the years 1 to 9999"):
        Protobuf(All).encode(pa.table({"at": late}), "t")


ALL: Any = All.DESCRIPTOR
YEAR_10000 = 253_402_300_800 * 10**6


def test_nulls_stay_out_and_maps_and_messages_are_dicts() -> None:
    row = {
        "f_int64": 1,
        "f_string": None,
        "counts": [("a", 1), ("b", 2)],
        "inners": [{"n": 1, "tags": None}, {"n": None, "tags": ["x"]}],
        "wrapped": 0,
    }
    assert arguments(ALL, row) == {
        "f_int64": 1,
        "counts": {"a": 1, "b": 2},
        "inners": [{"n": 1}, {"tags": ["x"]}],
        "wrapped": {"value": 0},
    }


@pytest.mark.parametrize(
    ("moment", "seconds", "nanos"),
    [
        (1_500_000, 1, 500_000_000),
        (-1, -1, 999_999_000),
        (YEAR_10000 - 1, 253_402_300_799, 999_999_000),
    ],
)
def test_a_timestamp_has_seconds_and_nanoseconds_that_are_not_negative(
    moment: int, seconds: int, nanos: int
) -> None:
    found = arguments(ALL, {"at": moment})
    assert found == {"at": {"seconds": seconds, "nanos": nanos}}
    assert All(**found).SerializeToString()


def test_a_timestamp_with_nanoseconds_is_kept_as_such_or_refused_and_never_cut() -> None:
    moments = [(1, 500), (1, 501_000), (253_402_300_799, 0), (-1, 999_999_999)]
    values = []
    for seconds, nanos in moments:
        message: Any = All()
        message.at.seconds, message.at.nanos = seconds, nanos
        values.append(message.SerializeToString())
    column: pa.BinaryArray = pa.array(values, pa.binary())
    columns, failures = Protobuf(All).decode(column)
    micros = columns.column("at").cast(pa.int64()).to_pylist()
    assert micros == [None, 1_000_501, 253_402_300_799_000_000, None]
    assert failures[0] == "field at: the timestamp of 1 s and 500 ns is finer than us"
    fine = Protobuf(All, timestamps="ns")
    columns, failures = fine.decode(column)
    nanos_ = columns.column("at").cast(pa.int64()).to_pylist()
    assert nanos_ == [1_000_000_500, 1_000_501_000, None, -1]
    reason = "field at: the timestamp of 253402300799 s and 0 ns is out of range of ns"
    assert failures == {2: reason}
    rows = pa.Table.from_batches([columns]).select(["at"]).take([0, 1, 3])
    assert fine.encode(rows, "t").to_pylist() == [values[0], values[1], values[3]]
    with pytest.raises(StrategyError, match="'us' or 'ns', not 'ms'"):
        Protobuf(All, timestamps="ms")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"inner": {"tags": ["a", None]}}, "field inner.tags: lists and maps cannot hold null"),
        ({"counts": [("a", None)]}, "field counts: lists and maps cannot hold null"),
        ({"counts": [("a", 1), ("a", 2)]}, "field counts: its key 'a' is there twice"),
        (
            {"at": YEAR_10000},
            f"field at: a Timestamp is of the years 1 to 9999, not {YEAR_10000 // 10**6} s",
        ),
        ({"a": "x", "b": 1}, "field b: the oneof choice has values of a and b"),
    ],
)
def test_what_a_message_cannot_hold_is_refused_with_its_place(
    row: dict[str, Any], reason: str
) -> None:
    with pytest.raises(DoesNotFit) as caught:
        arguments(ALL, row)
    assert str(caught.value) == reason


def test_an_enum_holds_only_the_names_of_its_values() -> None:
    assert arguments(ALL, {"colors": ["RED", "DARK"]}) == {"colors": ["RED", "DARK"]}
    with pytest.raises(DoesNotFit, match=r"field color \(enum t.Color\) cannot hold"):
        arguments(ALL, {"color": "PINK"})
