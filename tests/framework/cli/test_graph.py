"""`kmr graph`: drawings of a strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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


def test_a_strategy_can_be_drawn_by_mermaid(kmr: Callable[..., Any], folder: Path) -> None:
    lines = [line.strip() for line in kmr("graph", "flow", "--format", "mermaid").out.splitlines()]
    edges = {"s0 --> s1", "s3 --> s4", "s1 -- failures --> err", "err -- acks --> s4"}
    assert edges <= set(lines)


BRANCHES = """
from kmr import Strategy
from kmr.sinks import StreamWriter

def split(record):
    return {"n": record.offset}, "a"

names = ["a", 'b "<&', "c" * 100]
strategy = Strategy(
    map=split,
    reduce={name: StreamWriter("stdout") for name in names},
    reduce_err=StreamWriter("stderr"),
)
"""


def test_each_branch_has_a_line(kmr: Callable[..., Any], folder: Path) -> None:
    (folder / "parted.py").write_text(BRANCHES)
    lines = kmr("graph", "parted").out.splitlines()
    (first,) = [at for at, line in enumerate(lines) if line.startswith("│ a to StreamWriter")]
    assert lines[first - 1].startswith("│ branches ")
    assert lines[first + 1].startswith('│ b "<& to StreamWriter')
    assert lines[first + 2].startswith(f"│ {'c' * 37}... to StreamWriter")
    assert max(map(len, lines)) < 130
    (acks,) = [line for line in lines if "acks" in line]
    assert acks.startswith("│ commit")
    column = acks.index("┘", acks.index("acks"))
    assert {line[column] for line in lines[lines.index(acks) - 5 : lines.index(acks)]} == {"│"}


def test_a_name_with_quotes_keeps_the_source_valid(kmr: Callable[..., Any], folder: Path) -> None:
    (folder / "parted.py").write_text(BRANCHES)
    lines = kmr("graph", "parted", "--format", "mermaid").out.splitlines()
    (box,) = [line for line in lines if "branches" in line]
    assert "b #quot;&lt;&amp; to StreamWriter" in box
    assert box.count('"') == 2
