"""Protobuf message types made at random, messages of them, and what google.protobuf reads of these."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from google.protobuf.descriptor_pb2 import DescriptorProto, Edition, FeatureSet, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import strategies as st

from kmr.values.protobuf.messages import WRAPPERS

from .types import KNOWN, SCALARS, F, field

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
    from google.protobuf.message import Message

_LENGTH = 2  # the wire type of messages
_KEYS = [each for each in SCALARS if each not in {"double", "float", "bytes"}]
_MESSAGES = [
    *(f".{name}" for name in sorted(WRAPPERS)),
    *(".google.protobuf.Timestamp", ".google.protobuf.Timestamp", ".google.protobuf.Duration"),
    *(".google.protobuf.Any", ".google.protobuf.Empty", ".google.protobuf.FieldMask"),
]
_JSON = [f".google.protobuf.{name}" for name in ("Struct", "Value", "ListValue")]
_PACKAGES = ["m", "m.v1", "n"]


class Unreadable(Exception):
    """google.protobuf reads the message, we do not: of an enum's value, a time too far away, or a text."""


class _Types:
    """Message types in several files; a file imports those that come after it.

    Attributes:
        left_out: for each message the fields without columns: a group, one by which it contains itself.
    """

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.syntax = draw(st.sampled_from(["proto2", "proto3", "editions"]))
        self.files = [self._file(at) for at in range(len(_PACKAGES))]
        self.left_out: dict[str, set[str]] = {}
        self._complete: list[list[str]] = [[] for _ in self.files]
        self._outer: list[tuple[int, str]] = []
        self.count = 0

    def _file(self, at: int) -> FileDescriptorProto:
        file = FileDescriptorProto(
            name=f"made{at}.proto", package=_PACKAGES[at], syntax=self.syntax
        )
        file.dependency.extend(each.name for each in KNOWN)
        file.dependency.extend(f"made{other}.proto" for other in range(at + 1, len(_PACKAGES)))
        enum = file.enum_type.add(name="E")
        enum.options.allow_alias = True
        for number, name in [(0, "ZERO"), (2, "TWO"), (-1, "LESS"), (2, "ZWEI")]:
            enum.value.add(name=name, number=number)
        if self.syntax == "editions":
            file.edition = Edition.EDITION_2023
            closed = self.draw(st.booleans())
            enum.options.features.enum_type = FeatureSet.CLOSED if closed else FeatureSet.OPEN
        return file

    def message(self, depth: int, file: int = 0) -> str:
        """Add a message type to a file, or to one that it imports; return its name."""
        draw = self.draw
        self.count += 1
        at = draw(st.integers(file, len(self.files) - 1))
        name = f".{_PACKAGES[at]}.M{self.count}"
        numbers = draw(
            st.lists(
                st.one_of(st.integers(1, 20), st.sampled_from([127, 2048, 2**29 - 1])),
                min_size=1,
                max_size=6,
                unique=True,
            )
        )
        made = DescriptorProto(name=f"M{self.count}")
        self._outer.append((at, name))
        for number in numbers:
            self._field(made, f"f{len(made.field)}", number, depth)
        self._oneof(made)
        if self.syntax != "proto3":
            made.extension_range.add(start=100, end=120)
        self._without_columns(made, name)
        self._outer.pop()
        self.files[at].message_type.add().CopyFrom(made)
        self._complete[at].append(name)
        return name

    @property
    def _at(self) -> int:
        return self._outer[-1][0]

    def _without_columns(self, made: Any, name: str) -> None:
        """Add fields by which a message contains itself, and a group."""
        draw = self.draw
        left_out = self.left_out.setdefault(name, set())
        labels = st.sampled_from([F.LABEL_OPTIONAL, F.LABEL_REPEATED])
        if draw(st.integers(0, 3)) == 0:
            around = [other for at, other in self._outer if at == self._at]
            of = draw(st.sampled_from([*around, *_JSON]))
            field(made, "again", "message", 501, label=draw(labels), of=of)
            left_out.add("again")
        if self.syntax == "proto2" and draw(st.integers(0, 3)) == 0:
            group = made.nested_type.add(name="Group")
            field(group, "n", "int32", 1)
            field(group, "text", "string", 2, label=F.LABEL_REPEATED)
            field(made, "group", "group", 502, label=draw(labels), of=f"{name}.Group")
            left_out.add("group")

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
            field(made, name, "message", number, label=label, of=self._inner(depth))
            return
        type_ = "enum" if kind == "enum" else draw(st.sampled_from(SCALARS))
        added = field(
            made, name, type_, number, label=label, of=self._enum() if kind == "enum" else ""
        )
        if label == F.LABEL_REPEATED and type_ not in {"string", "bytes"}:
            self._pack(added, packed=draw(st.booleans()))
        elif self.syntax == "editions" and label == F.LABEL_OPTIONAL and type_ != "enum":
            presence = draw(st.sampled_from([FeatureSet.IMPLICIT, FeatureSet.EXPLICIT]))
            added.options.features.field_presence = presence

    def _pack(self, added: Any, *, packed: bool) -> None:
        if self.syntax == "editions":
            encoding = FeatureSet.PACKED if packed else FeatureSet.EXPANDED
            added.options.features.repeated_field_encoding = encoding
        else:
            added.options.packed = packed

    def _enum(self) -> str:
        file = self.draw(st.integers(self._at, len(self.files) - 1))
        if self.syntax == "proto3" or file == self._at:
            return f".{_PACKAGES[file]}.E"
        return f".{_PACKAGES[self._at]}.E"

    def _inner(self, depth: int) -> str:
        known = [name for names in self._complete[self._at :] for name in names]
        if known and self.draw(st.booleans()):
            return str(self.draw(st.sampled_from(known)))
        if depth and self.draw(st.booleans()):
            return self.message(depth - 1, self._at)
        return str(self.draw(st.sampled_from(_MESSAGES)))

    def _map(self, made: Any, name: str, number: int, depth: int) -> None:
        entry = made.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        field(entry, "key", self.draw(st.sampled_from(_KEYS)), 1)
        kind = self.draw(st.sampled_from(["scalar", "enum", "message"]))
        if kind == "scalar":
            field(entry, "value", self.draw(st.sampled_from(SCALARS)), 2)
        else:
            of = self._enum() if kind == "enum" else self._inner(depth)
            field(entry, "value", kind, 2, of=of)
        of = f"{self._outer[-1][1]}.{entry.name}"
        field(made, name, "message", number, label=F.LABEL_REPEATED, of=of)

    def _oneof(self, made: Any) -> None:
        single = [
            each
            for each in made.field
            if each.label == F.LABEL_OPTIONAL
            and not each.options.features.HasField("field_presence")
        ]
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


