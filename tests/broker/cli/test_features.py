import json
from collections.abc import Callable
from typing import Any

Kmr = Callable[..., Any]


def test_what_is_served_and_what_is_not_is_listed(kmr: Kmr) -> None:
    result = kmr("features")
    assert (result.code, result.err) == (0, b"")
    table = [line.split() for line in result.lines]
    assert ["DeleteRecords", "21", "0", "2", "2"] in table
    assert "Share groups (KIP-932)" in result.lines
    assert any(line.startswith("  APIs: ShareGroupHeartbeat (76)") for line in result.lines)
    assert max(map(len, result.lines)) <= 100


def test_the_same_is_there_as_json(kmr: Kmr) -> None:
    shown = json.loads(kmr("features", "--json").out)
    produce = next(each for each in shown["served"] if each["api"] == "Produce")
    assert (produce["key"], produce["min_version"]) == (0, 0)
    assert produce["max_version"] <= produce["kafka_max_version"]
    tokens = next(each for each in shown["unsupported"] if "tokens" in each["feature"])
    assert "CreateDelegationToken" in tokens["apis"]
