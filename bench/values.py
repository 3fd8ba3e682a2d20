"""Decoding of values, on one core: `python -m bench.values` prints records/s and ratios.

The same 10-field events in Avro and in Protobuf become Arrow columns by kmr, and Python objects by fastavro
and by google.protobuf (all fields read). Times are processor time of the thread, the best of several rounds,
contenders in turn. The last column has two threads at a time: 2.0 where the interpreter lock is never held.
"""

from __future__ import annotations

import argparse
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from rich.console import Console
from rich.table import Table

from kmr import Avro, Protobuf

if TYPE_CHECKING:
    from collections.abc import Callable

    from kmr import ValueFormat

ROWS = 131_072
SLOW_ROWS = 20_000
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
    """One format: our way, and the usual way for one value."""

    name: str
    rival: str
    format: ValueFormat
    values: list[bytes]
    read: Callable[[bytes], object]


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


def avro(rows: list[dict[str, Any]]) -> Contest:
    """Avro without a registry, beside fastavro."""
    schema = fastavro.parse_schema(SCHEMA)
    values = []
    for row in rows:
        into = BytesIO()
        fastavro.schemaless_writer(into, schema, row)
        values.append(into.getvalue())

    def read(value: bytes) -> object:
        return fastavro.schemaless_reader(BytesIO(value), schema, None)

    return Contest("Avro", "fastavro", Avro(SCHEMA), values, read)


def protobuf(rows: list[dict[str, Any]]) -> Contest:
    """Protobuf without a registry, beside google.protobuf."""
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
    hit = GetMessageClass(pool.FindMessageTypeByName("bench.Hit"))
    values = [hit(**row).SerializeToString() for row in rows]
    names = list(PROTOBUF)

    def read(value: bytes) -> object:
        parsed = hit.FromString(value)
        return [getattr(parsed, name) for name in names]

    return Contest("Protobuf", "google.protobuf", Protobuf(hit), values, read)


def measure(contest: Contest, rounds: int) -> tuple[float, float, float]:
    """Return seconds per record of ours and of theirs, and the speed-up by a second thread."""
    column: pa.BinaryArray = pa.array(contest.values, pa.binary())
    slow = contest.values[:SLOW_ROWS]

    def decode() -> None:
        contest.format.decode(column)

    def read() -> None:
        for value in slow:
            contest.read(value)

    decode()  # compiles
    ours, theirs, one, two = [], [], [], []
    with ThreadPoolExecutor(2) as threads:

        def both() -> None:
            for each in [threads.submit(decode), threads.submit(decode)]:
                each.result()

        for _ in range(rounds):
            ours.append(_seconds(decode, time.thread_time) / len(column))
            theirs.append(_seconds(read, time.thread_time) / len(slow))
            one.append(_seconds(decode, time.perf_counter))
            two.append(_seconds(both, time.perf_counter))
    return min(ours), min(theirs), 2 * min(one) / min(two)


def _seconds(work: Callable[[], object], clock: Callable[[], float]) -> float:
    begin = clock()
    work()
    return clock() - begin


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    rounds: int = parser.parse_args().rounds
    rows = events(ROWS)
    table = Table(title="10-field events to columns, one core", title_justify="left")
    for heading in ("format", "contender", "records/s", "ns/record", "ratio", "two threads"):
        table.add_column(heading, justify="left" if heading in ("format", "contender") else "right")
    for contest in (avro(rows), protobuf(rows)):
        ours, theirs, speedup = measure(contest, rounds)
        table.add_row(
            contest.name, "kmr, to columns", f"{1 / ours:,.0f}", f"{ours * 1e9:,.0f}",
            f"{theirs / ours:.1f}", f"{speedup:.1f}",
        )  # fmt: skip
        table.add_row(
            contest.name, f"{contest.rival}, to objects", f"{1 / theirs:,.0f}", f"{theirs * 1e9:,.0f}",
            "1.0", "",
        )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    main()
