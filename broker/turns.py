"""Long work in the event loop in slices: other clients have their turns in between."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

SLICE_SECONDS = 0.005
"""Time after which one request gives way to others."""

Element = TypeVar("Element")


async def in_turns(elements: Iterable[Element]) -> AsyncGenerator[Element]:
    """Yield the elements, and let others have the event loop between two of them when this took long.

    What the caller reads for two elements may differ: others may have changed it meanwhile.
    """
    until = monotonic() + SLICE_SECONDS
    for each in elements:
        yield each
        if monotonic() >= until:
            await asyncio.sleep(0)
            until = monotonic() + SLICE_SECONDS
