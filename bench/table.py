"""Tables of results as Markdown, which README can take as they are."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["print_table"]


def print_table(
    title: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    text: Collection[str] = (),
) -> None:
    """Print a table with its title, the date and the interpreter; all columns but `text` are numbers."""
    print(
        f"{title}; {datetime.now(UTC):%Y-%m-%d}, {platform.python_implementation()} "
        f"{platform.python_version()}, {platform.machine()}\n"
    )
    lines = [headings, ["---" if each in text else "---:" for each in headings], *rows]
    for line in lines:
        print(f"| {' | '.join(line)} |")
    print(flush=True)
