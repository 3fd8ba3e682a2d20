"""Ids that no two processes share."""

from __future__ import annotations

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


@contextmanager
def ids_from(chance: Random) -> Iterator[None]:
    """Let `new_id` take ids from `chance`: for a simulation, which has to be repeatable."""
    token = _chance.set(chance)
    try:
        yield
    finally:
        _chance.reset(token)
