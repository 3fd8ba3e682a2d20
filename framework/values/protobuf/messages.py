"""The columns of a message type, and the tables by which `kernel.py` reads it.

A field without presence has its default where a value does not have the field; one with presence is null
(`optional`, a message, a member of a oneof, proto2). Enums are text. A `google.protobuf.Timestamp` is a
timestamp in micro- or nanoseconds, a wrapper such as `google.protobuf.Int64Value` a nullable column, a
`Struct` text in JSON. A repeated field is a list, never null; a map keeps the entries as they were written.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor

from ...errors import StrategyError
from ..decoding.slots import Kind, SlotColumn, SlotLayout
from . import kernel
from .json_messages import JSON_TYPES, json_of

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, EnumDescriptor
    from numpy.typing import NDArray

Unit: TypeAlias = Literal["us", "ns"]

_pa: Any = pa
_F: Final = FieldDescriptor
_SCALARS: Final[dict[int, tuple[int, Kind, pa.DataType]]] = {
    _F.TYPE_INT64: (kernel.INT64, "integer", pa.int64()),
    _F.TYPE_UINT64: (kernel.INT64, "integer", pa.uint64()),
    _F.TYPE_INT32: (kernel.INT32, "integer", pa.int32()),
    _F.TYPE_UINT32: (kernel.INT32, "integer", pa.uint32()),
    _F.TYPE_SINT64: (kernel.SINT64, "integer", pa.int64()),
    _F.TYPE_SINT32: (kernel.SINT32, "integer", pa.int32()),
    _F.TYPE_FIXED64: (kernel.FIXED64, "integer", pa.uint64()),
    _F.TYPE_SFIXED64: (kernel.FIXED64, "integer", pa.int64()),
    _F.TYPE_FIXED32: (kernel.FIXED32, "integer", pa.uint32()),
    _F.TYPE_SFIXED32: (kernel.FIXED32, "integer", pa.int32()),
    _F.TYPE_DOUBLE: (kernel.FIXED64, "double", pa.float64()),
    _F.TYPE_FLOAT: (kernel.FIXED32, "float", pa.float32()),
    _F.TYPE_BOOL: (kernel.BOOLEAN, "boolean", pa.bool_()),
    _F.TYPE_STRING: (kernel.BYTES, "text", pa.string()),
    _F.TYPE_BYTES: (kernel.BYTES, "bytes", pa.binary()),
    _F.TYPE_ENUM: (kernel.ENUMERATION, "text", pa.string()),
}
WRAPPERS: Final = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
TIMESTAMP: Final = "google.protobuf.Timestamp"


class MessageColumns:
    """The columns of a message type and of those inside it.

    Args:
        descriptor: of the message type.
        unit: of the columns of timestamps.

    Attributes:
        columns: by name of the field.
        layout: the slots of the columns.
        schema: the columns.
        paths: the subject of reasons, for each row of the table of fields.

    Raises:
        StrategyError: a type contains itself, is a group, or is nested too deep.
    """

    def __init__(self, descriptor: Descriptor, unit: Unit = "us") -> None:
        self._unit = unit
        self.layout = SlotLayout()
        self.paths: list[str] = []
        self._messages: list[list[int]] = []
        self._fields: list[list[int]] = []
        self._defaults: list[tuple[int, int, int, int]] = []
        self._enums: list[tuple[int, int]] = []
        self._clears: list[int] = []
        self._pool = bytearray()
        self._known_enums: dict[str, tuple[int, int]] = {}
        if not descriptor.fields:
            raise StrategyError(f"Protobuf: {descriptor.full_name} has no fields, so no columns")
        _, self.columns = self._message(descriptor, 0, "", ())
        self.schema = pa.schema(
            [
                pa.field(field.name, self.columns[field.name].type, nullable=field.has_presence)
                for field in descriptor.fields
            ]
        )

    def tables(self) -> tuple[kernel.ProtobufProgram, NDArray[np.uint8]]:
        """Return the tables for the kernel, and the pool."""

        def table(rows: object, width: int) -> NDArray[np.int64]:
            return np.array(rows, np.int64).reshape(-1, width)

        program = kernel.ProtobufProgram(
            table(self._messages, kernel.MESSAGE_WIDTH),
            table(self._fields, kernel.FIELD_WIDTH),
            table(self._defaults, kernel.DEFAULT_WIDTH),
            table(self._enums, 2),
            np.array(self._clears, np.int64),
        )
        return program, np.frombuffer(bytes(self._pool), np.uint8)

    def reason(self, status: int, place: int, found: int) -> str:
        """Return why a row failed."""
        subject = "the value" if place < 0 else f"field {self.paths[place]}"
        return f"{subject}: {kernel.REASONS[status].format(found)}"

    def _message(
        self, type_: Descriptor | None, level: int, path: str, outer: tuple[str, ...]
    ) -> tuple[int, dict[str, SlotColumn]]:
        """Add a message type where it occurs; return its row in the table, and its columns."""
        type_ = cast("Descriptor", type_)
        if type_.full_name in outer:
            raise StrategyError(
                f"field {path}: {type_.full_name} contains itself, which columns cannot; "
                "decode with a message type that leaves the field out"
            )
        outer = (*outer, type_.full_name)
        if len(outer) > kernel.DEPTH:
            raise StrategyError(f"field {path}: messages are nested deeper than {kernel.DEPTH}")
        row = len(self._messages)
        self._messages.append([])
        columns: dict[str, SlotColumn] = {}
        lines: dict[int, list[int]] = {}
        names: dict[int, str] = {}
        for field in type_.fields:
            name = f"{path}.{field.name}" if path else field.name
            columns[field.name], lines[field.number] = self._field(field, level, name, outer)
            names[field.number] = name
        for oneof in type_.oneofs:
            for field in oneof.fields:
                others = [columns[each.name] for each in oneof.fields if each is not field]
                cleared = [column for other in others for column in other.nullable()]
                lines[field.number][kernel.CLEAR] = len(self._clears)
                lines[field.number][kernel.CLEARS] = len(cleared)
                self._clears += cleared
        first = len(self._fields)
        for number in sorted(lines):
            self._fields.append(lines[number])
            self.paths.append(names[number])
        begin = len(self._defaults)
        for field in type_.fields:
            self._add_default(field, columns[field.name], lines[field.number])
        self._messages[row] = [first, len(lines), begin, len(self._defaults) - begin]
        return row, columns

    def _field(
        self, field: FieldDescriptor, level: int, path: str, outer: tuple[str, ...]
    ) -> tuple[SlotColumn, list[int]]:
        """Add the columns of a field; return its column, and its line in the table of fields."""
        if field.type == _F.TYPE_GROUP:
            raise StrategyError(f"field {path}: a group has no columns; use a message")
        line = [0] * kernel.FIELD_WIDTH
        line[kernel.NUMBER] = field.number
        if not _is_repeated(field):
            line[kernel.REPEATED] = -1
            return self._value(field, level, path, outer, line), line
        entry = field.message_type
        is_map = entry is not None and entry.GetOptions().map_entry
        column = self.layout.add("map" if is_map else "list", pa.null(), level, path)
        inner = self.layout.child_level(column)
        line[kernel.REPEATED] = inner
        if is_map:
            place = self.layout.add("struct", pa.null(), inner, path)
            message, fields = self._message(entry, inner, path, outer)
            line[kernel.OP], line[kernel.MESSAGE] = kernel.SUBMESSAGE, message
            line[kernel.TO], line[kernel.AT] = place.first, inner
            column.children = [fields["key"], fields["value"]]
            column.type = pa.map_(fields["key"].type, fields["value"].type)
        else:
            items = self._value(field, inner, path, outer, line)
            column.children = [items]
            column.type = pa.list_(items.type)
        return column, line

    def _value(
        self,
        field: FieldDescriptor,
        level: int,
        path: str,
        outer: tuple[str, ...],
        line: list[int],
    ) -> SlotColumn:
        if field.type != _F.TYPE_MESSAGE:
            op, kind, type_ = _SCALARS[field.type]
            column = self.layout.add(kind, type_, level, path)
            if op == kernel.ENUMERATION:
                line[kernel.ENUM], line[kernel.ENUMS] = self._enum(field)
        elif (name := cast("Descriptor", field.message_type).full_name) in JSON_TYPES:
            op = kernel.WHOLE
            column = self.layout.add("json", pa.string(), level, path)
            column.to_json = partial(json_of, JSON_TYPES[name])
        else:
            op = kernel.SUBMESSAGE
            column = self.layout.add("struct", pa.null(), level, path)
            line[kernel.MESSAGE], fields = self._message(field.message_type, level, path, outer)
            column.children = list(fields.values())
            if name == TIMESTAMP:
                column.kind, column.type = "instant", _pa.timestamp(self._unit, "UTC")
            elif name in WRAPPERS:
                column.kind, column.type = "wrapper", column.children[0].type
            else:
                column.type = pa.struct([pa.field(at, each.type) for at, each in fields.items()])
        line[kernel.OP], line[kernel.TO], line[kernel.AT] = op, column.first, level
        return column

    def _enum(self, field: FieldDescriptor) -> tuple[int, int]:
        enum = cast("EnumDescriptor", field.enum_type)
        if enum.full_name not in self._known_enums:
            first = len(self._enums)
            by_number = {value.number: value.name for value in reversed(enum.values)}
            for number in sorted(by_number):
                self._enums.append((number, self._piece(by_number[number].encode())))
            self._known_enums[enum.full_name] = first, len(by_number)
        return self._known_enums[enum.full_name]

    def _piece(self, data: bytes) -> int:
        at = len(self._pool)
        self._pool += data
        return at << 32 | len(data)

    def _add_default(self, field: FieldDescriptor, column: SlotColumn, line: list[int]) -> None:
        if _is_repeated(field):
            level = self.layout.child_level(column)
            self._defaults.append((column.first, level, 1, kernel.CURSOR))
        elif _is_entry(field) and field.type == _F.TYPE_MESSAGE:  # an empty message, not null
            self._defaults.append((column.first, 0, 1, kernel.AS_IS))
            if column.kind == "json":
                return
            _, _, first, count = self._messages[line[kernel.MESSAGE]]
            self._defaults += self._defaults[first : first + count]
        elif field.has_presence and not _is_entry(field):
            self._null_default(column)
        elif field.type == _F.TYPE_ENUM:
            piece = self._piece(cast("EnumDescriptor", field.enum_type).values[0].name.encode())
            self._defaults.append((column.first, piece, 1, kernel.PIECE))
        else:
            self._defaults.append((column.first, 0, 1, kernel.AS_IS))

    def _null_default(self, column: SlotColumn) -> None:
        for first in column.nullable():
            level = self.layout.child_of(first)
            if level < 0:
                self._defaults.append((first, 0, 0, kernel.AS_IS))
            else:
                self._defaults.append((first, level, 0, kernel.CURSOR))


def _is_repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def _is_entry(field: FieldDescriptor) -> bool:
    return bool(cast("Descriptor", field.containing_type).GetOptions().map_entry)
