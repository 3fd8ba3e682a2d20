"""Every suite, in the order in which they are run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from interop.suites.contract import Suite

__all__ = ["suites"]


def suites() -> Sequence[Suite]:
    """New ones; a suite keeps nothing from one run to the next."""
    return ()
