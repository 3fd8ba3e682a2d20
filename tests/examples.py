"""How many examples of a property are tried."""

from __future__ import annotations

import os
from typing import Final

__all__ = ["PROFILE", "examples"]

PROFILE: Final = os.environ.get("HYPOTHESIS_PROFILE", "same examples")
_TIMES: Final = int(os.environ.get("SEARCH_TIMES", "1"))


def examples(count: int) -> int:
    """Return `count` times SEARCH_TIMES for `make search`; a third for the suite, which repeats the same."""
    return count * _TIMES if PROFILE == "search" else count // 3
