"""What `/live` and `/ready` answer."""

from __future__ import annotations

import os
from enum import Enum
from typing import TYPE_CHECKING, Final

import anyio
from anyio import to_thread

from broker.health.progress import STALL_SECONDS, Progress

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from broker.appends import Appends
    from broker.log.partition import PartitionLog
    from broker.topics.topics import Topics

__all__ = ["BrokerState", "Health"]

_DISK_PATIENCE: Final = 5.0  # seconds


class BrokerState(Enum):
    """Where a broker is between its start and its end."""

    STARTING = "starting: it opens and checks its logs"
    RUNNING = "running"
    STOPPING = "stopping"


class Health:
    """One broker's; every answer is the reason that it is not well, or "".

    Live: its event loop and its maintenance go on, and no sync that producers wait for hangs. A broker
    that is not should be killed. Ready: it takes requests, and can write what is produced.
    """

    def __init__(self, data_dir: Path) -> None:
        self.progress = Progress()
        self.state = BrokerState.STARTING
        self._data_dir = data_dir
        self._appends: Appends | None = None
        self._topics: Topics | None = None
        self._internal_logs: list[PartitionLog] = []

    def watch(
        self, appends: Appends, topics: Topics, internal_logs: Iterable[PartitionLog]
    ) -> None:
        """The broker runs, with these parts, until its state is set to STOPPING."""
        self._appends = appends
        self._topics = topics
        self._internal_logs = list(internal_logs)
        self.state = BrokerState.RUNNING

    def live(self) -> str:
        if self.state is not BrokerState.RUNNING:
            return ""  # it takes as long as it takes; the end has a deadline of its own
        syncing = 0.0 if self._appends is None else self._appends.syncing_seconds
        if syncing > STALL_SECONDS:
            return f"the disk has been syncing for {syncing:.0f} seconds"
        return self.progress.problem

    async def ready(self) -> str:
        if self.state is not BrokerState.RUNNING:
            return f"the broker is {self.state.value}"
        return self._failed_log() or await self._data_directory() or self.live()

    def _failed_log(self) -> str:
        logs = [*self._internal_logs]
        if self._topics is not None:
            logs += (partition.log for partition in self._topics.partitions)
        failed = [log.failure for log in logs if log.failure]
        if not failed:
            return ""
        more = f", and {len(failed) - 1} more logs" if failed[1:] else ""
        return f"{failed[0]}{more}; restart the broker when its disk works again"

    async def _data_directory(self) -> str:
        with anyio.move_on_after(_DISK_PATIENCE):
            # It stays behind if the disk hangs.
            return await to_thread.run_sync(_problem, self._data_dir, abandon_on_cancel=True)
        return f"the disk of {self._data_dir} does not answer"


def _problem(data_dir: Path) -> str:
    """Why nothing can be written there; without writing, which a full disk would not survive."""
    try:
        disk = os.statvfs(data_dir)
    except OSError as error:
        return f"the data directory {data_dir} cannot be used: {error.strerror}"
    if not os.access(data_dir, os.W_OK | os.X_OK):
        return f"the data directory {data_dir} cannot be written to"
    if not disk.f_bavail:
        return f"the disk of {data_dir} is full"
    return ""
