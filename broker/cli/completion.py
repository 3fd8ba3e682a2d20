"""Tab completion and history for the console, where the terminal and Python have readline."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["completer", "completion"]

_HISTORY_LINES = 1000


@contextmanager
def completion(words: Callable[[list[str]], list[str]]) -> Iterator[None]:
    """Complete lines from `words(before)`, and keep the history over sessions."""
    try:
        import readline
    except ImportError:  # not on every platform
        yield
        return
    if not sys.stdin.isatty():
        yield
        return
    readline.set_completer_delims(" \t\n")
    readline.set_completer(completer(words, readline.get_line_buffer))
    readline.parse_and_bind("tab: complete")
    history = _history_file()
    with suppress(OSError):
        history.parent.mkdir(parents=True, exist_ok=True)
        readline.read_history_file(history)
    try:
        yield
    finally:
        readline.set_completer(None)
        readline.set_history_length(_HISTORY_LINES)
        with suppress(OSError):
            readline.write_history_file(history)


def completer(
    words: Callable[[list[str]], list[str]], line: Callable[[], str]
) -> Callable[[str, int], str | None]:
    """A completion function as readline wants it: called with 0, 1, 2 ... until it returns None."""
    matches: list[str] = []

    def complete(text: str, state: int) -> str | None:
        nonlocal matches
        if state == 0:
            typed = line()
            before = typed[: len(typed) - len(text)].split()
            matches = [f"{word} " for word in sorted(words(before)) if word.startswith(text)]
        return matches[state] if state < len(matches) else None

    return complete


def _history_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "kmr" / "console_history"
