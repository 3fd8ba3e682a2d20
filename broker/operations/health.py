"""Is this broker live, and is it ready? The checks behind `/live` and `/ready`."""

from __future__ import annotations

import os
from enum import Enum
from typing import TYPE_CHECKING, Final

import anyio
from anyio import to_thread

from ..supervision import STALL_SECONDS, Supervision

if TYPE_CHECKING:
    from pathlib import Path

    from ..storage.group_commit import GroupCommit
    from ..topics.topics import Topics

_DISK_PATIENCE: Final = 5.0  # seconds


class BrokerState(Enum):
    """The phase of a broker's life; the value is text for `/ready`."""

    STARTING = "starting: it opens and checks its logs"
    RUNNING = "running"
    STOPPING = "stopping"


class Health:
    """The health of one broker. Each check returns the failure, or an empty string.

    Live: the event loop and the periodic tasks make progress, and no sync hangs that producers wait for.
    Kill a broker that is not live. Ready: it answers requests, and can write records.
    """

    def __init__(self, data_dir: Path) -> None:
        self.supervisor = Supervision()
        self.state = BrokerState.STARTING
        self._data_dir = data_dir
        self._group_commit: GroupCommit | None = None
        self._topics: Topics | None = None

    def watch(self, group_commit: GroupCommit, topics: Topics) -> None:
        """Enter the state RUNNING and check these parts from now on."""
        self._group_commit = group_commit
        self._topics = topics
        self.state = BrokerState.RUNNING

    def live(self) -> str:
        """Check that a running broker makes progress."""
        if self.state is not BrokerState.RUNNING:
            return ""  # recovery may take any time; the stop has a deadline of its own
        syncing = 0.0 if self._group_commit is None else self._group_commit.syncing_seconds
        if syncing > STALL_SECONDS:
            return f"the disk has been syncing for {syncing:.0f} seconds"
        return self.supervisor.stalled

    def warnings(self) -> str:
        """Return what is wrong with a live broker, "" for nothing: background work that is tried again."""
        failures = self.supervisor.failures
        more = f"; and {len(failures) - 1} more" if failures[1:] else ""
        return f"{failures[0]}{more}" if failures else ""

    async def ready(self) -> str:
        """Check that the broker runs, is live and can write to its disk."""
        if self.state is not BrokerState.RUNNING:
            return f"the broker is {self.state.value}"
        return self._failed_log() or await self._data_directory() or self.live()

    def _failed_log(self) -> str:
        topics = [] if self._topics is None else self._topics.all
        failures = (each.log.failure for topic in topics for each in topic.partitions)
        failed = [failure for failure in failures if failure]
        if not failed:
            return ""
        more = f", and {len(failed) - 1} more logs" if failed[1:] else ""
        return f"{failed[0]}{more}"

    async def _data_directory(self) -> str:
        with anyio.move_on_after(_DISK_PATIENCE):
            # If the disk hangs, so does the thread; do not wait for it.
            return await to_thread.run_sync(_disk_problem, self._data_dir, abandon_on_cancel=True)
        return f"the disk of {self._data_dir} does not answer"


def _disk_problem(data_dir: Path) -> str:
    """Return why `data_dir` cannot be written to, "" if it can; without writing, as the disk may be full."""
    try:
        disk = os.statvfs(data_dir)
    except OSError as error:
        return f"the data directory {data_dir} cannot be used: {error.strerror}"
    if not os.access(data_dir, os.W_OK | os.X_OK):
        return f"the data directory {data_dir} cannot be written to"
    if not disk.f_bavail:
        return f"the disk of {data_dir} is full"
    return ""
