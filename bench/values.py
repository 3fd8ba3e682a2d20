"""Decoding of values, on one core: `python -m bench.values` prints records/s and ratios.

Events in JSON (185 bytes, 9 fields, of which 6 are used), Avro and Protobuf (10 fields) become Arrow columns
by kmr, and Python objects by the usual libraries. Times are processor time of the thread, the best of several
rounds, contenders in turn. The last column has two threads at a time: 2.0 where the interpreter lock is never
held, and both cores are free. A second table has values of many shapes, to columns, to a function for each
record, and from columns; a third few values at once, as topics of many partitions have them; a fourth the
maps of `bench.hits` alone, on batches of 5,000 records.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import fastavro
import msgspec
import pyarrow as pa
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from bench.consume import NullWriter
from bench.hits import by_hand, columns, typed
from bench.job import Hit
from bench.shapes import SHAPES, Shape, avro_schema, message_class
from bench.table import print_table
from bench.typed import events as json_events
from kmr import Avro, Json, Protobuf, Strategy, map_record
from kmr.mapping.functions import apply
from kmr.service.process import freeze_modules, keep_freed_memory
from kmr.testing import batch_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import Message

    from kmr.types import ValueFormat

ROWS = 131_072
SLOW_ROWS = 20_000
BATCH = 5_000
METHODS = ["GET", "POST", "PUT"]
SCHEMA = {
    "type": "record",
    "name": "Hit",
    "fields": [
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "host", "type": "string"},
        {"name": "path", "type": "string"},
        {"name": "status", "type": "int"},
        {"name": "bytes", "type": "long"},
        {"name": "ms", "type": "double"},
        {"name": "user", "type": ["null", "string"]},
        {"name": "ok", "type": "boolean"},
        {"name": "method", "type": {"type": "enum", "name": "Method", "symbols": METHODS}},
        {"name": "ref", "type": ["null", "long"]},
    ],
}
PROTOBUF = {
    "ts": "int64", "host": "string", "path": "string", "status": "int32", "bytes": "int64", "ms": "double",
    "user": "string", "ok": "bool", "method": "enum", "ref": "int64",
}  # fmt: skip


@dataclass(frozen=True)
class Contest:
    """One format: our way, and the usual ways for one value.

    Attributes:
        write: encodes a row, a dict, by the usual library.
    """

    name: str
    format: ValueFormat
    values: list[bytes]
    rivals: dict[str, Callable[[bytes], object]]
    write: Callable[[dict[str, Any]], bytes]


def events(rows: int) -> list[dict[str, Any]]:
    """Make events of about 70 bytes; they are the same in each run."""
    source = random.Random(1)
    return [
        {
            "ts": 1_700_000_000_000 + row,
            "host": f"host-{row % 50}.example.com",
            "path": f"/api/v1/items/{row}",
            "status": source.choice([200, 404, 500]),
            "bytes": source.randrange(100_000),
            "ms": source.random() * 100,
            "user": None if row % 3 else f"user{row}",
            "ok": row % 2 == 0,
            "method": source.choice(METHODS),
            "ref": None if row % 2 else row,
        }
        for row in range(rows)
    ]


def json_() -> Contest:
    """JSON, beside the standard library and msgspec."""
    rivals: dict[str, Callable[[bytes], object]] = {
        "msgspec": msgspec.json.Decoder(Hit).decode,
        "json": json.loads,
    }
    return Contest("JSON", Json(Hit), json_events(ROWS, 185), rivals, msgspec.json.encode)


def avro(schema: dict[str, Any], rows: list[dict[str, Any]]) -> Contest:
    """Avro without a registry, beside fastavro."""
    parsed = fastavro.parse_schema(schema)

    def write(row: dict[str, Any]) -> bytes:
        into = BytesIO()
        fastavro.schemaless_writer(into, parsed, row)
        return into.getvalue()

    def read(value: bytes) -> object:
        return fastavro.schemaless_reader(BytesIO(value), parsed, None)

    return Contest("Avro", Avro(schema), [*map(write, rows)], {"fastavro": read}, write)


def protobuf(message: type[Message], rows: list[dict[str, Any]]) -> Contest:
    """Protobuf without a registry, beside google.protobuf, of whose messages each value is read."""
    names = [each.name for each in message.DESCRIPTOR.fields]

    def write(row: dict[str, Any]) -> bytes:
        given = {name: row[name] for name in names if row.get(name) is not None}
        return message(**given).SerializeToString()

    read_all = _reader(cast("Descriptor", message.DESCRIPTOR))

    def read(value: bytes) -> object:
        return read_all(message.FromString(value))

    values = [*map(write, rows)]
    return Contest("Protobuf", Protobuf(message), values, {"google.protobuf": read}, write)


def _reader(descriptor: Descriptor) -> Callable[[Any], list[Any]]:
    """Return a function that reads all fields of a message: it is not decoded before."""
    fields = [(each.name, _converter(each)) for each in descriptor.fields]

    def read(message: Any) -> list[Any]:
        return [
            getattr(message, name) if convert is None else convert(getattr(message, name))
            for name, convert in fields
        ]

    return read


def _converter(field: FieldDescriptor) -> Callable[[Any], Any] | None:
    type_ = field.message_type
    if type_ is not None and type_.GetOptions().map_entry:
        return dict
    if type_ is None:
        return list if field.is_repeated else None
    inner = _reader(type_)
    return (lambda items: [*map(inner, items)]) if field.is_repeated else inner


def hit_class() -> type[Message]:
    """Make the message class of the events."""
    file = FileDescriptorProto(name="hit.proto", package="bench", syntax="proto3")
    enum = file.enum_type.add(name="Method")
    for number, name in enumerate(METHODS):
        enum.value.add(name=name, number=number)
    message = file.message_type.add(name="Hit")
    for number, (name, type_) in enumerate(PROTOBUF.items(), 1):
        field = message.field.add(name=name, number=number)
        field.label = FieldDescriptorProto.LABEL_OPTIONAL
        field.type = getattr(FieldDescriptorProto, f"TYPE_{type_.upper()}")
        if type_ == "enum":
            field.type_name = ".bench.Method"
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName("bench.Hit"))


@dataclass(frozen=True)
class Measured:
    """Seconds per record of ours and of each rival, and the speed-up by a second thread."""

    ours: float
    rivals: dict[str, float]
    speedup: float


def measure(contest: Contest, rounds: int) -> Measured:
    """Let all decode in turn."""
    column: pa.BinaryArray = pa.array(contest.values, pa.binary())
    slow = contest.values[:SLOW_ROWS]

    def decode() -> None:
        contest.format.decode(column)

    def read(rival: str) -> None:
        for _ in map(contest.rivals[rival], slow):
            pass

    decode()  # compiles
    ours, one, two = [], [], []
    theirs: dict[str, list[float]] = {rival: [] for rival in contest.rivals}
    with ThreadPoolExecutor(2) as threads:

        def both() -> None:
            for each in [threads.submit(decode), threads.submit(decode)]:
                each.result()

        for _ in range(rounds):
            ours.append(_seconds(decode, time.thread_time) / len(column))
            for rival, found in theirs.items():
                found.append(_seconds(partial(read, rival), time.thread_time) / len(slow))
            one.append(_seconds(decode, time.perf_counter))
            two.append(_seconds(both, time.perf_counter))
    best = {rival: min(found) for rival, found in theirs.items()}
    return Measured(min(ours), best, 2 * min(one) / min(two))


def _seconds(work: Callable[[], object], clock: Callable[[], float]) -> float:
    begin = clock()
    work()
    return clock() - begin


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", choices=["event", "shapes", "few", "maps"])
    options = parser.parse_args()
    rounds: int = options.rounds
    keep_freed_memory()  # as `kmr run` does
    freeze_modules()
    parts = {
        "event": print_event, "shapes": print_shapes, "few": print_few, "maps": print_maps,
    }  # fmt: skip
    for name, part in parts.items():
        if options.only in (None, name):
            part(rounds)


def print_event(rounds: int) -> None:
    """Measure one flat event in each format, also by two threads."""
    made = events(ROWS)
    lines = []
    for contest in (json_(), avro(SCHEMA, made), protobuf(hit_class(), made)):
        found = measure(contest, rounds)
        lines.append(
            _line(contest.name, "kmr, to columns", found.ours, "1.0", f"{found.speedup:.1f}")
        )
        for rival, seconds in found.rivals.items():
            ratio = f"{seconds / found.ours:.1f}"
            lines.append(_line(contest.name, f"{rival}, to objects", seconds, ratio, ""))
    print_table(
        "Values to columns or objects, one core",
        ["format", "decoder", "values/s", "ns", "times our time", "two threads"],
        lines,
        text=("format", "decoder"),
    )


def print_shapes(rounds: int) -> None:
    """Measure values of each shape as part of the time of the usual library, in three tables."""
    parts = {
        "to columns": _to_columns,
        "to a function for each record": _to_a_function,
        "from columns": _from_columns,
    }
    lines: dict[str, list[list[str]]] = {title: [] for title in parts}
    for shape in SHAPES:
        contests = _contests(shape, shape.values())
        for title, pair in parts.items():
            cells = [shape.name]
            for contest in contests:
                if contest is None:
                    cells += ["", ""]
                    continue
                ours, theirs = _in_turn(*pair(contest, shape), rounds)
                cells += [f"{ours / len(contest.values) * 1e9:,.0f}", f"{ours / theirs:.2f}"]
            lines[title].append(cells)
    headings = ["value", *_FORMATS]
    for title, made in lines.items():
        print_table(f"Values of many shapes {title}, one core", headings, made, text=("value",))


_FORMATS = [
    *("JSON, ns", "of msgspec's time", "Avro, ns", "of fastavro's time"),
    *("Protobuf, ns", "of google.protobuf's time"),
]


def print_few(rounds: int) -> None:
    """Measure few values at once, to columns: each batch costs something, and each of its columns."""
    lines = []
    for fields in (10, 50, 200, 1000):
        (shape,) = (each for each in SHAPES if each.name == f"{fields} fields")
        values = shape.values()
        for count in (1, 5, 50):
            cells = [shape.name, f"{count}"]
            for contest in filter(None, _contests(shape, values[:count])):
                ours, theirs = _in_turn(*_to_columns(contest, shape), 20 * rounds)
                cells += [f"{ours / count * 1e9:,.0f}", f"{ours / theirs:.2f}"]
            lines.append(cells)
    headings = ["value", "at once", *_FORMATS]
    print_table("Few values to columns, one core", headings, lines, text=("value",))


def _contests(shape: Shape, values: list[dict[str, Any]]) -> list[Contest | None]:
    texts = [
        json.dumps(each, ensure_ascii=False, separators=(",", ":")).encode() for each in values
    ]
    decode: Callable[[bytes], object] = msgspec.json.Decoder(shape.type).decode
    message = message_class(shape.type)
    return [
        Contest("JSON", Json(shape.type), texts, {"msgspec": decode}, msgspec.json.encode),
        avro(avro_schema(shape.type), values),
        None if message is None else protobuf(message, values),
    ]


Pair: TypeAlias = "tuple[Callable[[], object], Callable[[], object]]"
"""Our work, and the same by the usual library."""


def _to_columns(contest: Contest, shape: Shape) -> Pair:
    column: pa.BinaryArray = pa.array(contest.values, pa.binary())
    failures = contest.format.decode(column).failures
    if failures:
        raise RuntimeError(f"{contest.name}: {failures}")
    (read,) = contest.rivals.values()
    return partial(contest.format.decode, column), partial(_each, read, contest.values)


def _to_a_function(contest: Contest, shape: Shape) -> Pair:
    """Let a function that keeps nothing see each value."""
    records = batch_of("bench", 0, 0, contest.values).records
    strategy = Strategy(map=_nothing, value=contest.format, reduce=[NullWriter()])
    (read,) = contest.rivals.values()

    def by_hand(value: bytes) -> None:
        _nothing(read(value))

    ours = partial(apply, strategy.map, records, strategy.map_spec)
    return ours, partial(_each, by_hand, contest.values)


def _from_columns(contest: Contest, shape: Shape) -> Pair:
    """Encode a table; the library encodes its rows, which are dicts by then."""
    column: pa.BinaryArray = pa.array(contest.values, pa.binary())
    table = pa.Table.from_batches([contest.format.decode(column).columns])

    def by_hand() -> None:
        for row in table.to_pylist(maps_as_pydicts="strict"):
            contest.write(row)

    return partial(contest.format.encode, table, "bench"), by_hand


def _each(work: Callable[[bytes], object], values: list[bytes]) -> None:
    for _ in map(work, values):
        pass


def _in_turn(
    ours: Callable[[], object], theirs: Callable[[], object], rounds: int
) -> tuple[float, float]:
    """Return the seconds of ours and of the other, in turn; the best of several rounds."""
    best = [float("inf")] * 2
    for _ in range(rounds):
        for at, work in enumerate((ours, theirs)):
            best[at] = min(best[at], _seconds(work, time.thread_time))
    return best[0], best[1]


@map_record
def _nothing(value: Any) -> None:
    """Keep nothing."""


def print_maps(rounds: int) -> None:
    """Measure the maps alone: values in, rows out."""
    records = batch_of("bench", 0, 0, json_events(BATCH, 180)).records
    value = Json(Hit)
    maps = {
        "per record, `json.loads`": Strategy(map=by_hand, reduce=[NullWriter()]),
        "per record with the `Record`": Strategy(map=typed, value=value, reduce=[NullWriter()]),
        "per record": Strategy(map=_wanted, value=value, reduce=[NullWriter()]),
        "per batch": Strategy(map=columns, value=value, reduce=[NullWriter()]),
        "none": Strategy(value=value, reduce=[NullWriter()]),
    }
    best = dict.fromkeys(maps, float("inf"))
    for _ in range(4 * rounds):
        for name, strategy in maps.items():
            work = partial(apply, strategy.map, records, strategy.map_spec)
            best[name] = min(best[name], _seconds(work, time.thread_time) / BATCH)
    slowest = max(best.values())
    lines = [
        [name, f"{1 / each:,.0f}", f"{each * 1e9:,.0f}", f"{slowest / each:.1f}"]
        for name, each in best.items()
    ]
    headings = ["map", "records/s", "ns", "times as fast"]
    print_table("Maps of JSON events alone, one core", headings, lines, text=("map",))


@map_record
def _wanted(hit: Hit) -> Hit | None:
    return None if hit.status == 404 else hit


def _line(name: str, who: str, seconds: float, *rest: str) -> list[str]:
    return [name, who, f"{1 / seconds:,.0f}", f"{seconds * 1e9:,.0f}", *rest]


if __name__ == "__main__":
    main()
