"""The format of `_schemas`: Confluent's, byte by byte for keys."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kmr.registry.records import (
    ConfigKey,
    ConfigValue,
    DeleteSubjectKey,
    Mode,
    ModeKey,
    ModeValue,
    NoopKey,
    SchemaKey,
    SchemaUse,
    SchemaValue,
    SubjectVersion,
    UnknownRecord,
    decode_record,
    encode_record,
)
from kmr.registry.schemas.compatibility import Level

RECORDS: list[tuple[Any, Any, str, dict[str, Any] | None]] = [
    (
        SchemaKey("s", 1),
        SchemaValue(subject="s", version=1, id=3, schema='"int"'),
        '{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}',
        {"subject": "s", "version": 1, "id": 3, "schema": '"int"', "deleted": False},
    ),
    (
        SchemaKey("s", 2),
        SchemaValue(
            subject="s",
            version=2,
            id=4,
            schemaType="JSON",
            references=(SchemaUse("r.json", "r", 1),),
            schema="{}",
            deleted=True,
        ),
        '{"keytype":"SCHEMA","subject":"s","version":2,"magic":1}',
        {
            "subject": "s",
            "version": 2,
            "id": 4,
            "schemaType": "JSON",
            "references": [{"name": "r.json", "subject": "r", "version": 1}],
            "schema": "{}",
            "deleted": True,
        },
    ),
    (SchemaKey("s", 1), None, '{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', None),
    (
        ConfigKey(),
        ConfigValue(compatibilityLevel=Level.FULL),
        '{"keytype":"CONFIG","magic":0}',
        {"compatibilityLevel": "FULL"},
    ),
    (
        ModeKey("s"),
        ModeValue(subject="s", mode=Mode.READONLY),
        '{"keytype":"MODE","subject":"s","magic":0}',
        {"subject": "s", "mode": "READONLY"},
    ),
    (
        DeleteSubjectKey("s"),
        SubjectVersion("s", 2),
        '{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}',
        {"subject": "s", "version": 2},
    ),
]


@pytest.mark.parametrize(("key", "value", "key_text", "document"), RECORDS)
def test_records_are_written_and_read_in_confluents_format(
    key: Any, value: Any, key_text: str, document: dict[str, Any] | None
) -> None:
    key_bytes, value_bytes = encode_record(key, value)
    assert key_bytes.decode() == key_text
    assert (None if value_bytes is None else json.loads(value_bytes)) == document
    assert decode_record(key_bytes, value_bytes) == (key, value)


def test_older_and_newer_registries_records_are_read() -> None:
    key, value = decode_record(
        b'{"magic":0,"keytype":"CONFIG","subject":null}',
        b'{"compatibilityLevel":"NONE","alias":"x"}',
    )
    assert isinstance(key, ConfigKey)
    assert key.subject is None
    assert isinstance(value, ConfigValue)
    assert value.compatibilityLevel == "NONE"
    assert decode_record(b'{"keytype":"NOOP","magic":0}', b"anything") == (NoopKey(), None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"),
        (b"\xff", b"{}"),
        (b'{"keytype":"OTHER"}', b"{}"),
        (b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', b"{}"),
        (b'{"keytype":"CONFIG","magic":0}', b'{"compatibilityLevel":"BOGUS"}'),
        (b'{"keytype":"MODE","magic":0}', b'{"mode":"IMPORT"}'),
        (b'{"keytype":"MODE","magic":0}', b'{"mode":"READONLY","x":' + b"[" * 9000),
        *(
            (
                b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}',
                b'{"subject":"s","version":%b,"id":%b,"schema":""}' % (version, number),
            )
            for version, number in (
                (b"0", b"1"),
                (b"1", b"-1"),
                (b"1", b"1099511627776"),
                (b"9" * 5000, b"1"),
            )
        ),
    ],
)
def test_other_records_are_unknown(key: bytes | None, value: bytes) -> None:
    with pytest.raises(UnknownRecord):
        decode_record(key, value)
