"""Log once, with the names of columns, and count each time what a sink leaves out on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..columns.fitted import Fitted

_log = structlog.get_logger(__name__)


class LeavingOut:
    """Logs and counts what the flushes of one stage leave out.

    Args:
        count: called with the stage, `fields` or `digits`, and a number of values.
    """

    def __init__(
        self, stage: str = "", count: Callable[[str, str, int], None] | None = None
    ) -> None:
        self._stage = stage
        self._count = count
        self._said: set[tuple[str, str]] = set()

    def of(self, destination: object, fitted: Fitted) -> None:
        """Log and count what rows lost when they were fitted to a destination."""
        self._note(
            destination,
            "fields",
            fitted.left_out,
            "values are not written: there is no place for them",
        )
        self._note(
            destination, "digits", fitted.cut, "times are cut to the precision of their column"
        )

    def _note(self, destination: object, what: str, counts: Mapping[str, int], event: str) -> None:
        if new := sorted(name for name in counts if (what, name) not in self._said):
            self._said |= {(what, name) for name in new}
            _log.warning(event, stage=self._stage, destination=str(destination), columns=new)
        if self._count is not None and (values := sum(counts.values())):
            self._count(self._stage, what, values)
