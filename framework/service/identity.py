"""Ids that no two processes share, and the time; both repeatable in a simulation."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

_chance: ContextVar[Random | None] = ContextVar("where ids come from", default=None)


def new_id() -> str:
    """Return 32 hexadecimal digits, from the operating system's randomness.

    Not from `random`: a strategy may seed it, and forked processes share its state.
    """
    chance = _chance.get()
    return uuid4().hex if chance is None else f"{chance.getrandbits(128):032x}"


def now_ms() -> int:
    """Return the milliseconds since 1970; in a simulation, those of its loop."""
    if _chance.get() is None:
        return int(time.time() * 1000)
    return 1 + int(asyncio.get_running_loop().time() * 1000)


@contextmanager
def ids_from(chance: Random) -> Iterator[None]:
    """Let `new_id` take ids from `chance`, and `now_ms` the loop's time: a simulation is repeatable."""
    token = _chance.set(chance)
    try:
        yield
    finally:
        _chance.reset(token)
