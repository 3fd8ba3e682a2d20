"""The value format `Avro`: decoding with or without a registry, and encoding for writers."""

from __future__ import annotations

import threading
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, cast

import fastavro
import msgspec
import numpy as np
import pyarrow as pa

from ...errors import StrategyError, as_exception
from ..decoding.slot_decoding import CompiledDecoder, SchemaColumns, decode_slots
from ..encoding import without_columns
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
from .datums import encode_datums
from .program import SchemaPrograms
from .schema import (
    NamedTypes,
    Schema,
    Unresolvable,
    avro_schema,
    not_of_avro,
    parse,
    schema_of_type,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ..schemas import RowType
    from .schema import NamedTypes, Schema

    Convert = Callable[[Any], Any]


_EIGHT_BYTES: Final = (
    "; ids of 8 bytes begin so: let Apicurio's serializers write 4 "
    "(apicurio.registry.as-confluent=true)"
)


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

    def schema_id_of_guid(self, guid: str) -> int:
        return 0 if self._registry is None else self._registry.id_of_guid(guid)

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
            return self._made.get(self._make_decoder)
        except RecursionError:
            raise StrategyError("Avro: the reader's schema is nested too deep") from None

    def _make_decoder(self) -> _Decoder:
        is_class = self._type is not None and not isinstance(self._type, pa.Schema)
        programs = SchemaPrograms(*self._reader(), needs_units=is_class)
        return _Decoder(programs, self._registry)

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

    def __init__(self, program: SchemaPrograms, registry: Registry | None) -> None:
        self.program = program
        self._registry = registry
        self._lock = threading.Lock()
        self._entries: dict[int, int | str] = {}
        if registry is None:
            self._entries[0] = program.add(program.reader, program.named)
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
        try:  # without the lock: who knows its schemas need not wait for the registry
            registered = registry.by_id(number)
            registry.references(registered)
        except UnknownSchema as error:
            return f"schema {number} is unknown: {error}{'' if number else _EIGHT_BYTES}"
        except StrategyError:
            pass  # as below
        with self._lock:
            if number not in self._entries:
                entry: int | str
                try:
                    if registered.schema_type != "AVRO":
                        raise Unresolvable(f"it is of type {registered.schema_type}, not Avro")
                    entry = self.program.add(*_parsed(registry, registered))
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
        _define(text, named)
    return _define(registered.schema, named), named


def _define(text: str, named: NamedTypes) -> Schema:
    """Parse a schema, and add its types. Raises StrategyError: one is known, and defined otherwise."""
    known = dict(named)
    parsed = parse(_as_json(text), named)
    for name, definition in known.items():
        if named[name] != definition:
            raise StrategyError(f"it and the schemas that it refers to define {name} in two ways")
    return parsed


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
