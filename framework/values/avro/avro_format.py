"""The value format `Avro`: decoding with or without a registry, and encoding for writers."""

from __future__ import annotations

import re
import threading
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, cast

import fastavro
import msgspec
import numpy as np
import pyarrow as pa

from ...columns.texts import excerpt
from ...errors import StrategyError, as_exception
from ..decoding.slot_decoding import CompiledDecoder, SchemaColumns, decode_slots
from ..encoding import DoesNotFit, dict_of, encode_each, fit_rows, plain_rows, without_columns
from ..registry.framing import (
    NO_SCHEMA_ID,
    NULL,
    PREFIX,
    UNFRAMED,
    RawValues,
    prefix,
    raw_values,
    schema_ids,
)
from ..registry.registry import PerProcess, RegisteredSchema, Registry, UnknownSchema
from ..schemas import row_type
from ..value_format import Decoded, DecodedObjects, ValueFormat, reason_of_value
from . import kernel
from .program import SchemaPrograms
from .schema import (
    RECORDS,
    NamedTypes,
    Schema,
    Unresolvable,
    avro_schema,
    branch_names,
    default_value,
    join,
    not_of_avro,
    parse,
    resolve,
    schema_of_type,
    type_of,
    without_null,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ..schemas import RowType
    from .schema import NamedTypes, Schema

    Convert = Callable[[Any], Any]


class Avro(ValueFormat):
    """Values in Avro's binary encoding, with Confluent's wire format if there is a registry.

    Each value is read by the schema that it was written with, and resolved to the reader's schema by Avro's
    rules. The columns are those of the reader's schema: an enum is text, a union of null and a type is a
    nullable column, any other union a struct with a field for each branch.

    Args:
        schema: the reader's schema, as JSON (text, or Python values) or as a type. Without it,
            the latest version of `subject` when the first value is read. For writers: the schema to register
            and to write; without it, it is made of the columns.
        registry: the registry, or its URL. Without it the values have no schema id, and all are
            written with `schema`.
        subject: the subject in the registry. Writers use `TOPIC-value` by default.

    Raises:
        StrategyError: the schema is not valid, or the columns cannot be known.
    """

    def __init__(
        self,
        schema: object = None,
        *,
        registry: Registry | str | None = None,
        subject: str | None = None,
    ) -> None:
        if registry is None and schema is None:
            raise StrategyError("Avro: without a registry it needs schema=")
        self._registry = Registry(registry) if isinstance(registry, str) else registry
        self._type = None if isinstance(schema, str | dict | list | None) else schema
        self._given = None if schema is None else _as_json(schema)
        self._subject = subject
        self._made: PerProcess[_Decoder] = PerProcess()
        if self._given is not None:
            parse(self._given, {})

    def __str__(self) -> str:
        shown = getattr(self._type, "__qualname__", self._subject) or "..."
        return f"Avro({shown})"

    @property
    def schema(self) -> pa.Schema:
        """The columns of the reader's schema."""
        return self._decoder().program.schema

    @property
    def reader_schema(self) -> Schema:
        """The reader's schema, as JSON in Python values."""
        return self._reader()[0]

    @property
    def has_schema_ids(self) -> bool:
        return self._registry is not None

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode values; one that is damaged, or whose schema is unknown or does not fit, fails alone."""
        return self._decoder().decode(values)

    def warm_up(self) -> None:
        """Load the compiled code; see `ValueFormat.warm_up`."""
        known = self._given is not None or self._made.is_made
        each = self if known else Avro("bytes")  # its columns are known to the registry alone
        each.decode(pa.array([], pa.binary()))

    def decode_objects(self, values: pa.BinaryArray) -> DecodedObjects:
        """Decode values to objects of the type, or to dicts where the schema is not a type."""
        decoded = super().decode_objects(values)
        if self._type is None or isinstance(self._type, pa.Schema):
            return decoded
        rows = row_type(cast("type", self._type))
        keys = {column.name: column.key for column in rows.columns}
        objects: list[Any] = []
        for number, row in enumerate(decoded.objects):
            try:
                objects.append(None if row is None else _object(rows, keys, row))
            except BaseException as error:  # noqa: BLE001  a model's own validators may raise anything
                objects.append(None)
                decoded.failures[number] = reason_of_value(as_exception(error))
        return DecodedObjects(objects, decoded.failures)

    def encode(self, rows: pa.Table, topic: str) -> pa.BinaryArray:
        """Encode rows; registers the schema at the first call for a topic. Takes some microseconds a row.

        Raises:
            RowsDoNotFit: the schema cannot hold a value, or has no such column.
            SchemaRefused: the registry refuses the schema of the rows.
        """
        if self._given is None:
            rows = without_columns(rows, not_of_avro(rows.schema))
        named: NamedTypes = {}
        given = avro_schema(rows.schema, topic) if self._given is None else self._given
        parsed = parse(given, named)
        first = b""
        if self._registry is not None:
            text = msgspec.json.encode(given).decode()
            subject = self._subject or f"{topic}-value"
            first = prefix(self._registry.register(subject, RegisteredSchema(text)))

        def encode(datum: Any) -> bytes:
            into = BytesIO(first)
            into.seek(len(first))
            fastavro.schemaless_writer(into, parsed, datum)
            return into.getvalue()

        return encode_datums(rows, parsed, named, encode)

    def _decoder(self) -> _Decoder:
        try:
            return self._made.get(lambda: _Decoder(*self._reader(), self._registry))
        except RecursionError:
            raise StrategyError("Avro: the reader's schema is nested too deep") from None

    def _reader(self) -> tuple[Schema, NamedTypes]:
        if self._given is not None:
            named: NamedTypes = {}
            return parse(self._given, named), named
        if self._registry is None or self._subject is None:
            raise StrategyError(
                "Avro: its columns are not known; give schema= (the reader's schema, or a type), or subject= "
                "for the latest schema of a subject"
            )
        latest = self._registry.by_version(self._subject)
        if latest.schema_type != "AVRO":
            raise StrategyError(
                f"Avro: the latest schema of {self._subject} in {self._registry.url} is "
                f"{latest.schema_type}"
            )
        return _parsed(self._registry, latest)


class _Decoder:
    """Decodes values, and compiles the program of each writer's schema when its id is first seen."""

    def __init__(self, reader: Schema, named: NamedTypes, registry: Registry | None) -> None:
        self.program = SchemaPrograms(reader, named)
        self._registry = registry
        self._lock = threading.Lock()
        self._entries: dict[int, int | str] = {}
        if registry is None:
            self._entries[0] = self.program.add(reader, named)
        self._code = self.program.code.arrays()

    def decode(self, column: pa.BinaryArray) -> Decoded:
        values = raw_values(column)
        failures: dict[int, str] = {}
        registry = self._registry
        if registry is None:
            rows = len(values.offsets) - 1
            entries = np.full(rows, self._entries[0], np.int64)
            if values.nulls is not None:
                entries[values.nulls] = NULL
            return self._run(values, entries, 0, failures)
        ids = schema_ids(values)
        if len(ids) and (ids == ids[0]).all():  # sorting is slower than decoding
            distinct, of_row = ids[:1], np.zeros(len(ids), np.int64)
        else:
            distinct, of_row = np.unique(ids, return_inverse=True)
        addresses = np.full(len(distinct), NULL, np.int64)
        for at, number in enumerate(distinct.tolist()):
            entry = NULL if number == NULL else self._entry(registry, number)
            if isinstance(entry, int):
                addresses[at] = entry
            else:
                failures.update(dict.fromkeys(np.flatnonzero(of_row == at).tolist(), entry))
        return self._run(values, addresses[of_row], PREFIX, failures)

    def _entry(self, registry: Registry, number: int) -> int | str:
        """Return the address of the program for the schema of an id, or why there is none."""
        if number == UNFRAMED:
            return NO_SCHEMA_ID
        known = self._entries.get(number)
        if known is not None:
            return known
        with self._lock:
            if number not in self._entries:
                entry: int | str
                try:
                    registered = registry.by_id(number)
                    if registered.schema_type != "AVRO":
                        raise Unresolvable(f"it is of type {registered.schema_type}, not Avro")
                    entry = self.program.add(*_parsed(registry, registered))
                except UnknownSchema as error:  # or one that it refers to
                    return f"schema {number} is unknown: {error}"
                except StrategyError as error:
                    entry = f"schema {number}: {error}"
                except RecursionError:
                    entry = f"schema {number}: it is nested too deep"
                self._code = (
                    self.program.code.arrays()
                )  # before the entry: others read without the lock
                self._entries[number] = entry
            return self._entries[number]

    def _run(
        self,
        values: RawValues,
        entries: NDArray[np.int64],
        prefix_size: int,
        failures: dict[int, str],
    ) -> Decoded:
        program = self.program
        target = SchemaColumns(program.layout, program.columns, program.schema)
        lines, tables, pool = self._code
        compiled = kernel.AvroProgram(lines, tables, np.array([prefix_size], np.int64))
        code = CompiledDecoder(kernel.kernel(), compiled, kernel.scratch(), pool, self._reason)
        return decode_slots(code, target, values, entries, failures)

    def _reason(self, status: int, place: int, found: int) -> str:
        return f"{self.program.code.paths[place]}: {kernel.REASONS[status].format(found)}"


def _parsed(registry: Registry, registered: RegisteredSchema) -> tuple[Schema, NamedTypes]:
    """Parse a schema from the registry, after those that it refers to."""
    named: NamedTypes = {}
    # One schema may have several names: each reference chooses its own.
    for text in dict.fromkeys(each.schema for each in registry.references(registered).values()):
        parse(_as_json(text), named)
    return parse(_as_json(registered.schema), named), named


def _object(rows: RowType, keys: dict[str, str], row: dict[str, Any]) -> Any:
    named = {keys[name]: value for name, value in row.items()}
    if rows.is_pydantic:
        return rows.cls.model_validate(named)  # type: ignore[attr-defined]
    return msgspec.convert(named, rows.cls)


def _as_json(schema: object) -> Schema:
    if isinstance(schema, str):
        if not schema.lstrip().startswith(("{", "[", '"')):
            return schema  # the name of a primitive type
        try:
            return msgspec.json.decode(schema)
        except (msgspec.DecodeError, RecursionError) as error:
            raise StrategyError(f"Avro: the schema is not JSON: {error}") from error
    if isinstance(schema, dict | list):
        return schema
    return schema_of_type(row_type(cast("type | pa.Schema", schema)))


_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def encode_datums(
    rows: pa.Table, parsed: Schema, named: NamedTypes, encode: Callable[[Any], bytes]
) -> pa.BinaryArray:
    """Encode rows by a parsed schema; one that is not a record is written from the column `value`.

    A union of several types is a struct with a field for each branch, or a value that fits one of them.

    Raises:
        StrategyError: the schema has no such columns.
        RowsDoNotFit: the schema cannot hold a value.
    """
    schema = resolve(parsed, named)
    is_record = type_of(schema) in RECORDS
    if not is_record:
        schema = {"type": "record", "name": "", "fields": [{"name": "value", "type": schema}]}
    columns = SchemaPrograms(parsed, named).schema
    kinds = {field["name"]: resolve(field["type"], named) for field in schema["fields"]}
    plain = {
        name
        for name, kind in kinds.items()
        if _is_union(kind) and name in rows.column_names and not _is_struct(rows, name)
    }
    columns = pa.schema(
        [rows.schema.field(each.name) if each.name in plain else each for each in columns]
    )
    fitted = fit_rows(rows, columns, f"Avro: the schema {schema['name']}".rstrip())
    convert = _converter(schema, named, "") or _same
    defaults = {  # fastavro takes them as they are in JSON, where bytes are text
        field["name"]: default_value(field["type"], field["default"], named)
        for field in schema["fields"]
        if "default" in field and field["name"] not in fitted.column_names
    }

    def encode_row(row: dict[str, Any]) -> bytes:
        datum = convert(row) | defaults
        return encode(datum if is_record else datum["value"])

    return encode_each(plain_rows(fitted), encode_row)


def _is_union(kind: Schema) -> bool:
    return isinstance(without_null(kind), list)


def _is_struct(rows: pa.Table, name: str) -> bool:
    return pa.types.is_struct(rows.schema.field(name).type)


def _same(value: Any) -> Any:
    return value


def _converter(schema: Schema, named: NamedTypes, path: str) -> Convert | None:
    """Return a function from Python values to fastavro's; None where they are the same."""
    schema = resolve(schema, named)
    match type_of(schema):
        case "union":
            return _union_converter(without_null(schema), named, path)
        case "array":
            each = _converter(schema["items"], named, path)
            return each and (lambda items: [each(item) for item in items])
        case "map":
            of_value = _converter(schema["values"], named, path) or _same
            return lambda pairs: {
                key: of_value(value) for key, value in dict_of(pairs, path).items()
            }
        case "record" | "error":
            return _record_converter(schema, named, path)
        case "enum":
            return _checker(set(schema["symbols"]).__contains__, f"{path} (enum {schema['name']})")
        case "string" if isinstance(schema, dict) and schema.get("logicalType") == "uuid":
            return _checker(_UUID.fullmatch, f"{path} (uuid)")
        case _:
            return None


def _record_converter(schema: Schema, named: NamedTypes, path: str) -> Convert | None:
    fields = {
        field["name"]: convert
        for field in schema["fields"]
        if (convert := _converter(field["type"], named, join(path, field["name"]))) is not None
    }
    if not fields:
        return None
    return lambda row: {
        **row,
        **{name: convert(row[name]) for name, convert in fields.items() if name in row},
    }


def _checker(fits: Callable[[Any], object], what: str) -> Convert:
    def check(value: Any) -> Any:
        if not fits(value):
            raise DoesNotFit(f"field {what} cannot hold {excerpt(value)}")
        return value

    return check


def _branch_name(branch: Schema, name: str) -> str:
    """Return fastavro's name of a branch: that of a named type, else `name`."""
    return str(branch.get("name", name)) if isinstance(branch, dict) else name


def _union_converter(rest: Schema, named: NamedTypes, path: str) -> Convert | None:
    if not isinstance(rest, list):
        convert = _converter(rest, named, path)
        # named, because fastavro would look for the branch, and does not find all in the unions inside
        name = _branch_name(resolve(rest, named), type_of(resolve(rest, named)))
        return convert and (lambda value: None if value is None else (name, convert(value)))
    branches = [resolve(each, named) for each in rest]
    names = branch_names(branches)
    by_name = {
        name: (_branch_name(each, name), _converter(each, named, path))
        for name, each in zip(names, branches, strict=True)
    }

    def chosen(value: Any) -> Any:
        if not isinstance(value, dict) or value.keys() - by_name.keys():
            return value  # not a struct of branches: fastavro chooses
        given = [name for name in by_name if value.get(name) is not None]
        if len(given) > 1:
            raise DoesNotFit(f"field {path}: the union has values of {' and '.join(given)}")
        for name in given:
            full, convert = by_name[name]
            return full, convert(value[name]) if convert else value[name]
        return None

    return chosen
