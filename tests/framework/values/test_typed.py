"""The base of formats with a type: values one by one, and reasons that name the field."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from io import StringIO
from typing import TYPE_CHECKING, Any, Final, NotRequired, TypedDict

import attrs
import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kmr import Avro, Json, MessagePack, Record, Strategy
from kmr.sinks import StreamWriter
from kmr.testing import run_strategy
from kmr.values.typed import TypedFormat
from kmr.values.value_format import RowsDoNotFit
from tests.examples import examples

from . import generated_types

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Line:
    text: str
    count: int

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError("below 0")


def test_a_type_with_its_own_checks_is_decoded_by_them() -> None:
    decoded = Json(Line).decode(pa.array([b'{"text":"a","count":-1}', b'{"text":"a","count":1}']))
    assert decoded.failures == {0: "value: below 0"}
    assert decoded.columns.to_pylist()[1] == {"text": "a", "count": 1}


@attrs.define
class Adult:
    name: str
    age: int = attrs.field(validator=attrs.validators.ge(18))
    tags: list[str] = attrs.Factory(list)

    def __attrs_post_init__(self) -> None:
        self.name = self.name.title()


class Household(msgspec.Struct):
    head: Adult


@pytest.mark.parametrize("of", [Json, MessagePack])
def test_a_class_of_attrs_checks_its_values_itself_also_inside_of_another(of: Any) -> None:
    encode = (msgspec.json if of is Json else msgspec.msgpack).encode
    values = [{"name": "ann", "age": 30}, {"name": "bob", "age": 3}]
    for cls, rows in ((Adult, values), (Household, [{"head": each} for each in values])):
        form = of(cls)
        columns, failures = form.decode(pa.array([encode(row) for row in rows], pa.binary()))
        found = columns.to_pylist()[0]
        ann = {"name": "Ann", "age": 30, "tags": []}
        assert found == (ann if cls is Adult else {"head": ann})
        assert list(failures) == [1]
        assert "'age' must be >= 18: 3" in failures[1]
        written = form.encode(pa.Table.from_batches([columns.slice(0, 1)]), "t")
        assert form.decode(written).columns.to_pylist() == [found]


def test_a_map_may_return_objects_of_attrs() -> None:
    def adult(record: Record) -> Adult:
        return Adult("cyd", record.offset + 18)

    mapped = run_strategy(Strategy(map=adult, reduce=StreamWriter(StringIO())), [b"", b""])
    assert mapped.rows == [{"name": "Cyd", "age": age, "tags": []} for age in (18, 19)]


@given(st.data())
@settings(max_examples=examples(150))
@pytest.mark.parametrize("of", [Json, MessagePack])
def test_values_of_any_class_are_read_as_msgspec_does_and_written_as_they_were(
    of: Any, data: st.DataObject
) -> None:
    cls, values = data.draw(generated_types.classes())
    library = msgspec.json if of is Json else msgspec.msgpack
    encoded = [library.encode(each) for each in data.draw(st.lists(values, max_size=3))]
    form = of(cls)
    columns, failures = form.decode(pa.array([*encoded, None], pa.binary()))
    objects = form.decode_objects(pa.array(encoded, pa.binary())).objects
    expected = [library.decode(each, type=cls) for each in encoded]
    assert (objects, failures) == (expected, {})
    for found, value in zip(
        columns.to_pylist(), map(generated_types.plain, expected), strict=False
    ):
        assert generated_types.same(found, value), (found, value)
    rows = columns.slice(0, len(encoded))
    written = form.encode(pa.Table.from_batches([rows]), "t")
    assert form.decode(written).columns.equals(rows)


class LoosePart(TypedDict):
    tags: NotRequired[list[bool]]
    of: NotRequired[int | None]


class Loose(TypedDict):
    part: NotRequired[LoosePart]
    name: NotRequired[str]


@pytest.mark.parametrize("of", [Json, MessagePack])
def test_a_key_that_may_be_missing_at_any_depth_is_left_out_where_its_column_is_null(
    of: Any,
) -> None:
    library = msgspec.json if of is Json else msgspec.msgpack
    rows = [{}, {"part": {"of": None}}, {"part": {"tags": [True], "of": 5}, "name": "x"}]
    encoded = [library.encode(each) for each in rows]
    columns, failures = of(Loose).decode(pa.array(encoded, pa.binary()))
    assert failures == {}
    written = of(Loose).encode(pa.Table.from_batches([columns]), "t").to_pylist()
    assert list(map(library.decode, written)) == rows


def test_bytes_that_are_not_utf8_are_reported_with_their_field() -> None:
    for form, text in (
        (Json(Line), b'{"count":1,"other":1,"text":"\xff"}'),
        (
            MessagePack(Line),
            msgspec.msgpack.encode({"count": 1, "text": "??"}).replace(b"??", b"\xff\xff"),
        ),
    ):
        failures = form.decode(pa.array([text], pa.binary())).failures
        assert failures == {0: "field text: invalid UTF-8"}


class Words(TypedFormat):
    """A format of a user: one line of words."""

    @property
    def decoder(self) -> Callable[[Any], Any]:
        return lambda value: Line(value.decode(), len(value.split()))

    def decode_as(self, cls: type, value: bytes) -> object:
        raise NotImplementedError


def test_a_format_needs_only_to_decode_one_value() -> None:
    decoded = Words(Line).decode(pa.array([b"a b", None], pa.binary()))
    assert decoded.columns.to_pylist() == [
        {"text": "a b", "count": 2},
        {"text": None, "count": None},
    ]


class Part(msgspec.Struct, rename={"name": "n"}):
    name: str
    size: float | None = None


class Whole(msgspec.Struct, rename="camel"):
    first_part: Part
    parts: list[Part] = []
    by_name: dict[str, Part] = {}
    at: dt.datetime | None = None
    price: Decimal | None = None
    data: bytes = b""


@pytest.mark.parametrize("form", [Json(Whole), MessagePack(Whole)])
def test_what_is_encoded_is_read_as_it_was(form: TypedFormat) -> None:
    row = Whole(
        Part("a", 1.5),
        [Part("b")],
        {"k": Part("c")},
        dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
        Decimal("1.5"),
        b"\xff",
    )
    columns, _ = form.rows.to_columns([row, row])
    table = pa.Table.from_batches([columns])
    encoded = form.encode(table, "t")
    assert form.decode(encoded).columns.equals(columns)
    assert form.decode_objects(encoded).objects == [row, row]


@pytest.mark.parametrize("form", [Json(Whole), MessagePack(Whole)])
@pytest.mark.parametrize(
    ("column", "good", "bad"),
    [
        ("first_part", {"name": "a"}, {"name": None}),
        ("by_name", [], [("a", {"name": "x"}), ("a", {"name": "y"})]),
        ("at", 0, 2**60),
        ("price", None, "x"),
    ],
)
def test_a_row_that_cannot_be_read_again_is_refused_alone(
    form: TypedFormat, column: str, good: Any, bad: Any
) -> None:
    kind: Any = form.schema.field(column).type
    if column == "first_part":
        kind = pa.struct([("name", pa.string())])
    kind = pa.string() if column == "price" else kind
    columns: dict[str, Any] = {"first_part": [{"name": "a"}] * 2} | {
        column: pa.array([good, bad], kind)
    }
    with pytest.raises(RowsDoNotFit, match=column) as caught:
        form.encode(pa.table(columns), "t")
    assert [*caught.value.failures] == [1]


@pytest.mark.parametrize("make", [Json, MessagePack])
def test_a_time_in_a_zone_whose_offset_had_seconds_is_the_same_moment(make: Any) -> None:
    kind = pa.timestamp("ms", "America/New_York")
    moments = pa.array([-9_246_096_000_001, None, 0], kind)
    rows = pa.table({"at": moments, "all": pa.array([[moments[0]], [], None], pa.list_(kind))})
    form = make(rows.schema)
    assert pa.table(form.decode(form.encode(rows, "t")).columns).equals(rows)


_FAR: Final = 2**62  # microseconds, which no datetime has


@pytest.mark.parametrize(
    ("pairs", "kind", "reason"),
    [
        (
            [("k", 1), ("k", _FAR)],
            pa.map_(pa.string(), pa.timestamp("us", "UTC")),
            "its key 'k' is there twice",
        ),
        ([([1], 1)], pa.map_(pa.list_(pa.int8()), pa.int8()), "its key [1] is an object or a list"),
    ],
)
def test_a_map_that_no_dict_holds_is_refused(pairs: Any, kind: Any, reason: str) -> None:
    rows = pa.table({"map": pa.array([pairs], kind)})
    with pytest.raises(RowsDoNotFit) as error:
        MessagePack(rows.schema).encode(rows, "t")
    assert error.value.failures == {0: f"field map: {reason}"}


def test_json_has_no_nan() -> None:
    table = pa.table({"first_part": [{"name": "a", "size": float("nan")}]})
    with pytest.raises(RowsDoNotFit, match=r"column first_part\.size: JSON has no nan"):
        Json(Whole).encode(table, "t")
    assert MessagePack(Whole).encode(table, "t")[0].is_valid


class _Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


class _WithErrors(Exception):
    def errors(self) -> list[str]:
        return ["of another library"]


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (StopIteration, "StopIteration"),
        (GeneratorExit, "GeneratorExit"),
        (SystemExit, "SystemExit"),
        (KeyboardInterrupt, "KeyboardInterrupt"),
        (MemoryError, "MemoryError"),
        (RecursionError, "RecursionError"),
        (_Unspeakable, "_Unspeakable (its __str__ raises RuntimeError)"),
        (partial(_WithErrors, "no"), "_WithErrors: no"),
        (partial(LookupError, "half \ud83d"), "LookupError: half \\ud83d"),
    ],
)
@pytest.mark.parametrize("make", [Json, MessagePack, Avro])
def test_whatever_a_class_raises_fails_its_value_alone(
    make: Any, raised: Callable[[], BaseException], reason: str
) -> None:
    plain = make(pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    values = plain.encode(pa.table({"id": [0, 1, 2]}), "t")

    class Checked(msgspec.Struct):
        id: int

        def __post_init__(self) -> None:
            if self.id == 1:
                raise raised()

    decoded = make(Checked).decode_objects(values)
    assert [each and each.id for each in decoded.objects] == [0, None, 2]
    assert decoded.failures == {1: f"value: {reason}"}
    if make is not Avro:  # whose columns are made without the class
        columns, failures = make(Checked).decode(values)
        assert (columns.to_pylist()[::2], failures) == ([{"id": 0}, {"id": 2}], decoded.failures)
