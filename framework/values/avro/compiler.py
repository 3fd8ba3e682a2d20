"""Compile programs of `kernel.py`: how values of a writer's schema are read as a reader's schema.

The rules are Avro's ("Schema Resolution" of its specification), with five additions for readers that are
user types: names of records are compared only to choose a branch of a union, an enum may be read as string,
a fixed as bytes, times in one unit as times in another, and decimals as decimals of a larger scale.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import fastavro
import numpy as np
import pyarrow as pa

from ..decoding.slots import SlotColumn
from . import kernel
from .schema import (
    RECORDS,
    UNITS,
    NamedTypes,
    Schema,
    Unresolvable,
    default_value,
    inlined,
    join,
    likeness,
    logical_of,
    resolve,
    show,
    type_of,
    without_null,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

_INT: Final = (-(2**31), 2**31 - 1)
_LONG: Final = (-(2**63), 2**63 - 1)
_DAY: Final = 86_400
_BYTES: Final = {"boolean": 1, "float": 4, "double": 8}
_FIXED_WIDTH: Final = {
    ("boolean", "boolean"): kernel.BOOLEAN,
    ("int", "float"): kernel.INTEGER_TO_FLOAT,
    ("int", "double"): kernel.INTEGER_TO_DOUBLE,
    ("long", "float"): kernel.INTEGER_TO_FLOAT,
    ("long", "double"): kernel.INTEGER_TO_DOUBLE,
    ("float", "float"): kernel.FLOAT,
    ("float", "double"): kernel.FLOAT_TO_DOUBLE,
    ("double", "double"): kernel.DOUBLE,
}


class Instructions:
    """Instructions, and what they refer to; it grows by each schema that is compiled.

    Attributes:
        lines: the instructions.
        tables: the operands of instructions that have many.
        pool: the bytes of defaults and of the symbols of enums.
        paths: the subjects of reasons: `field address.street`.
    """

    def __init__(self) -> None:
        self.lines: list[tuple[int, ...]] = []
        self.tables: list[int] = []
        self.pool = bytearray()
        self.paths: list[str] = []

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Forget what was added if it ends with an exception."""
        parts: list[Any] = [self.lines, self.tables, self.pool, self.paths]
        sizes = [len(part) for part in parts]
        try:
            yield
        except BaseException:
            for part, size in zip(parts, sizes, strict=True):
                del part[size:]
            raise

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
        """Return copies of the instructions, the tables and the pool for the kernel."""
        return (
            np.array(self.lines, np.int64).reshape(-1, kernel.WIDTH),
            np.array(self.tables, np.int64),
            np.frombuffer(bytes(self.pool), np.uint8),
        )


def _kind_of_time(logical: str) -> str:
    """Return `date`, `time` or `timestamp`."""
    return logical.removeprefix("local-").partition("-")[0]


