"""A map stage waits for a schema registry that does not answer: no record fails, and no worker ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio
import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..values.registry.registry import RegistryUnavailable

_FIRST_PAUSE: Final = 0.5  # seconds, doubled up to the last one
_LAST_PAUSE: Final = 10.0
_LOGGED_AGAIN: Final = 60.0

_log = structlog.get_logger(__name__)


class RegistryWait:
    """The pauses of one stage between its questions to a registry.

    Args:
        on_wait: called with the reason before each pause.

    Attributes:
        reason: why the registry does not answer; None while it does.
    """

    def __init__(self, stage: str, on_wait: Callable[[str], None]) -> None:
        self.reason: str | None = None
        self._stage = stage
        self._on_wait = on_wait
        self._attempts = 0
        self._seconds = _FIRST_PAUSE
        self._began = self._logged = 0.0

    async def pause(self, error: RegistryUnavailable) -> None:
        """Wait after a question without an answer; log it at first, and again after each minute."""
        now = anyio.current_time()
        if self.reason is None:
            self._attempts, self._began, self._logged = 0, now, -_LOGGED_AGAIN
            self._seconds = _FIRST_PAUSE
        self._attempts += 1
        self.reason = str(error)
        if now - self._logged >= _LOGGED_AGAIN:
            self._logged = now
            _log.warning(
                "a schema registry does not answer: the records wait for it",
                stage=self._stage,
                reason=self.reason,
                attempts=self._attempts,
                failing=round(now - self._began, 1),
            )
        self._on_wait(self.reason)
        seconds, self._seconds = self._seconds, min(_LAST_PAUSE, 2 * self._seconds)
        await anyio.sleep(seconds)

    def over(self) -> None:
        """Note that the records were decoded."""
        if self.reason is None:
            return
        self.reason = None
        _log.info(
            "the schema registry answers again",
            stage=self._stage,
            seconds=round(anyio.current_time() - self._began, 1),
        )
