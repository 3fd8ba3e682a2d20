"""The interpreter agrees with fastavro: on generated schemas and values, resolved, and on damaged bytes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from kmr.values.avro import kernel
from kmr.values.avro.avro_format import Avro
from kmr.values.avro.schema import parse

from .generated import encode, read, readers, records, values


def decode(
    data: list[bytes | None], writer: Any, reader: Any = None
) -> tuple[list[Any], dict[int, str]]:
    """Decode without a registry, where the reader's schema may be another one."""
    format_ = Avro(writer if reader is None else reader)
    if reader is not None:
        decoder = format_._decoder()
        written: dict[str, dict[str, Any]] = {}
        decoder._entries[0] = decoder.program.add(parse(writer, written), written)
        decoder._code = decoder.program.code.arrays()
    decoded = format_.decode(pa.array(data, pa.binary()))
    decoded.columns.validate(full=True)
    return decoded.columns.to_pylist(), decoded.failures


@given(st.data())
@settings(max_examples=30)
def test_values_of_any_schema_are_what_fastavro_reads(data: st.DataObject) -> None:
    schema = data.draw(records())
    encoded = [encode(schema, each) for each in data.draw(st.lists(values(schema), max_size=4))]
    assert decode([*encoded, None], schema) == (
        [*(read(each, schema) for each in encoded), dict.fromkeys(names(schema))],
        {},
    )


@given(st.data())
@settings(max_examples=30)
def test_values_resolved_to_another_schema_are_what_fastavro_reads(data: st.DataObject) -> None:
    writer = data.draw(records())
    reader = data.draw(readers(writer))
    encoded = [encode(writer, each) for each in data.draw(st.lists(values(writer), max_size=3))]
    assert decode(list(encoded), writer, reader) == (
        [read(each, writer, reader) for each in encoded],
        {},
    )


@given(st.data())
@settings(max_examples=30)
def test_of_damaged_values_those_that_pass_are_what_fastavro_reads(data: st.DataObject) -> None:
    schema = data.draw(records())
    good = encode(schema, data.draw(values(schema)))
    at = data.draw(st.integers(0, len(good)))
    patch = data.draw(st.binary(max_size=3))
    damaged = [good[:at], good[:at] + patch + good[at + len(patch) :], good + b"\0", patch]
    rows, failures = decode([good, *damaged, good], schema)
    assert rows[0] == rows[-1] == read(good, schema)
    assert not {0, len(rows) - 1} & failures.keys()
    for number, value in enumerate(damaged, 1):
        if number in failures:
            assert set(rows[number].values()) == {None} or not rows[number]
            assert failures[number].startswith(("field f", "the value: "))
        else:
            assert rows[number] == read(value, schema)
    if good:
        assert 1 in failures or at == len(good)


def names(schema: Any) -> list[str]:
    return [field["name"] for field in schema["fields"]]


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


def test_every_status_has_a_reason() -> None:
    assert len(kernel.REASONS) == kernel.TRAILING + 1