class Compiler:
    """Compiles the code for one writer's schema, in the order in which its fields are encoded.

    Args:
        code: where it is added.
        read: the named types of the reader's schema.
        written: the named types of the writer's schema.
        needs_units: a number is read as a time only if the writer's schema says so.
    """

    def __init__(
        self,
        code: Instructions,
        read: NamedTypes,
        written: NamedTypes,
        *,
        needs_units: bool = False,
    ) -> None:
        self._code = code
        self._needs_units = needs_units
        self._read = read
        self._written = written
        self._skips: dict[str, int] = {}
        self._path = -1

    def compile(self, writer: Schema, reader: Schema, columns: Mapping[str, SlotColumn]) -> int:
        """Compile the code for a writer's schema; return its address.

        Raises:
            Unresolvable: values of this schema cannot be read.
        """
        with self._code.attempt():
            begin = len(self._code.lines)
            self._enter("")
            reader = resolve(reader, self._read)
            if type_of(reader) in RECORDS:
                schema = resolve(writer, self._written)
                if type_of(schema) not in RECORDS:
                    raise Unresolvable(f"{show(schema)} of the writer's schema is not a record")
                self._record(schema, reader, list(columns.values()), "")
            else:
                (column,) = columns.values()
                self._enter("value")
                self._value(writer, reader, column, "value")
            self._enter("")
            self._emit(kernel.END)
            return begin

    @contextmanager
    def _attempt(self) -> Iterator[None]:
        skips, written, path = dict(self._skips), self._written, self._path
        try:
            with self._code.attempt():
                yield
        except BaseException:
            self._skips, self._written, self._path = skips, written, path
            raise

    def _emit(self, op: int, to: SlotColumn | None = None, a: int = 0, b: int = 0) -> int:
        first, level = (-1, -1) if to is None else (to.first, to.level)
        self._code.lines.append((op, first, level, a, b, self._path))
        return len(self._code.lines) - 1

    def _here(self) -> int:
        return len(self._code.lines)

    def _patch(self, at: int, column: int, value: int) -> None:
        line = list(self._code.lines[at])
        line[column] = value
        self._code.lines[at] = tuple(line)

    def _table(self, entries: list[int]) -> int:
        self._code.tables += entries
        return len(self._code.tables) - len(entries)

    def _enter(self, path: str) -> None:
        self._path = len(self._code.paths)
        self._code.paths.append(f"field {path}" if path else "the value")

    def _null(self, column: SlotColumn) -> None:
        columns = list(column.nullable())
        if columns:
            line = self._emit(kernel.NULLS, a=self._here() + 1, b=len(columns))
            self._patch(line, kernel.TO, self._table(columns))

    def _value(self, w: Schema, r: Schema, column: SlotColumn, path: str) -> None:
        w, r = resolve(w, self._written), resolve(r, self._read)
        if isinstance(w, list):
            self._union(w, r, column, path)
        elif isinstance(r, list):
            self._branch(w, r, column, path)
        else:
            self._same(w, r, column, path)

    def _union(self, w: list[Schema], r: Schema, column: SlotColumn, path: str) -> None:
        """Read a union of the writer; a branch that the reader does not have fails when it occurs."""
        table = self._table([0] * len(w))
        self._emit(kernel.UNION, a=len(w), b=table)
        ends = []
        readable = 0
        for index, branch in enumerate(w):
            self._code.tables[table + index] = self._here()
            try:
                with self._attempt():
                    self._value(branch, r, column, path)
                readable += 1
            except Unresolvable:
                self._emit(kernel.MISFIT, a=index)
            ends.append(self._end_branch(self._code.tables[table + index]))
        if w and not readable:
            raise self._misfit(w, r, path)
        self._join(ends)

    def _end_branch(self, begin: int) -> int:
        """End a branch; return its line that `_join` lets go on behind the union."""
        if self._here() == begin + 1 and self._code.lines[begin][kernel.OP] == kernel.NULLS:
            return begin
        return self._emit(kernel.JUMP)

    def _join(self, ends: list[int]) -> None:
        if ends and self._code.lines[-1][kernel.OP] == kernel.JUMP and ends[-1] == self._here() - 1:
            del self._code.lines[ends.pop()]  # the last branch just goes on
        for end in ends:
            self._patch(end, kernel.A, self._here())

    def _branch(self, w: Schema, r: list[Schema], column: SlotColumn, path: str) -> None:
        """Read into the branch of the reader's union that is the same type, else the first that fits."""
        branches = [resolve(each, self._read) for each in r]
        for chosen in sorted(branches, key=lambda each: likeness(w, each)):
            with suppress(Unresolvable), self._attempt():
                self._chosen(w, chosen, branches, column, path)
                return
        raise self._misfit(w, r, path)

    def _chosen(
        self, w: Schema, chosen: Schema, branches: list[Schema], column: SlotColumn, path: str
    ) -> None:
        """Read into one branch of the reader's union."""
        rest = resolve(without_null(branches), self._read)
        if type_of(w) == type_of(chosen) == "null":
            self._null(column)
        elif type_of(chosen) == "null":
            raise self._misfit(w, chosen, path)
        elif isinstance(rest, list):
            at = next(i for i, each in enumerate(rest) if resolve(each, self._read) is chosen)
            for i, other in enumerate(column.children):
                if i != at:
                    self._null(other)
            self._emit(kernel.VALID, column)
            self._same(w, chosen, column.children[at], path)
        else:
            self._same(w, rest, column, path)

    def _same(self, w: Schema, r: Schema, column: SlotColumn, path: str) -> None:
        """Read a value of one type, which is no union, as one type."""
        kinds = type_of(w), type_of(r)
        match kinds:
            case ("null", "null"):
                pass
            case ("int" | "long", "int" | "long"):
                self._integer(w, r, column, path)
            case ("string" | "bytes" | "fixed", "string" | "bytes" | "fixed"):
                self._bytes(w, r, column, path)
            case ("enum", "enum" | "string"):
                self._enum(w, r, column)
            case ("array", "array"):
                self._list(w["items"], r["items"], column, path)
            case ("map", "map"):
                self._list(w["values"], r["values"], column, path)
            case ("record" | "error", "record" | "error"):
                self._emit(kernel.VALID, column)
                self._record(w, r, column.children, path)
            case _ if kinds in _FIXED_WIDTH:
                self._emit(_FIXED_WIDTH[kinds], column)
            case _:
                raise self._misfit(w, r, path)

    def _misfit(self, w: Schema, r: Schema, path: str) -> Unresolvable:
        return Unresolvable(
            f"field {path}: {show(w)} of the writer's schema cannot be read as {show(r)}"
        )

    def _integer(self, w: Schema, r: Schema, column: SlotColumn, path: str) -> None:
        if type_of(w) == "long" and type_of(r) == "int":
            raise self._misfit(w, r, path)
        low, high = _INT if type_of(w) == "int" else _LONG
        from_, to = logical_of(w), logical_of(r)
        if to and not from_ and self._needs_units:
            raise Unresolvable(
                f"field {path}: {show(w)} of the writer's schema says no unit of time; declare the field "
                "int, or give the reader's schema as JSON or as a pyarrow.Schema"
            )
        if to and from_ and _kind_of_time(from_) != _kind_of_time(to):
            raise self._misfit(w, r, path)
        if to.startswith("time-"):
            low, high = 0, _DAY * UNITS[to[5:]] - 1
        written, read = (UNITS.get(each.rpartition("-")[2]) for each in (from_, to))
        if written is None or read is None or written == read:
            self._emit(kernel.INTEGER, column, low, high)
        else:
            times, parts = max(1, read // written), max(1, written // read)
            if not to.startswith("time-"):
                low, high = _LONG
            self._emit(kernel.SCALED, column, self._table([times, parts, low, high]))

    def _bytes(self, w: Schema, r: Schema, column: SlotColumn, path: str) -> None:
        kinds = type_of(w), type_of(r)
        size = w["size"] if kinds[0] == "fixed" else -1
        if "string" in kinds and "decimal" in (logical_of(w), logical_of(r)):
            raise self._misfit(w, r, path)  # text of digits is no number's bytes
        if logical_of(r) == "decimal":
            power = 0
            if logical_of(w) == "decimal":
                power = r.get("scale", 0) - w.get("scale", 0)
                if power < 0 or w["precision"] + power > r["precision"]:
                    raise self._misfit(w, r, path)
            self._emit(kernel.DECIMAL, column, column.words | power << 8, size)
        elif (kinds[1] == "fixed" and size != r["size"]) or kinds == ("fixed", "string"):
            raise self._misfit(w, r, path)
        elif size >= 0:
            self._emit(kernel.FIXED, column, size)
        else:
            self._emit(kernel.BYTES, column)

    def _enum(self, w: Schema, r: Schema, column: SlotColumn) -> None:
        pieces = []
        for symbol in w["symbols"]:
            known = type_of(r) == "string" or symbol in r["symbols"]
            text = symbol if known else r.get("default")
            pieces.append(-1 if text is None else self._pooled(text.encode()))
        self._emit(kernel.ENUM, column, len(pieces), self._table(pieces))

    def _pooled(self, data: bytes) -> int:
        at = len(self._code.pool)
        self._code.pool += data
        return at << 32 | len(data)

    def _list(self, w: Schema, r: Schema, column: SlotColumn, path: str) -> None:
        *key, items = column.children or [SlotColumn("null", pa.null(), 0)]
        inner = SlotColumn("null", pa.null(), items.level)
        self._emit(kernel.LIST, column, inner.level)
        block = self._emit(kernel.BLOCK, inner)
        for each in key:
            self._emit(kernel.BYTES, each)
        self._value(w, r, items, path)
        self._emit(kernel.NEXT, inner, block)
        self._patch(block, kernel.A, self._here())

    def _record(self, w: Schema, r: Schema, columns: list[SlotColumn], path: str) -> None:
        targets = dict(zip((field["name"] for field in r["fields"]), columns, strict=True))
        written = {field["name"] for field in w["fields"]}
        fields = {
            name: field
            for field in r["fields"]
            if field["name"] not in written
            for name in field.get("aliases", ())
        } | {field["name"]: field for field in r["fields"]}
        outer = self._path
        for field in w["fields"]:
            into = fields.get(field["name"])
            column = targets.pop(into["name"], None) if into is not None else None
            name = join(path, field["name"])
            self._enter(name)
            if into is None or column is None:
                self._skip(field["type"])
            else:
                self._value(field["type"], into["type"], column, name)
        for name, column in targets.items():
            self._enter(join(path, name))
            self._default(fields[name], column, join(path, name))
        self._path = outer

    def _default(self, field: Mapping[str, Any], column: SlotColumn, path: str) -> None:
        if "default" not in field:
            raise Unresolvable(
                f"field {path}: the writer's schema has no such field, and it has no default"
            )
        schema = field["type"]
        if field["default"] is None:
            self._null(column)
            return
        encoded = BytesIO()
        try:
            parsed = fastavro.parse_schema(inlined(schema, self._read, set()))
            value = default_value(schema, field["default"], self._read)
            fastavro.schemaless_writer(encoded, parsed, value)
        except Exception as error:  # by the default's form, which may be any
            raise Unresolvable(
                f"field {path}: its default {field['default']!r} is no {show(schema)} ({error!r})"
            ) from error
        data = encoded.getvalue()
        self._emit(kernel.DEFAULT, a=self._pooled(data) >> 32, b=len(data))
        written, self._written = self._written, self._read
        self._value(schema, schema, column, path)
        self._written = written
        self._emit(kernel.DEFAULT_END)

    def _skip(self, schema: Schema) -> None:
        schema = resolve(schema, self._written)
        if isinstance(schema, list):
            table = self._table([0] * len(schema))
            self._emit(kernel.UNION, a=len(schema), b=table)
            ends = []
            for index, branch in enumerate(schema):
                self._code.tables[table + index] = self._here()
                self._skip(branch)
                ends.append(self._emit(kernel.JUMP))
            self._join(ends)
            return
        match type_of(schema):
            case "null":
                pass
            case "boolean" | "float" | "double" as kind:
                self._emit(kernel.SKIP_FIXED, a=_BYTES[kind])
            case "fixed":
                self._emit(kernel.SKIP_FIXED, a=schema["size"])
            case "int" | "long" | "enum":
                self._emit(kernel.SKIP_INTEGER)
            case "string" | "bytes":
                self._emit(kernel.SKIP_BYTES)
            case "array" | "map":
                self._skip_list(schema)
            case _:
                self._skip_record(schema)

    def _skip_list(self, schema: Schema) -> None:
        self._emit(kernel.LIST)
        block = self._emit(kernel.BLOCK)
        if type_of(schema) == "map":
            self._emit(kernel.SKIP_BYTES)
            self._skip(schema["values"])
        else:
            self._skip(schema["items"])
        self._emit(kernel.NEXT, a=block)
        self._patch(block, kernel.A, self._here())

    def _skip_record(self, schema: Schema) -> None:
        """Skip a record by a routine of its own: it may contain itself."""
        if schema["name"] not in self._skips:
            jump = self._emit(kernel.JUMP)
            self._skips[schema["name"]] = self._here()
            for field in schema["fields"]:
                self._skip(field["type"])
            self._emit(kernel.RETURN)
            self._patch(jump, kernel.A, self._here())
        self._emit(kernel.CALL, a=self._skips[schema["name"]])
