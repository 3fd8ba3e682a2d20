import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker.cli.features import unsupported_table

DOCUMENT = Path(__file__).parents[3] / "docs" / "broker.md"

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


def test_the_document_lists_what_the_code_lists() -> None:
    table = unsupported_table()
    assert table in DOCUMENT.read_text(), "put what `kmr broker features --markdown` prints there"


def test_the_table_for_documents_can_be_printed(kmr: Kmr) -> None:
    assert kmr("features", "--markdown").out.decode() == f"{unsupported_table()}\n"
