"""The progress of a backfill: the committed offsets of its group say it, to `kmr backfill` and to workers."""

from __future__ import annotations

import math
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import anyio
import structlog

from ..delivery.announcement import history_group, read_metadata, read_up_to
from ..errors import ConsumerError
from ..kafka.admin import NotAllowed, connect_admin
from ..service.deadline import shield
from .progress import RecentRate
from .status import BackfillPartition, BackfillStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..kafka.connection import ConnectionConfig
    from ..kafka.consumer import CommitOffset
    from ..record import TopicPartition

_log = structlog.get_logger(__name__)

_INTERVAL: Final = 10.0  # seconds between looks
_MOST: Final = 16  # partitions in a line of the log


class BackfillWatch:
    """Follows the backfill of a group until it is done.

    Args:
        report: called with each new status.

    Attributes:
        status: None as long as no backfill is known.
    """

    def __init__(
        self, config: ConnectionConfig, group: str, report: Callable[[BackfillStatus], None]
    ) -> None:
        self.status: BackfillStatus | None = None
        self._config = config
        self._group = history_group(group)
        self._report = report
        self._pace = RecentRate()

    async def run(self) -> None:
        """Look at the committed offsets of the backfill; return when it is done, or there is none."""
        while True:
            try:
                async with AsyncExitStack() as stack:
                    with shield():  # aiokafka forgets a connection whose beginning is cancelled
                        admin = await stack.enter_async_context(connect_admin(self._config))
                    while self._note(  # noqa: ASYNC110  polls the broker
                        await admin.list_group_offsets(self._group), anyio.current_time()
                    ):
                        await anyio.sleep(_INTERVAL)
                return
            except NotAllowed:
                return
            except ConsumerError as error:
                _log.debug("progress of the backfill unknown, trying again", reason=str(error))
            await anyio.sleep(_INTERVAL)

    def _note(self, committed: Mapping[TopicPartition, CommitOffset], now: float) -> bool:
        """Note the commits; return whether something is left to do."""
        parts = [
            BackfillPartition(*at, history.offsets, history.done(read_up_to(at, entry)))
            for at, entry in sorted(committed.items())
            if (history := read_metadata(at, entry).history) is not None and history.offsets
        ]
        if not parts:
            return False
        total, done = sum(each.offsets for each in parts), sum(each.done for each in parts)
        self._pace.note(done, now)
        left = self._pace.seconds_left(total - done)
        self.status = BackfillStatus(
            self._group,
            total,
            done,
            self._pace.rate,
            None if math.isinf(left) else left,
            tuple(parts),
        )
        self._report(self.status)
        return done < total


def log_progress(status: BackfillStatus) -> None:
    """Log how far a backfill is, and the partitions with the most left."""
    left = sorted(status.partitions, key=lambda each: each.done - each.offsets)
    seconds = status.seconds_left
    _log.info(
        "backfill",
        done=status.done,
        of=status.offsets,
        records_per_second=round(status.rate),
        seconds_left=None if seconds is None else round(seconds),
        records_left={
            f"{each.topic}-{each.partition}": each.offsets - each.done
            for each in left[:_MOST]
            if each.offsets > each.done
        },
    )
