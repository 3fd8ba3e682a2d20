"""What stages wait for: in the status at once, in the log after 10 seconds."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import anyio
import structlog

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .status import StageStatus

ROOM: Final = "room within inflight_bytes"
REBALANCE: Final = "the end of a rebalance"
TURN: Final = "its turn to be written (inserts_per_second)"
"""`kmr.reducers.turns` logs it, once for all lanes."""

_PATIENCE: Final = 10.0

_log = structlog.get_logger(__name__)


class Waiting:
    """What one task waits for now, and since when; nothing outside of `on`."""

    def __init__(self) -> None:
        self.what: str | None = None
        self._since = 0.0

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Wait for something in the block: a name that ends "waits for ..."."""
        self.what, self._since = what, anyio.current_time()
        try:
            yield
        finally:
            self.what = None

    def seconds(self, now: float) -> float:
        """Return for how long, at a time of the event loop; 0 for nothing."""
        return 0.0 if self.what is None else now - self._since


class WaitLog:
    """Logs each wait of a stage once, when it has lasted for 10 seconds."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str | None]] = set()

    def note(self, stages: Iterable[StageStatus], intake: float = 0.0) -> None:
        """Note the status of this moment, and the seconds that intake waits; call it about once a second."""
        waits: dict[tuple[str, str | None], float] = {
            (stage.name, stage.waits_for): stage.waited
            for stage in stages
            if stage.waits_for not in (None, TURN) and stage.waited >= _PATIENCE
        }
        if intake >= _PATIENCE:
            waits["intake", ROOM] = intake
        for (name, what), seconds in waits.items():
            if (name, what) not in self._told:
                _log.warning("waiting", stage=name, waits_for=what, seconds=round(seconds))
        self._told = set(waits)
