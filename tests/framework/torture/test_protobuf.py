"""Protobuf: messages of random types, with odd encodings, are read as google.protobuf reads them."""

from __future__ import annotations

import itertools
import struct
from typing import Any, Final

import pyarrow as pa
from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    field_mask_pb2,
    message_factory,
    timestamp_pb2,
    unknown_fields,
    wrappers_pb2,
)
from google.protobuf.message import DecodeError
from hypothesis import given, note, settings
from hypothesis import strategies as st

from kmr import Protobuf
from tests.examples import examples

from .plain_values import Entries, Float, Moment, Struct, Text, is_same, plain

Field = descriptor_pb2.FieldDescriptorProto
SCALARS = [
    "double",
    "float",
    "int64",
    "uint64",
    "int32",
    "fixed64",
    "fixed32",
    "bool",
    "string",
    "bytes",
    "uint32",
    "sfixed32",
    "sfixed64",
    "sint32",
    "sint64",
]
COUNT = itertools.count()
KNOWN_FILES = (timestamp_pb2, wrappers_pb2, duration_pb2, any_pb2, field_mask_pb2)
WELL_KNOWN = [
    ".google.protobuf.Timestamp",
    *(
        f".google.protobuf.{n}"
        for n in (
            "Int64Value",
            "UInt32Value",
            "DoubleValue",
            "BoolValue",
            "StringValue",
            "BytesValue",
            "Duration",
            "Any",
            "FieldMask",
        )
    ),
]


@st.composite
def message_types(draw: Any) -> Any:
    """The class of a random message type, of proto2 or proto3."""
    number = next(COUNT)
    file = descriptor_pb2.FileDescriptorProto(
        name=f"torture{number}.proto",
        package=f"torture{number}",
        syntax=draw(st.sampled_from(["proto2", "proto3"])),
    )
    file.dependency.extend(known.DESCRIPTOR.name for known in KNOWN_FILES)
    for kind, values in (("Plan", [0, 1, 2]), ("Odd", [0, -1, 2**31 - 1, -(2**31), 0])):
        made = file.enum_type.add(name=kind)
        for at, n in enumerate(values):
            made.value.add(name=f"{kind.upper()}_{at}", number=n)
        made.options.allow_alias = len(set(values)) < len(values)
    for level in range(draw(st.integers(1, 3))):
        fill(draw, file, file.message_type.add(name=f"M{level}"), level)
    pool = descriptor_pool.DescriptorPool()
    for known in KNOWN_FILES:
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName(f"{file.package}.{file.message_type[-1].name}")
    )


def fill(draw: Any, file: Any, into: Any, level: int) -> None:
    proto3 = file.syntax == "proto3"
    numbers = draw(
        st.lists(
            st.sampled_from([1, 2, 15, 16, 2047, 2048, 18999, 2**29 - 1]),
            min_size=1,
            max_size=5,
            unique=True,
        )
    )
    for at, number in enumerate(numbers):
        field = into.field.add(
            name=draw(st.sampled_from(["f", "Value", "x_", "offset"])) + str(at), number=number
        )
        kinds = ["scalar"] * 4 + ["enum", "known"] + ["message"] * (2 * bool(level))
        kind = draw(st.sampled_from(kinds))
        shape = draw(st.sampled_from(["one", "one", "optional", "repeated", "map", "oneof"]))
        if kind == "scalar":
            field.type = getattr(Field, f"TYPE_{draw(st.sampled_from(SCALARS)).upper()}")
        elif kind == "enum":
            field.type, field.type_name = (
                Field.TYPE_ENUM,
                f".{file.package}.{draw(st.sampled_from(['Plan', 'Odd']))}",
            )
        else:
            name = (
                draw(st.sampled_from(WELL_KNOWN))
                if kind == "known"
                else f".{file.package}.M{draw(st.integers(0, level - 1))}"
            )
            field.type, field.type_name = Field.TYPE_MESSAGE, name
        field.label = Field.LABEL_OPTIONAL
        if shape == "repeated":
            field.label = Field.LABEL_REPEATED
            if (
                kind in ("scalar", "enum")
                and field.type not in (Field.TYPE_STRING, Field.TYPE_BYTES)
                and draw(st.booleans())
            ):
                field.options.packed = draw(st.booleans())
        elif shape == "map":
            entry = into.nested_type.add(name=f"{camel(field.name)}Entry")
            entry.options.map_entry = True
            key = entry.field.add(name="key", number=1, label=Field.LABEL_OPTIONAL)
            key.type = getattr(
                Field,
                f"TYPE_{draw(st.sampled_from(['INT32', 'STRING', 'BOOL', 'SINT64', 'UINT64', 'FIXED32']))}",
            )
            value = entry.field.add(
                name="value", number=2, label=Field.LABEL_OPTIONAL, type=field.type
            )
            if field.type_name:
                value.type_name = field.type_name
            field.type, field.label, field.type_name = (
                Field.TYPE_MESSAGE,
                Field.LABEL_REPEATED,
                f".{file.package}.{into.name}.{entry.name}",
            )
        elif shape == "oneof":
            if not into.oneof_decl:
                into.oneof_decl.add(name="choice")
            field.oneof_index = 0
        elif not proto3 and draw(st.integers(0, 5)) == 0:
            field.label = Field.LABEL_REQUIRED
        elif not proto3 and kind == "scalar" and draw(st.booleans()):
            field.default_value = default_of(field.type)
    if proto3:  # the synthetic ones of `optional` stand behind the real ones
        for field in into.field:
            if (
                field.label == Field.LABEL_OPTIONAL
                and not field.HasField("oneof_index")
                and field.type != Field.TYPE_MESSAGE
                and draw(st.booleans())
            ):
                field.proto3_optional = True
                field.oneof_index = len(into.oneof_decl)
                into.oneof_decl.add(name=f"_{field.name}")


