"""How functions of this package are compiled to machine code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

import numba

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Int", "Ints", "compiled"]

P = ParamSpec("P")
R = TypeVar("R")

Int: TypeAlias = Any
"""A 64-bit integer of compiled code: `int` and `np.int64` are the same there, but not to a type checker."""

Ints: TypeAlias = Any
"""An array of such."""


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile at the first call, to code that runs without the GIL, and keep it on disk.

    That is beside the source, or in the user's cache directory when that cannot be written. Where
    neither can be, every process compiles for itself.
    """
    result: Callable[P, R]
    try:
        result = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no place for the cache
        result = numba.njit(nogil=True)(function)
    return result