class Types(NamedTuple):
    """Classes of one message type.

    Attributes:
        whole: with all fields.
        read: without those that have no columns.
        evolved: as `read`, of another version: fields are dropped, renamed, of other types.
        lacks_columns: whether `whole` has fields that have no columns.
    """

    whole: type[Message]
    read: type[Message]
    evolved: type[Message]
    lacks_columns: bool


@st.composite
def types(draw: Any) -> Types:
    """Draw a message type."""
    made = _Types(draw)
    name = made.message(2)[1:]
    read = [_changed(file, made.left_out, lambda each: each) for file in made.files]
    evolved = [_changed(file, {}, lambda each: _evolved(draw, each)) for file in read]
    whole = _class_of(made.files, name)
    return Types(whole, _class_of(read, name), _class_of(evolved, name), _lacks(whole.DESCRIPTOR))


def _lacks(type_: Descriptor, seen: tuple[Descriptor, ...] = ()) -> bool:
    """Return whether a type has a group or contains itself; JSON of any form is text."""
    if f".{type_.full_name}" in _JSON:
        return False
    return type_ in seen or any(
        each.type == F.TYPE_GROUP
        or (each.type == F.TYPE_MESSAGE and _lacks(each.message_type, (*seen, type_)))  # type: ignore[arg-type]
        for each in type_.fields
    )


def _class_of(files: list[FileDescriptorProto], name: str) -> Any:
    pool = DescriptorPool()
    for known in KNOWN:
        pool.AddSerializedFile(known.serialized_pb)
    for file in reversed(files):
        pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(name))


def _changed(file: FileDescriptorProto, left_out: Any, change: Any) -> FileDescriptorProto:
    """Return a copy of a file with each field changed, or left out where None comes back."""
    copy = FileDescriptorProto()
    copy.CopyFrom(file)
    for message in copy.message_type:
        without = left_out.get(f".{file.package}.{message.name}", set())
        fields = [change(each) for each in message.field if each.name not in without]
        kept = [each for each in fields if each is not None] or [message.field[0]]
        kept = [F.FromString(each.SerializeToString()) for each in kept]
        del message.field[:]
        message.field.extend(kept)
    return copy


