"""A cut-over: wait until a new version has read what the old one has, then exchange their tables."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import anyio
import structlog

from ..config.schema import show_count
from ..delivery.announcement import history_group
from ..errors import ConsumerError, StrategyError
from ..kafka.admin import connect_admin
from ..kafka.connection import connection_config
from ..sinks.clickhouse.writer import ClickHouseWriter
from ..sinks.exchanging import VersionGroups
from .plan import BackfillPlan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..record import TopicPartition
    from ..settings import GroupSettings
    from ..sinks.exchanging import TableExchange
    from ..strategy import Strategy

_log = structlog.get_logger(__name__)

_INTERVAL: Final = 1.0  # seconds between looks at the committed offsets
_SHOWN_EVERY: Final = 10.0  # seconds
_FRESH: Final = 10.0
"""Seconds. Two groups that run never commit the same offsets at one moment: the new one must have what the
old one had so long ago."""


@dataclass(frozen=True, slots=True)
class CutoverStanding:
    """The committed offsets of both groups.

    Attributes:
        old: of the old version.
        new: of the new version, in the same partitions; 0 where it has none.
        history_left: offsets that the backfill of the new version has to read.
        has_history: it has one.
        members: of the group of the new version.
    """

    old: Mapping[TopicPartition, int]
    new: Mapping[TopicPartition, int]
    history_left: int
    has_history: bool
    members: int

    def behind(self, old: Mapping[TopicPartition, int] | None = None) -> dict[TopicPartition, int]:
        """Return how many offsets the new version is behind the old one, where it is.

        Args:
            old: offsets of the old version; None: those of now.
        """
        lags = {at: offset - self.new.get(at, 0) for at, offset in (old or self.old).items()}
        return {at: lag for at, lag in lags.items() if lag > 0}

    def refuse(self, group: str) -> None:
        """Raise StrategyError unless the new version has everything that the old one has."""
        if self.history_left:
            raise StrategyError(
                f"the backfill of group {group} has {show_count(self.history_left, 'offset')} left; run kmr "
                "backfill to its end, or give --await"
            )
        if behind := self.behind():
            at, most = max(behind.items(), key=lambda item: item[1])
            raise StrategyError(
                f"group {group} is {show_count(sum(behind.values()), 'offset')} behind ({at}: {most:,}), "
                "and readers would miss them for a moment; give --await to wait until it is not"
            )


def exchange_of(strategy: Strategy, replaced: str, group: str, old_group: str) -> TableExchange:
    """Return the exchange of the table of a strategy.

    Raises:
        StrategyError: the strategy has several tables, or none that can be exchanged.
    """
    if len(strategy.chains) > 1:
        raise StrategyError(
            f"the strategy has {len(strategy.chains)} tables ({', '.join(strategy.chains)}), "
            "which are not exchanged in one step"
        )
    (chain,) = strategy.chains.values()
    groups = VersionGroups(*((each, history_group(each)) for each in (group, old_group)))
    sink = chain[-1]
    if isinstance(sink, ClickHouseWriter):
        from ..sinks.clickhouse.exchange import ClickHouseExchange

        return ClickHouseExchange(sink, replaced, groups)
    if type(sink).__name__ == "PostgresWriter":  # its library is an extra
        from ..sinks.postgres.exchange import PostgresExchange

        return PostgresExchange(sink, replaced, groups)  # type: ignore[arg-type]
    raise StrategyError(
        f"{type(sink).__name__} has no table that can be exchanged; ClickHouseWriter and "
        "PostgresWriter have"
    )


async def stand(settings: GroupSettings, old_group: str) -> CutoverStanding:
    """Look at the committed offsets of both groups.

    Args:
        settings: with the group of the new version.

    Raises:
        StrategyError: a group has committed nothing, or the new one does not read a topic of the old one.
        ConsumerError: no broker answers.
    """
    async with connect_admin(connection_config(settings)) as admin:
        new = await admin.list_group_offsets(settings.group)
        old = await admin.list_group_offsets(old_group)
        history = await admin.list_group_offsets(history_group(settings.group))
        members = len((await admin.group(settings.group)).members)
    for group, committed in ((old_group, old), (settings.group, new)):
        if not committed:
            raise StrategyError(
                f"group {group} has no committed offsets; is its name right, and did it run?"
            )
    if others := sorted({at.topic for at in old} - {at.topic for at in new}):
        raise StrategyError(
            f"group {settings.group} does not read {', '.join(others)}, which group {old_group} "
            "reads: the new table would lack its records"
        )
    plan = BackfillPlan.of_commits(settings.group, history, {at.topic for at in new})
    left = 0 if plan is None else plan.offsets - sum(plan.done(history).values())
    return CutoverStanding(
        {at: entry.offset for at, entry in old.items()},
        {at: new[at].offset for at in old if at in new},
        left,
        plan is not None,
        members,
    )


@dataclass(slots=True)
class CutoverWait:
    """Whether the new version has what the old one had `_FRESH` seconds ago, by several looks."""

    _seen: deque[tuple[float, Mapping[TopicPartition, int]]] = field(default_factory=deque)

    def is_over(self, standing: CutoverStanding, now: float) -> bool:
        """Note a look, at a time of a monotonic clock; return whether the tables may be exchanged."""
        self._seen.append((now, standing.old))
        while now - self._seen[0][0] > _FRESH:
            self._seen.popleft()
        return not standing.history_left and not standing.behind(self._seen[0][1])


async def wait(settings: GroupSettings, old_group: str) -> CutoverStanding:
    """Wait until the new version has what the old one had ten seconds ago; log how far it is.

    Raises:
        StrategyError: see `stand`.
    """
    waiting, shown, trouble = CutoverWait(), -_SHOWN_EVERY, ""
    while True:
        try:
            standing = await stand(settings, old_group)
        except ConsumerError as error:
            if str(error) != trouble:
                trouble = str(error)
                _log.warning("offsets unknown, trying again", reason=trouble)
        else:
            now = anyio.current_time()
            if waiting.is_over(standing, now):
                return standing
            if now - shown >= _SHOWN_EVERY:
                shown = now
                behind = standing.behind()
                most = sorted(behind.items(), key=lambda item: -item[1])[:8]
                _log.info(
                    "waiting for the new version",
                    behind=sum(behind.values()),
                    history_left=standing.history_left,
                    members=standing.members,
                    partitions={str(at): lag for at, lag in most},
                )
        await anyio.sleep(_INTERVAL)