def camel(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def default_of(kind: int) -> str:
    return {
        Field.TYPE_STRING: "d'é",
        Field.TYPE_BYTES: "\\001x",
        Field.TYPE_BOOL: "true",
        Field.TYPE_DOUBLE: "-inf",
        Field.TYPE_FLOAT: "1.5",
    }.get(kind, "7")


def varint(n: int) -> bytes:
    n &= 2**64 - 1
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*out, n])


INTEGERS = st.sampled_from(
    [
        0,
        1,
        -1,
        2,
        127,
        128,
        2**31 - 1,
        2**31,
        -(2**31),
        2**32 - 1,
        2**32,
        2**63 - 1,
        -(2**63),
        2**64 - 1,
    ]
)


def scalar(draw: Any, field: Any) -> tuple[int, bytes]:
    """A wire type and the bytes of a value, which need not be canonical."""
    match field.type:
        case Field.TYPE_DOUBLE:
            return 1, struct.pack("<d", draw(st.floats()))
        case Field.TYPE_FLOAT:
            return 5, struct.pack("<f", draw(st.floats(width=32)))
        case Field.TYPE_FIXED64 | Field.TYPE_SFIXED64:
            return 1, (draw(INTEGERS) & (2**64 - 1)).to_bytes(8, "little")
        case Field.TYPE_FIXED32 | Field.TYPE_SFIXED32:
            return 5, (draw(INTEGERS) & (2**32 - 1)).to_bytes(4, "little")
        case Field.TYPE_STRING:
            raw = draw(st.text(max_size=6) | st.sampled_from(["", "\x00", "😀"])).encode(
                "utf-8", "surrogatepass"
            )
            return 2, varint(len(raw)) + raw
        case Field.TYPE_BYTES:
            raw = draw(st.binary(max_size=6))
            return 2, varint(len(raw)) + raw
        case Field.TYPE_ENUM:
            return 0, varint(draw(st.sampled_from([v.number for v in field.enum_type.values])))
        case Field.TYPE_BOOL:
            return 0, varint(draw(st.sampled_from([0, 1])))
    return 0, varint(draw(INTEGERS))


def encoded(draw: Any, of: Any, depth: int = 0) -> bytes:
    """Fields in any order, some twice, packed and not, unknown ones between them."""
    out = b""
    fields = list(of.fields)
    for _ in range(draw(st.integers(0, 6))):
        # google.protobuf keeps an entry of a map that has unknown fields out of the map
        if not of.GetOptions().map_entry and draw(st.integers(0, 7)) == 0:
            out += draw(
                st.sampled_from(
                    [
                        varint(3 << 3) + b"\x05",
                        varint((4 << 3) | 2) + b"\x02ab",
                        varint((5 << 3) | 1) + b"12345678",
                        varint((6 << 3) | 5) + b"1234",
                        b"\x3b\x08\x01\x3c",
                    ]
                )
            )
            continue
        field = draw(st.sampled_from(fields))
        if field.type == Field.TYPE_MESSAGE:
            if field.message_type.full_name == "google.protobuf.Timestamp":
                inner = b"".join(
                    varint(n << 3) + varint(v)
                    for n, v in (
                        (1, draw(st.integers(-62135596800, 253402300799))),
                        (2, draw(st.integers(0, 999_999)) * 1000),
                    )
                )
            else:
                inner = encoded(draw, field.message_type, depth + 1)
            out += varint((field.number << 3) | 2) + varint(len(inner)) + inner
        elif (
            field.is_repeated
            and field.type not in (Field.TYPE_STRING, Field.TYPE_BYTES)
            and draw(st.booleans())
        ):
            inner = b"".join(scalar(draw, field)[1] for _ in range(draw(st.integers(0, 3))))
            out += varint((field.number << 3) | 2) + varint(len(inner)) + inner
        else:
            wire, raw = scalar(draw, field)
            out += varint((field.number << 3) | wire) + raw
    return out


