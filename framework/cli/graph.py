"""`kmr graph`: draw a strategy."""

import itertools
from html import escape
from typing import Literal

from ..loading import load_strategy
from .validate import Outline, ReducerOutline, outline_of

Format = Literal["text", "mermaid"]
BoxText = tuple[str, ...]
"""The lines of text in one box."""

_WIDEST = 40
"""Characters of a branch's name that are drawn."""


def graph(strategy: str, /, *, format: Format = "text") -> None:  # noqa: A002  the flag's name
    """Draw a strategy: for a terminal, or as Mermaid source.

    Parameters
    ----------
    strategy
        The strategy: module:attribute. The current directory is searched first.
    format
        text for a terminal, mermaid for Markdown.
    """
    print(draw(outline_of(strategy, load_strategy(strategy)), format))  # noqa: T201


def draw(outline: Outline, form: Format) -> str:
    """Draw a strategy as text or Mermaid source."""
    mapped = outline.map
    name = "none" if mapped.function is None else mapped.function.rpartition(".")[2]
    per = f"{'async, ' if mapped.is_async else ''}per {mapped.per}"
    what = [mapped.formats(), per if mapped.function is not None else ""]
    branches = [f"{_short(each.name)} to {each.reducers[-1]}" for each in outline.branches]
    main: list[BoxText] = [
        ("consumer", "polls, pauses, seeks"),
        (f"map {name}", ", ".join(filter(None, what))),
        *([("distinct", "; ".join(outline.distinct))] if outline.distinct else []),
        *(_box(reducer) for reducer in outline.reduce),
        *([("branches", *branches)] if branches else []),
        ("commit", "the watermark of each partition"),
    ]
    err = None if outline.reduce_err is None else _box(outline.reduce_err)
    return _text(main, err) if form == "text" else _mermaid(main, err)


def _short(name: str) -> str:
    return name if len(name) <= _WIDEST else f"{name[: _WIDEST - 3]}..."


def _box(reducer: ReducerOutline) -> BoxText:
    return (f"{reducer.stage} {reducer.reducer}", f"flush at {reducer.limits()}")


def _text(main: list[BoxText], err: BoxText | None) -> str:
    """Draw the boxes below each other, and the error reducer to the right between map and commit."""
    width = max(len(line) for box in main for line in box) + 2
    lines: list[str] = []
    tops: list[int] = []
    for position, box in enumerate(main):
        tops.append(len(lines))
        is_last = position == len(main) - 1
        top = "┌" + "─" * width + "┐"
        bottom = "└" + "─" * width + "┘"
        if position:
            top = _with(top, width // 2 + 1, "▼")
        if not is_last:
            bottom = _with(bottom, width // 2 + 1, "┬")
        lines += [top, *(f"│ {line:<{width - 1}}│" for line in box), bottom]
        if not is_last:
            lines.append(" " * (width // 2 + 1) + "│")
    if err is None:
        return "\n".join(lines)
    return "\n".join(_beside(lines, tops, width, err))


def _beside(lines: list[str], tops: list[int], width: int, err: BoxText) -> list[str]:
    """Add the error reducer and its lines from the map and to the commit; `tops` are those of the boxes."""
    failures, acks = tops[1] + 1, tops[-1] + 1
    err_width = max(map(len, err)) + 2
    column = width + 2 + len("─ failures ─")
    turn = column + err_width // 2
    frame = ["┌" + "─" * err_width + "┐", *(f"│ {line:<{err_width - 1}}│" for line in err)]
    frame.append(_with("└" + "─" * err_width + "┘", err_width // 2, "┬"))
    drawn = [line.ljust(width + 2) for line in lines]
    drawn[failures] = drawn[failures][:-1] + "├─ failures ─" + "─" * (turn - column) + "┐"
    start = failures + 1
    for offset, line in enumerate(frame):
        drawn[start + offset] = drawn[start + offset].ljust(column) + line
    drawn[start] = _with(drawn[start], turn, "▼")
    for row in range(start + len(frame), acks):
        drawn[row] = drawn[row].ljust(turn) + "│"
    drawn[acks] = drawn[acks] + "◄─ acks ".ljust(turn - width - 2, "─") + "┘"
    return [line.rstrip() for line in drawn]


def _with(line: str, at: int, character: str) -> str:
    return line[:at] + character + line[at + 1 :]


def _mermaid(main: list[BoxText], err: BoxText | None) -> str:
    names = [f"s{position}" for position in range(len(main))]
    lines = ["flowchart LR"]
    lines += [f'    {name}["{_in_mermaid(box)}"]' for name, box in zip(names, main, strict=True)]
    lines += [f"    {left} --> {right}" for left, right in itertools.pairwise(names)]
    if err is not None:
        lines.append(f'    err["{_in_mermaid(err)}"]')
        lines += ["    s1 -- failures --> err", f"    err -- acks --> {names[-1]}"]
    return "\n".join(lines)


def _in_mermaid(box: BoxText) -> str:
    return "<br/>".join(escape(line, quote=False).replace('"', "#quot;") for line in box)
