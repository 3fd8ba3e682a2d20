"""Patterns of JSON schemas, also those that take exponentially long elsewhere."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kmr.registry.schemas.json_patterns import UnknownPattern, matches
from kmr.registry.schemas.json_schema import JsonSchema

TEXT = {"type": "string"}
HOSTILE = "^(a+)+$"
LETTERS = f"{'a' * 60}!"


def closed(**more: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, **more}


@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        ({"pattern": HOSTILE}, {"const": LETTERS}),
        ({"patternProperties": {HOSTILE: TEXT}}, {"const": {LETTERS: 1}}),
        (closed(patternProperties={HOSTILE: TEXT}), {"const": {LETTERS: 1}}),
        (closed(patternProperties={HOSTILE: TEXT}), closed(properties={LETTERS: TEXT})),
    ],
)
def test_a_schema_with_exponentially_many_paths_is_compared_at_once(
    reader: Any, writer: Any
) -> None:
    JsonSchema(json.dumps(reader)).incompatibilities(JsonSchema(json.dumps(writer)))


def test_a_pattern_matches_a_part_and_one_that_re2_does_not_know_is_named() -> None:
    assert matches("b+", "abbc")
    assert not matches("^b", "abbc")
    assert matches(r"^\p{Lu}$", "\u00c4")
    for unknown in ("(?=a)", r"(a)\1", "(a", r"\cA"):
        with pytest.raises(UnknownPattern):
            matches(unknown, "a")