def expected_of(message: Any) -> Struct:
    return Struct(
        tuple((field.name, expected(message, field)) for field in message.DESCRIPTOR.fields)
    )


def expected(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        of = field.message_type.fields_by_name
        return {key_of(k): one(value[k], of["value"]) for k in value}
    if field.is_repeated:
        return tuple(one(each, field) for each in value)
    if field.has_presence and not message.HasField(field.name):
        return None
    return one(value, field)


def key_of(key: Any) -> Any:
    return Text(key.encode()) if isinstance(key, str) else key


def one(value: Any, field: Any) -> Any:
    if field.type == Field.TYPE_ENUM:
        return Text(field.enum_type.values_by_number[value].name.encode())
    if field.type == Field.TYPE_MESSAGE:
        name = field.message_type.full_name
        if name == "google.protobuf.Timestamp":
            return Moment(value.seconds * 10**9 + value.nanos, True)
        if name.startswith("google.protobuf.") and name.endswith("Value"):
            return one(value.value, field.message_type.fields_by_name["value"])
        return expected_of(value)
    if field.type in (Field.TYPE_DOUBLE, Field.TYPE_FLOAT):
        return Float(value, 64 if field.type == Field.TYPE_DOUBLE else 32)
    return Text(value.encode()) if isinstance(value, str) else value


def matches(want: Any, got: Any) -> bool:
    if isinstance(want, dict):  # a map of Arrow keeps repeated keys, the last of which counts
        if not isinstance(got, Entries):
            return False
        found = dict(got.pairs)
        return found.keys() == want.keys() and all(matches(v, found[k]) for k, v in want.items())
    if isinstance(want, Struct):
        return (
            isinstance(got, Struct)
            and [n for n, _ in got.fields] == [n for n, _ in want.fields]
            and all(matches(a[1], b[1]) for a, b in zip(want.fields, got.fields, strict=True))
        )
    if isinstance(want, tuple):
        return isinstance(got, tuple) and len(got) == len(want) and all(map(matches, want, got))
    return is_same(want, got)


# The decoder does not take back a message with lists that another member of its oneof replaces.
SET_AGAIN: Final = "the oneof is set more than once, with a message that has lists"


@st.composite
def messages(draw: Any) -> tuple[Any, list[bytes]]:
    kind = draw(message_types())
    return kind, [encoded(draw, kind.DESCRIPTOR) for _ in range(draw(st.integers(1, 4)))]


@settings(max_examples=examples(120))
@given(messages())
def test_messages_of_random_types_are_read_as_google_reads_them(made: Any) -> None:
    kind, values = made
    note(f"{kind.DESCRIPTOR.file.serialized_pb!r} {values}")
    decoded = Protobuf(kind).decode(pa.array(values, pa.binary()))
    rows = plain(pa.table(decoded.columns).to_struct_array())
    for n, raw in enumerate(values):
        if n in decoded.failures:
            assert SET_AGAIN in decoded.failures[n]
        else:
            assert matches(expected_of(kind.FromString(raw)), rows[n])


@settings(max_examples=examples(120))
@given(messages(), st.data())
def test_a_damaged_message_fails_alone_or_is_what_google_reads(made: Any, data: Any) -> None:
    kind, sound = made
    raw = bytearray(sound[0])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(0, len(raw) - 1)))
        if data.draw(st.booleans()) and raw:
            raw[at] = data.draw(st.integers(0, 255))
        elif data.draw(st.booleans()):
            raw.insert(at, data.draw(st.integers(0, 255)))
        else:
            raw = raw[:at]
    note(f"{kind.DESCRIPTOR.file.serialized_pb!r} {bytes(raw)!r}")
    decoded = Protobuf(kind).decode(pa.array([*sound, bytes(raw), *sound], pa.binary()))
    failed = {n for n, reason in decoded.failures.items() if SET_AGAIN not in reason}
    assert failed <= {len(sound)}
    if not decoded.failures:
        rows = plain(pa.table(decoded.columns).to_struct_array())
        try:
            read = kind.FromString(bytes(raw))
        except DecodeError:
            return  # text that is not UTF-8, of which a later one takes the place
        has_unknown = len(unknown_fields.UnknownFieldSet(read)) > 0
        if has_unknown:
            return  # among them may be entries of maps
        assert matches(expected_of(read), rows[len(sound)])
