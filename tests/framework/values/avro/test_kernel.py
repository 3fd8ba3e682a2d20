"""The interpreter agrees with fastavro: on generated schemas and values, resolved, and on damaged bytes.

Each value is read as fastavro reads it, or fails with a reason that names its field.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kmr.errors import StrategyError
from kmr.values.avro import kernel
from kmr.values.avro.avro_format import Avro
from kmr.values.avro.schema import NamedTypes, parse
from tests.examples import examples

from .generated import Names, encoded, raw, read, readers, records, same, varint
from .named_types import compact, contains_itself, without_recursion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kmr.values.value_format import Decoded

_REASON = re.compile(r"(field [\w.]+|the value): .", re.DOTALL)
_STRICTER = (
    "bytes are left after the last field",
    "out of the range of its type",
    "too many digits",
    "its number of items",
    "has no symbol",
    "is not in the reader's schema",
    "not UTF-8",
    "has not all digits of",
    "more digits than the reader's unit",
    "longer than 64 bits",
)
"""Reasons for what fastavro reads: we look at all bytes, keep ranges, and do not round."""


def columns(data: Sequence[bytes | None], writer: Any, reader: Any = None) -> Decoded:
    """Decode without a registry, where the reader's schema may be another one."""
    format_ = Avro(writer if reader is None else reader)
    if reader is not None:
        decoder = format_._decoder()
        written: dict[str, dict[str, Any]] = {}
        decoder._entries[0] = decoder.program.add(parse(writer, written), written)
        decoder._code = decoder.program.code.arrays()
    decoded = format_.decode(pa.array(list(data), pa.binary()))
    decoded.columns.validate(full=True)
    return decoded


def decode(
    data: Sequence[bytes | None], writer: Any, reader: Any = None
) -> tuple[list[Any], dict[int, str]]:
    """Return the rows, and the reasons of failed ones."""
    decoded = columns(data, writer, reader)
    return decoded.columns.to_pylist(), decoded.failures


class Schemas(NamedTuple):
    """Schemas with a definition at each use, and as they are written."""

    writer: Any
    reader: Any
    written: Any
    resolved: Any


def drawn(data: st.DataObject, *, evolved: bool) -> Schemas:
    """Draw a writer's schema, and a reader's: it is without recursion."""
    names = Names()
    writer = data.draw(records(names))
    reader = without_recursion(writer)
    if evolved:
        reader = data.draw(readers(reader, names))
    choices = data.draw(st.randoms(use_true_random=False))
    return Schemas(writer, reader, compact(writer, choices), compact(reader, choices))


def values_of(data: st.DataObject, schema: Any, most: int) -> list[bytes]:
    """Draw encoded values of a schema."""
    named: NamedTypes = {}
    parsed = parse(schema, named)
    return data.draw(st.lists(encoded(parsed, named), max_size=most))


def check(data: list[bytes], schemas: Schemas) -> dict[int, str]:
    """Compare with fastavro; return the reasons of the values that failed."""
    named: NamedTypes = {}
    target = parse(schemas.resolved, named)
    found, failures = columns([*data, None], schemas.written, schemas.resolved)
    rows = [{name: raw(column[row]) for name, column in zip(found.schema.names, found.columns, strict=True)}
            for row in range(len(data) + 1)]  # fmt: skip
    assert not any(each is not None for each in rows.pop().values())
    for number, (value, row) in enumerate(zip(data, rows, strict=True)):
        if number in failures:
            assert _REASON.match(failures[number]), failures[number]
            assert not any(each is not None for each in row.values())
            continue
        try:
            # By a schema itself fastavro reads the branches of a union as each other.
            is_other = schemas.reader != schemas.writer
            expected = read(value, schemas.writer, schemas.reader if is_other else None)
        except fastavro_errors:
            assert schemas.reader != schemas.writer  # we go beyond Avro's rules, see `compiler`
            continue
        assert same(target, named, row, expected), (row, expected)
    return failures


fastavro_errors = (Exception,)


@given(st.data())
@settings(max_examples=examples(150))
def test_values_of_any_schema_are_what_fastavro_reads(data: st.DataObject) -> None:
    schemas = drawn(data, evolved=False)
    assert check(values_of(data, schemas.written, 4), schemas) == {}
    if contains_itself(schemas.writer):
        with pytest.raises(StrategyError, match="contains itself"):
            Avro(schemas.written).decode(pa.array([], pa.binary()))


@given(st.data())
@settings(max_examples=examples(300))
def test_values_resolved_to_another_schema_are_what_fastavro_reads(data: st.DataObject) -> None:
    schemas = drawn(data, evolved=True)
    values = values_of(data, schemas.written, 3)
    try:
        failures = check(values, schemas)
    except StrategyError as error:
        if "field " not in str(error):
            raise
        return
    for number, reason in failures.items():
        try:
            read(values[number], schemas.writer, schemas.reader)
        except fastavro_errors:
            continue
        assert any(each in reason for each in _STRICTER), reason


@given(st.data())
@settings(max_examples=examples(150))
def test_of_damaged_values_those_that_pass_are_what_fastavro_reads(data: st.DataObject) -> None:
    schemas = drawn(data, evolved=False)
    named: NamedTypes = {}
    good = data.draw(encoded(parse(schemas.written, named), named))
    at = data.draw(st.integers(0, len(good)))
    patch = data.draw(st.binary(max_size=3))
    damaged = [good[:at], good[:at] + patch + good[at + len(patch) :], good + b"\0", patch]
    failures = check([good, *damaged, good], schemas)
    assert not {0, 5} & failures.keys()
    assert 3 in failures
    assert 1 in failures or at == len(good)
    for number, reason in failures.items():
        try:
            read([good, *damaged, good][number], schemas.writer)
        except fastavro_errors:
            continue
        assert (
            any(each in reason for each in _STRICTER) or "boolean" in reason or "length" in reason
        )


def test_an_impossible_number_of_items_ends() -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "nothing", "type": {"type": "array", "items": "null"}}],
    }
    smallest = b"\xff" * 9 + b"\x01"
    many = b"\xfe" + b"\xff" * 8 + b"\x01"
    assert decode([b"\2\0", smallest + b"\0\0", many + b"\0"], schema) == (
        [{"nothing": [None]}, {"nothing": None}, {"nothing": None}],
        {
            1: "field nothing: its number of items (-9223372036854775808) is impossible",
            2: "field nothing: its number of items (9223372036854775807) is impossible",
        },
    )


@pytest.mark.parametrize("reader", [["of"], ["after"], ["of", "after"]])
def test_items_without_bytes_take_no_more_time_than_the_value_has_bytes(reader: list[str]) -> None:
    nothing = {"type": "array", "items": {"type": "array", "items": "null"}}
    types = {"of": nothing, "after": "int"}
    made = [
        {"type": "record", "name": "R", "fields": [{"name": n, "type": types[n]} for n in names]}
        for names in (["of", "after"], reader)
    ]
    many = varint(200_000)
    hostile = many + (many + b"\0") * 200_000 + b"\0\2"
    rows, failures = decode([hostile, b"\2\2\0\0\2"], *made)
    assert failures == {0: "field of: its number of items (200000) is impossible"}
    assert rows[1] == {name: {"of": [[None]], "after": 1}[name] for name in reader}


def test_every_status_has_a_reason() -> None:
    assert len(kernel.REASONS) == kernel.TRAILING + 1
