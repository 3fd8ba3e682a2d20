"""Defaults and names in parsed schemas."""

from __future__ import annotations

from typing import Any

import pytest

from kmr.errors import StrategyError
from kmr.values.avro.schema import branch_names, default_value, inlined, parse, show, without_null


def test_defaults_are_converted_from_json() -> None:
    inner: dict[str, Any] = {
        "type": "record",
        "name": "In",
        "fields": [{"name": "b", "type": "bytes"}, {"name": "n", "type": "float", "default": 1}],
    }
    assert default_value(inner, {"b": "\u00ff"}, {}) == {"b": b"\xff", "n": 1.0}
    assert default_value(["string", "null"], "x", {}) == "x"
    assert default_value({"type": "map", "values": "bytes"}, {"k": "a"}, {}) == {"k": b"a"}


def test_names_are_inlined_where_they_first_occur() -> None:
    named: dict[str, Any] = {}
    parse({"type": "enum", "name": "n.E", "symbols": ["A"]}, named)
    again = inlined(["n.E", {"type": "array", "items": "n.E"}], named, set())
    assert again[0]["symbols"] == ["A"]
    assert again[1]["items"] == "n.E"


def test_a_schema_that_is_not_valid_is_refused() -> None:
    with pytest.raises(StrategyError, match="not valid"):
        parse({"type": "record", "name": "R", "fields": [{"name": "a", "type": "Other"}]}, {})


def test_schemas_are_named_in_messages() -> None:
    assert show(["null", {"type": "int", "logicalType": "date"}]) == "[null, int (date)]"
    assert show({"type": "fixed", "name": "a.F", "size": 1}) == "fixed a.F"
    fixed = {"type": "fixed", "name": "a.F", "size": 1}
    assert branch_names(["int", fixed]) == ["int", "F"]
    assert branch_names([fixed, {**fixed, "name": "b.F"}]) == ["a.F", "b.F"]
    assert without_null(["int", "null", "long"]) == "long"
