"""What commands print: plain lines, JSON for programs, tables without frames."""

from __future__ import annotations

import json
import sys

import msgspec
from rich.console import Console
from rich.table import Table


def plain_console(*, stderr: bool = False) -> Console:
    """Make a console that prints text as it is: no markup, no highlighting, no emoji, no wrapped lines."""
    return Console(highlight=False, soft_wrap=True, markup=False, emoji=False, stderr=stderr)


def print_json(value: object, *, indent: int = 2) -> None:
    """Print a value as JSON; control characters, which a terminal would obey, are escaped.

    Args:
        indent: spaces; -1: everything is on one line.

    Raises:
        msgspec.DecodeError: it is a `msgspec.Raw` that is no JSON.
    """
    text = msgspec.json.format(msgspec.json.encode(value), indent=indent).decode()
    escaped = (
        each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text
    )
    sys.stdout.write(f"{text if text.isascii() else ''.join(escaped)}\n")


def visible(text: str, *, lines: bool = False) -> str:
    """Return text of unknown origin for a terminal: control characters become escapes such as \\x1b.

    Args:
        lines: line feeds stay.
    """
    if text.isprintable():
        return text
    return "".join(
        each
        if each.isprintable() or (lines and each == "\n")
        else each.encode("unicode_escape").decode()
        for each in text
    )


def plain_table(*columns: str, left: tuple[str, ...]) -> Table:
    """Make a table without frames; the columns in `left` hold text, the others right-aligned numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right")
    return table
