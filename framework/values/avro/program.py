"""The columns of a reader's schema, and the programs that read values into them.

A union of null and one other type is a nullable column. Any other union is a struct with a nullable field
for each branch, named by its type; only [int, long] and [float, double] are the wider of the two.
"""

from __future__ import annotations

from typing import Any, Final, cast

import pyarrow as pa

from ...errors import StrategyError
from ..decoding.slots import SlotColumn, SlotLayout
from .compiler import Compiler, Instructions
from .schema import (
    RECORDS,
    NamedTypes,
    Schema,
    branch_names,
    join,
    logical_of,
    resolve,
    type_of,
    without_null,
)

_ARROW_UNITS: Final = {"millis": "ms", "micros": "us", "nanos": "ns"}
_MAX_PRECISION: Final = 76  # digits of Arrow's widest decimal


class SchemaPrograms:
    """The columns of a reader's schema, and the code that reads values of each writer's schema into them.

    Args:
        reader: a parsed schema.
        named: its named types.
        needs_units: as in `Compiler`.

    Attributes:
        reader: the parsed schema.
        named: its named types.
        columns: by name.
        layout: the slots of the columns.
        code: of all writers' schemas.
        schema: the columns. A schema that is not a record is one column with the name `value`.
    """

    def __init__(self, reader: Schema, named: NamedTypes, *, needs_units: bool = False) -> None:
        self._needs_units = needs_units
        self.reader = reader
        self.named = named
        self.layout = SlotLayout()
        self.code = Instructions()
        root = resolve(reader, named)
        if type_of(root) in RECORDS:
            if not root["fields"]:
                raise StrategyError(f"Avro: {root['name']} has no fields, so no columns")
            self.columns = self._fields(root, 0, "", ())
        else:
            self.columns = {"value": self._column(reader, 0, "value", ())}
        self.schema = pa.schema(
            [
                pa.field(name, column.type, nullable=nullable)
                for (name, column), nullable in zip(
                    self.columns.items(), self._nullable(root), strict=True
                )
            ]
        )

    def add(self, writer: Schema, named: NamedTypes) -> int:
        """Compile the code for a writer's schema; return its address.

        Raises:
            Unresolvable: values of this schema cannot be read.
        """
        compiler = Compiler(self.code, self.named, named, needs_units=self._needs_units)
        return compiler.compile(writer, self.reader, self.columns)

    def _fields(
        self, record: Schema, level: int, path: str, outer: tuple[str, ...]
    ) -> dict[str, SlotColumn]:
        outer = (*outer, record["name"])
        return {
            field["name"]: self._column(field["type"], level, join(path, field["name"]), outer)
            for field in record["fields"]
        }

    def _nullable(self, root: Schema) -> list[bool]:
        fields = root["fields"] if type_of(root) in RECORDS else [{"type": root}]
        kinds = [resolve(field["type"], self.named) for field in fields]
        return [
            "null" in map(type_of, [without_null(kind), *(kind if isinstance(kind, list) else ())])
            for kind in kinds
        ]

    def _column(self, schema: Schema, level: int, path: str, outer: tuple[str, ...]) -> SlotColumn:
        add = self.layout.add
        schema = resolve(without_null(resolve(schema, self.named)), self.named)
        if isinstance(schema, list):
            return self._union(schema, level, path, outer)
        kind = type_of(schema)
        if kind in RECORDS:
            if schema["name"] in outer:
                raise StrategyError(
                    f"field {path}: {schema['name']} contains itself, which columns cannot; "
                    "leave the field out of the reader's schema"
                )
            struct = add("struct", pa.null(), level, path)
            fields = self._fields(schema, level, path, outer)
            struct.children = list(fields.values())
            struct.type = pa.struct([pa.field(name, each.type) for name, each in fields.items()])
            return struct
        if kind == "array":
            column = add("list", pa.null(), level, path)
            items = self._column(schema["items"], self.layout.child_level(column), path, outer)
            column.children = [items]
            column.type = pa.list_(items.type)
            return column
        if kind == "map":
            column = add("map", pa.null(), level, path)
            inner = self.layout.child_level(column)
            key = add("text", pa.string(), inner, path)
            values = self._column(schema["values"], inner, path, outer)
            column.children = [key, values]
            column.type = pa.map_(pa.string(), values.type)
            return column
        return _scalar(self.layout, schema, level, path)

    def _union(
        self, branches: list[Schema], level: int, path: str, outer: tuple[str, ...]
    ) -> SlotColumn:
        struct = self.layout.add("struct", pa.null(), level, path)
        names = branch_names([resolve(branch, self.named) for branch in branches])
        fields = {
            name: self._column(branch, level, path, outer)
            for name, branch in zip(names, branches, strict=True)
        }
        struct.children = list(fields.values())
        struct.type = pa.struct([pa.field(name, each.type) for name, each in fields.items()])
        return struct


def _scalar(layout: SlotLayout, schema: Schema, level: int, path: str) -> SlotColumn:
    kind, logical = type_of(schema), logical_of(schema)
    if kind == "null":
        return SlotColumn("null", pa.null(), level)
    if logical == "decimal":
        precision, scale = schema["precision"], schema.get("scale", 0)
        if precision > _MAX_PRECISION:
            raise StrategyError(f"field {path}: a decimal has at most {_MAX_PRECISION} digits")
        if precision > 38:
            return layout.add("decimal", pa.decimal256(precision, scale), level, path, words=4)
        return layout.add("decimal", pa.decimal128(precision, scale), level, path, words=2)
    if kind == "int":
        types: dict[str, pa.DataType] = {"date": pa.date32(), "time-millis": pa.time32("ms")}
        return layout.add("integer", types.get(logical, pa.int32()), level, path)
    if kind == "long":
        return layout.add("integer", _long_type(logical), level, path)
    if kind == "fixed":
        return layout.add("fixed", pa.binary(schema["size"]), level, path)
    match kind:
        case "float":
            return layout.add("float", pa.float32(), level, path)
        case "double":
            return layout.add("double", pa.float64(), level, path)
        case "boolean":
            return layout.add("boolean", pa.bool_(), level, path)
        case "bytes":
            return layout.add("bytes", pa.binary(), level, path)
        case _:
            return layout.add("text", pa.string(), level, path)


def _long_type(logical: str) -> pa.DataType:
    if logical == "time-micros":
        return pa.time64("us")
    name, _, unit = logical.rpartition("-")
    if name in {"timestamp", "local-timestamp"}:
        zone = "UTC" if name == "timestamp" else None
        return cast("pa.DataType", cast("Any", pa).timestamp(_ARROW_UNITS[unit], tz=zone))
    return pa.int64()
