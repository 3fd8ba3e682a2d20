"""Compatibility levels."""

from __future__ import annotations

import json

import pytest

from kmr.registry.schemas.avro_schema import AvroSchema
from kmr.registry.schemas.compatibility import Earlier, Level, incompatibilities

FIELDS = {
    "a": {"name": "a", "type": "int"},
    "b": {"name": "b", "type": "int"},
    "c": {"name": "c", "type": "int", "default": 0},
}


def schema(fields: str) -> AvroSchema:
    document = {"type": "record", "name": "R", "fields": [FIELDS[each] for each in fields]}
    return AvroSchema(json.dumps(document))


@pytest.mark.parametrize(
    ("earlier", "new", "fits"),
    [
        # `a` and `b` have no default, `c` has one.
        ("ab", "a", "NONE BACKWARD BACKWARD_TRANSITIVE"),
        ("a", "ab", "NONE FORWARD FORWARD_TRANSITIVE"),
        ("a", "ac", "all"),
        ("ac", "a", "all"),
        ("b a", "a", "NONE BACKWARD FORWARD FULL"),
        ("", "b", "all"),
        ("a b", "ab", "NONE FORWARD FORWARD_TRANSITIVE"),
        ("ab b", "b", "NONE BACKWARD FORWARD FULL BACKWARD_TRANSITIVE"),
    ],
)
def test_each_level_looks_at_its_versions_in_its_directions(
    earlier: str, new: str, fits: str
) -> None:
    versions = [
        Earlier(number, "AVRO", schema(fields)) for number, fields in enumerate(earlier.split(), 1)
    ]
    found = {
        level.value
        for level in Level
        if not incompatibilities(level, "AVRO", schema(new), versions)
    }
    assert found == (set(Level) if fits == "all" else set(fits.split()))


def test_the_reasons_name_the_version_and_the_level() -> None:
    earlier = [Earlier(7, "AVRO", schema("a"))]
    reasons = incompatibilities(Level.BACKWARD, "AVRO", schema("ab"), earlier)
    assert reasons[0].startswith("{errorType:'READER_FIELD_MISSING_DEFAULT_VALUE'")
    assert reasons[1] == "{oldSchemaVersion: 7}"
    assert reasons[-1] == "{compatibility: 'BACKWARD'}"


def test_another_type_never_fits() -> None:
    earlier = [Earlier(1, "JSON", schema("a"))]
    assert "JSON in the old" in incompatibilities(Level.FULL, "AVRO", schema("a"), earlier)[0]
    assert not incompatibilities(Level.NONE, "AVRO", schema("a"), earlier)
