"""`kmr broker features`, and the table in docs/broker.md that it generates."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kmr.broker.cli.features import unsupported_table

DOCUMENT = Path(__file__).parents[3] / "docs" / "broker.md"
BLOCK = re.compile(
    r"(?<=<!-- features: generated -->\n\n).*(?=\n\n<!-- features: end -->)", re.DOTALL
)

Kmr = Callable[..., Any]


def test_served_and_unsupported_features_are_listed(kmr: Kmr) -> None:
    result = kmr("features")
    assert (result.code, result.err) == (0, b"")
    table = [line.split() for line in result.lines]
    assert ["DeleteRecords", "21", "0", "2", "2"] in table
    assert "Share groups (KIP-932)" in result.lines
    assert any(line.startswith("  APIs: ShareGroupHeartbeat (76)") for line in result.lines)
    assert max(map(len, result.lines)) <= 100


def test_the_lists_are_available_as_json(kmr: Kmr) -> None:
    shown = json.loads(kmr("features", "--json").out)
    produce = next(each for each in shown["served"] if each["api"] == "Produce")
    assert (produce["key"], produce["min_version"]) == (0, 0)
    assert produce["max_version"] <= produce["kafka_max_version"]
    tokens = next(each for each in shown["unsupported"] if "tokens" in each["feature"])
    assert "CreateDelegationToken" in tokens["apis"]


def test_the_table_in_the_document_is_that_of_the_code() -> None:
    """KMR_WRITE_DOCS=1 writes it instead."""
    text = DOCUMENT.read_text()
    generated = BLOCK.sub(lambda _: unsupported_table(), text)
    if os.environ.get("KMR_WRITE_DOCS"):
        DOCUMENT.write_text(generated)
    else:
        assert text == generated, "run KMR_WRITE_DOCS=1 pytest tests/broker/cli/test_features.py"
    assert BLOCK.search(generated)


def test_the_table_for_documents_can_be_printed(kmr: Kmr) -> None:
    assert kmr("features", "--markdown").out.decode() == f"{unsupported_table()}\n"