def _evolved(draw: Any, one: Any) -> Any:
    """Return a field of another version of its type, or None."""
    each = F.FromString(one.SerializeToString())
    action = draw(st.sampled_from(["keep", "drop", "rename", "type", "label"]))
    if each.HasField("oneof_index") or each.label == F.LABEL_REQUIRED:
        action = draw(st.sampled_from(["keep", "rename"])) if not each.proto3_optional else "keep"
    if action == "drop":
        return None
    if action == "rename":
        each.name = each.json_name = f"{each.name}_renamed"
    is_scalar = each.type not in (F.TYPE_MESSAGE, F.TYPE_ENUM)
    if is_scalar and action in ("type", "label"):
        each.ClearField("options")
    if is_scalar and action == "type":
        each.type = getattr(F, f"TYPE_{draw(st.sampled_from(SCALARS)).upper()}")
    if is_scalar and action == "label":
        is_repeated = each.label == F.LABEL_REPEATED
        each.label = F.LABEL_OPTIONAL if is_repeated else F.LABEL_REPEATED
    return each


class OneOf:
    """Equal to each of some values: google.protobuf does not say which of them came last."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        self._values = values

    def __eq__(self, other: object) -> bool:
        return other in self._values

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return " or ".join(map(repr, self._values))


_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    F.TYPE_DOUBLE: st.floats(),
    F.TYPE_FLOAT: st.floats(width=32),
    F.TYPE_BOOL: st.booleans(),
    F.TYPE_STRING: st.text(max_size=4),
    F.TYPE_BYTES: st.binary(max_size=4),
    F.TYPE_ENUM: st.sampled_from([0, 2, -1, 2, 0, 7]),
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


_EXTREMES = {
    "google.protobuf.Timestamp": [
        *(
            0,
            1,
            -1,
            -62_135_596_800,
            253_402_300_799,
            2**63 // 10**6 - 1,
            1 - 2**63 // 10**6,
            2**62,
        ),
    ],
    "google.protobuf.Duration": [0, -1, 315_576_000_000, -315_576_000_000, 2**63 - 1],
}


def _fill(draw: Any, message: Any, depth: int = 6) -> None:
    descriptor = message.DESCRIPTOR
    if descriptor.full_name in _EXTREMES:
        message.seconds = draw(st.sampled_from(_EXTREMES[descriptor.full_name]))
        message.nanos = draw(st.sampled_from([0, 1, 999, 1000, 10**9 - 1]))
        return
    for each in descriptor.fields if depth else ():
        if each.is_required or draw(st.booleans()):
            _fill_field(draw, message, each, depth - 1)


def _fill_field(draw: Any, message: Any, each: FieldDescriptor, depth: int) -> None:
    is_message = each.type in (F.TYPE_MESSAGE, F.TYPE_GROUP)
    if _is_map(each):
        entries = getattr(message, each.name)
        key, value = each.message_type.fields  # type: ignore[union-attr]
        for one in draw(st.lists(_SCALARS[key.type], max_size=3)):
            if value.type == F.TYPE_MESSAGE:
                _fill(draw, entries[one], depth)
            else:
                entries[one] = draw(_scalar(value))
    elif each.is_repeated and is_message:
        for _ in range(draw(st.integers(0, 2))):
            _fill(draw, getattr(message, each.name).add(), depth)
    elif each.is_repeated:
        getattr(message, each.name).extend(draw(st.lists(_scalar(each), max_size=3)))
    elif is_message:
        getattr(message, each.name).SetInParent()
        _fill(draw, getattr(message, each.name), depth)
    else:
        setattr(message, each.name, draw(_scalar(each)))


def _scalar(each: FieldDescriptor) -> st.SearchStrategy[Any]:
    if each.type == F.TYPE_ENUM and each.enum_type.is_closed:  # type: ignore[union-attr]
        return st.sampled_from([0, 2, -1])
    return _SCALARS[each.type]


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
        Unreadable: an enum has no such value, a time is out of range, or a text is not UTF-8.
        DecodeError: the value is damaged.
    """
    message = make.FromString(data)
    try:
        row: dict[str, Any] = _row(message)
    except UnicodeDecodeError as error:
        raise Unreadable from error
    return row


def _row(message: Any) -> Any:
    descriptor: Descriptor = message.DESCRIPTOR
    if descriptor.full_name == "google.protobuf.Timestamp":
        if not 0 <= message.nanos < 10**9 or abs(message.seconds) > 2**63 // 10**6 - 1:
            raise Unreadable
        if message.nanos % 1000:
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
        known = {key: _value(of_value, value[key]) for key in list(value)}
        entries = dict(known)
        # This library alone keeps an entry with a field that it does not know as unknown itself.
        entry: Any = GetMessageClass(each.message_type)  # type: ignore[arg-type]
        unknown_fields: Any = UnknownFieldSet(message)
        for unknown in unknown_fields:
            if unknown.field_number == each.number and unknown.wire_type == _LENGTH:
                odd = entry.FromString(unknown.data)
                last = _value(of_value, odd.value)
                entries[odd.key] = OneOf((known[odd.key], last)) if odd.key in known else last
        return entries
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
