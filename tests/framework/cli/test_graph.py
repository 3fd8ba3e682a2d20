"""`kmr graph`: drawings of a strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_lines_connect_the_map_the_error_sink_and_the_commit(
    kmr: Callable[..., Any], folder: Path
) -> None:
    lines = kmr("graph", "flow").out.splitlines()
    text = "\n".join(lines)
    for name in ("consumer", "map parse", "reduce-1 Batcher", "reduce-2 Collect", "commit"):
        assert f"│ {name} " in text
    (failures,) = [line for line in lines if "failures" in line]
    (acks,) = [line for line in lines if "acks" in line]
    assert failures.startswith("│ map parse")
    assert acks.startswith("│ commit")
    # The line from the map down to the commit stands in one column.
    column = acks.index("┘", acks.index("acks"))
    between = lines[lines.index(failures) + 1 : lines.index(acks)]
    drawn = [
        line[column] for line in between if "reduce-err" not in line and "flush at 1 s" not in line
    ]
    assert drawn == ["▼", "┬", *"│" * (len(drawn) - 2)]
    assert failures[column] == "┐"


def test_the_format_of_values_stands_with_the_map(kmr: Callable[..., Any], folder: Path) -> None:
    lines = kmr("graph", "flow:typed").out.splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("│ map none "))
    assert "failures" in lines[at]
    assert lines[at + 1].startswith("│ value: Json(Hit), key: Text ")


def test_without_error_sink_nothing_is_drawn_beside_the_chain(
    kmr: Callable[..., Any], folder: Path
) -> None:
    lines = kmr("graph", "flow:bare").out.splitlines()
    assert "failures" not in "".join(lines)
    assert {len(line) for line in lines if line[0] != " "} == {len(lines[0])}


@pytest.mark.parametrize(
    ("form", "edges"),
    [
        ("mermaid", ["s0 --> s1", "s3 --> s4", "s1 -- failures --> err", "err -- acks --> s4"]),
        ("dot", ["s0 -> s1;", "s3 -> s4;", 's1 -> err [label="failures"];']),
    ],
)
def test_a_strategy_can_be_drawn_by_other_tools(
    kmr: Callable[..., Any], folder: Path, form: str, edges: list[str]
) -> None:
    lines = [line.strip() for line in kmr("graph", "flow", "--format", form).out.splitlines()]
    assert set(edges) <= set(lines)
