"""Protobuf message types made at random, messages of them, and what google.protobuf reads of these."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from google.protobuf import duration_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from hypothesis import strategies as st

from kmr.values.protobuf.messages import WRAPPERS

from .types import SCALARS, F, class_of, field

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
    from google.protobuf.message import Message

_KNOWN = [timestamp_pb2.DESCRIPTOR, duration_pb2.DESCRIPTOR, wrappers_pb2.DESCRIPTOR]
_KEYS = [each for each in SCALARS if each not in {"double", "float", "bytes"}]
_MESSAGES = [
    *(".google.protobuf.Timestamp", ".google.protobuf.Duration", ".google.protobuf.StringValue"),
    *(".google.protobuf.DoubleValue", ".google.protobuf.Int64Value", ".google.protobuf.BoolValue"),
]


class Unreadable(Exception):
    """google.protobuf reads the message, we do not: an enum has no such value, or a time is too far away."""


class _Types:
    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.syntax = draw(st.sampled_from(["proto2", "proto3"]))
        self.file = FileDescriptorProto(name="made.proto", package="m", syntax=self.syntax)
        self.file.dependency.extend(each.name for each in _KNOWN)
        enum = self.file.enum_type.add(name="E")
        enum.options.allow_alias = True
        for number, name in [(0, "ZERO"), (2, "TWO"), (-1, "LESS"), (2, "ZWEI")]:
            enum.value.add(name=name, number=number)
        self.count = 0

    def message(self, depth: int) -> str:
        """Add a message type; return its name."""
        draw = self.draw
        self.count += 1
        made = self.file.message_type.add(name=f"M{self.count}")
        name = f".m.{made.name}"
        numbers = draw(
            st.lists(
                st.one_of(st.integers(1, 20), st.sampled_from([127, 2048, 2**29 - 1])),
                min_size=1,
                max_size=6,
                unique=True,
            )
        )
        made = DescriptorProto(name=made.name)  # those inside it are added to the file meanwhile
        for at, number in enumerate(numbers):
            self._field(made, f"f{at}", number, depth)
        self._oneof(made)
        if self.syntax == "proto2":
            made.extension_range.add(start=100, end=120)
        for each in self.file.message_type:
            if each.name == made.name:
                each.CopyFrom(made)
        return name

    def _field(self, made: Any, name: str, number: int, depth: int) -> None:
        draw = self.draw
        kind = draw(st.sampled_from(["scalar", "scalar", "repeated", "enum", "map", "message"]))
        label = draw(st.sampled_from([F.LABEL_OPTIONAL, F.LABEL_OPTIONAL, F.LABEL_REPEATED]))
        if self.syntax == "proto2" and draw(st.integers(0, 5)) == 0 and kind != "map":
            label = F.LABEL_REQUIRED
        if kind == "map":
            self._map(made, name, number, depth)
            return
        if kind == "repeated":
            kind, label = "scalar", F.LABEL_REPEATED
        if kind == "message":
            of = self._inner(depth)
            field(made, name, "message", number, label=label, of=of)
            return
        type_ = "enum" if kind == "enum" else draw(st.sampled_from(SCALARS))
        added = field(made, name, type_, number, label=label, of=".m.E" if kind == "enum" else "")
        if label == F.LABEL_REPEATED and type_ not in {"string", "bytes"}:
            added.options.packed = draw(st.booleans())

    def _inner(self, depth: int) -> str:
        if depth and self.draw(st.booleans()):
            return self.message(depth - 1)
        return str(self.draw(st.sampled_from(_MESSAGES)))

    def _map(self, made: Any, name: str, number: int, depth: int) -> None:
        entry = made.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        field(entry, "key", self.draw(st.sampled_from(_KEYS)), 1)
        kind = self.draw(st.sampled_from(["scalar", "enum", "message"]))
        if kind == "scalar":
            field(entry, "value", self.draw(st.sampled_from(SCALARS)), 2)
        else:
            of = ".m.E" if kind == "enum" else self._inner(depth)
            field(entry, "value", kind, 2, of=of)
        of = f".m.{made.name}.{entry.name}"
        field(made, name, "message", number, label=F.LABEL_REPEATED, of=of)

    def _oneof(self, made: Any) -> None:
        single = [each for each in made.field if each.label == F.LABEL_OPTIONAL]
        if len(single) > 1 and self.draw(st.booleans()):
            made.oneof_decl.add(name="choice")
            for each in single[:3]:
                each.oneof_index = 0
        if self.syntax == "proto3":
            for each in single[3:]:
                if each.type != F.TYPE_MESSAGE and self.draw(st.booleans()):
                    each.oneof_index = len(made.oneof_decl)
                    each.proto3_optional = True
                    made.oneof_decl.add(name=f"_{each.name}")


@st.composite
def types(draw: Any) -> type[Message]:
    """Draw a class of messages."""
    made = _Types(draw)
    name = made.message(2)
    return class_of(made.file, name[1:])


_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    F.TYPE_DOUBLE: st.floats(),
    F.TYPE_FLOAT: st.floats(width=32),
    F.TYPE_BOOL: st.booleans(),
    F.TYPE_STRING: st.text(max_size=4),
    F.TYPE_BYTES: st.binary(max_size=4),
    F.TYPE_ENUM: st.sampled_from([0, 2, -1]),
}
for _name in SCALARS[:10]:
    _bits = 64 if "64" in _name else 32
    _low, _high = (
        (0, 2**_bits - 1)
        if _name.startswith(("uint", "fixed"))
        else (-(2 ** (_bits - 1)), 2 ** (_bits - 1) - 1)
    )
    _SCALARS[getattr(F, f"TYPE_{_name.upper()}")] = st.one_of(
        st.integers(_low, _high), st.sampled_from([_low, _high, 0, 1])
    )


@st.composite
def messages(draw: Any, make: Any) -> Message:
    """Draw a message of a class; fields are missing, empty or repeated."""
    message = make()
    _fill(draw, message)
    return message  # type: ignore[no-any-return]


def _fill(draw: Any, message: Any) -> None:
    descriptor = message.DESCRIPTOR
    if descriptor.full_name == "google.protobuf.Timestamp":
        message.seconds = draw(st.integers(-(10**12), 10**12))
        message.nanos = draw(st.integers(0, 10**9 - 1))
        return
    for each in descriptor.fields:
        required = each.is_required
        if not required and draw(st.booleans()):
            continue
        if _is_map(each):
            entries = getattr(message, each.name)
            _, value = each.message_type.fields
            for key in draw(st.lists(_SCALARS[each.message_type.fields[0].type], max_size=3)):
                if value.type == F.TYPE_MESSAGE:
                    _fill(draw, entries[key])
                else:
                    entries[key] = draw(_SCALARS[value.type])
        elif each.is_repeated and each.type == F.TYPE_MESSAGE:
            for _ in range(draw(st.integers(0, 2))):
                _fill(draw, getattr(message, each.name).add())
        elif each.is_repeated:
            getattr(message, each.name).extend(draw(st.lists(_SCALARS[each.type], max_size=3)))
        elif each.type == F.TYPE_MESSAGE:
            getattr(message, each.name).SetInParent()
            _fill(draw, getattr(message, each.name))
        else:
            setattr(message, each.name, draw(_SCALARS[each.type]))


def _is_map(each: FieldDescriptor) -> bool:
    entry = each.message_type
    return entry is not None and bool(entry.GetOptions().map_entry)


UNKNOWN = st.lists(
    st.sampled_from(
        [
            b"\xf8\x3f\x01", b"\xf9\x3f" + b"x" * 8, b"\xfd\x3fxxxx", b"\xfa\x3f\x02ab",
            b"\xfb\x3f\x08\x01\x13\x14\xfc\x3f", b"\xa8\x06\x01", b"\xaa\x06\x02\x08\x01",
        ]
    ),
    max_size=2,
).map(b"".join)  # fmt: skip
"""Fields 1023, and of extensions 101, in all wire types."""


def read(make: Any, data: bytes) -> dict[str, Any]:
    """Decode a value by google.protobuf, as `raw` returns Arrow's values.

    Raises:
        Unreadable: an enum has no such value, or a time is out of range.
        DecodeError: the value is damaged.
    """
    row: dict[str, Any] = _row(make.FromString(data))
    return row


def _row(message: Any) -> Any:
    descriptor: Descriptor = message.DESCRIPTOR
    if descriptor.full_name == "google.protobuf.Timestamp":
        if not 0 <= message.nanos < 10**9 or abs(message.seconds) > 2**63 // 10**6 - 1:
            raise Unreadable
        return message.seconds * 10**6 + message.nanos // 1000
    if descriptor.full_name in WRAPPERS:
        return _value(descriptor.fields[0], message.value)
    return {each.name: _field_of(message, each) for each in descriptor.fields}


def _field_of(message: Any, each: FieldDescriptor) -> Any:
    value = getattr(message, each.name)
    if _is_map(each):
        of_value = each.message_type.fields_by_name["value"]  # type: ignore[union-attr]
        # Asking for a key that is not there would add it.
        return {key: _value(of_value, value[key]) for key in list(value)}
    if each.is_repeated:
        return [_value(each, one) for one in value]
    if each.has_presence and not message.HasField(each.name):
        return None
    return _value(each, value)


def _value(each: FieldDescriptor, value: Any) -> Any:
    if each.type == F.TYPE_MESSAGE:
        return _row(value)
    if each.type == F.TYPE_ENUM:
        enum: EnumDescriptor = each.enum_type  # type: ignore[assignment]
        for known in enum.values:
            if known.number == value:
                return known.name
        raise Unreadable
    if each.type in (F.TYPE_DOUBLE, F.TYPE_FLOAT):
        return struct.pack("<d", value)
    return value


def raw(value: Any) -> Any:
    """Return a value of Arrow as it is stored: times as integers, floats as their bytes."""
    if isinstance(value, pa.StructScalar):
        return {name: raw(each) for name, each in value.items()} if value.is_valid else None
    if isinstance(value, pa.MapScalar):
        pairs: Any = value.values
        return None if pairs is None else {p["key"].as_py(): raw(p["value"]) for p in pairs}
    if isinstance(value, pa.ListScalar):
        items: Any = value.values
        return None if items is None else [raw(each) for each in items]
    if isinstance(value, pa.DoubleScalar | pa.FloatScalar) and value.is_valid:
        return struct.pack("<d", value.as_py())
    stored: Any = getattr(value, "value", None)
    return stored if stored is not None else value.as_py()
