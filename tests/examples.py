"""How many examples of a property are tried."""

from __future__ import annotations

import os
from typing import Final

__all__ = ["PROFILE", "examples"]

PROFILE: Final = os.environ.get("HYPOTHESIS_PROFILE", "same examples")


def examples(count: int) -> int:
    """Return `count` for `make search`, which tries new ones; for the suite, which repeats them, a third."""
    return count if PROFILE == "search" else count // 3
