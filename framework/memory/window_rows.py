"""The rows of windows that close, on their way to the sink."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from ..record import Rows

if TYPE_CHECKING:
    from ..record import Range


@dataclass(frozen=True)
class WindowRows(Rows):
    """Rows of windows that close; without rows a mark, which says how far was read.

    `ranges` are all offsets that were read and are not settled.

    Attributes:
        settles: those of `ranges` below the first record of a window that stays open.
        read_to: the last offset that was read.
        definition: see `Window.definition`.
        level_before: see `Closed.level`, before these rows.
        level: after them.
        emitted_to: see `Closed.emitted_to`, before these rows.
        done: set when the rows are written and settled.
    """

    settles: tuple[Range, ...] = ()
    read_to: int = -1
    definition: str = ""
    level_before: int = 0
    level: int = 0
    emitted_to: int | None = None
    done: anyio.Event = field(default_factory=anyio.Event, compare=False)
