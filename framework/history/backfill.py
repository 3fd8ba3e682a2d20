"""A backfill: plan, cut, read the history, count."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import structlog
from anyio.from_thread import start_blocking_portal

from ..archives.archive import Archive, ArchiveSource
from ..delivery.announcement import history_group
from ..errors import SettingsError
from ..kafka.admin import connect_admin
from ..kafka.connection import connection_config
from ..kafka.subscription import Subscription
from ..observe.backfill import BackfillWatch, log_progress
from ..service.threads import run_in_thread
from .cut import commit_cut, refuse_members
from .plan import BackfillPlan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping

    from ..record import TopicPartition
    from ..settings import Settings
    from ..spark.source_settings import SourceBounds
    from .plan import Bound

T = TypeVar("T")

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WantedRange:
    """What a command asks for; a plan that exists has its own answers.

    Attributes:
        begin: where the history begins.
        end: where it ends, and the present begins.
        engine: what reads it: `worker`, or `spark` with its checkpoint, which has the progress.
        remembers: see `BackfillPlan`.
    """

    begin: Bound
    end: Bound
    engine: str
    remembers: bool = False


@dataclass(frozen=True, slots=True)
class PreparedPlan:
    """A plan.

    Attributes:
        is_new: nothing of it is committed yet.
        is_cut: the group of the present begins at the cut.
        done: offsets that are done, of all partitions.
        archived: the offset up to which the archive is read, by partition; empty without one.
    """

    plan: BackfillPlan
    is_new: bool
    is_cut: bool
    done: int
    archived: Mapping[TopicPartition, int] = field(default_factory=dict)


async def prepare(settings: Settings, wanted: WantedRange) -> PreparedPlan:
    """Return the plan of an earlier run, else choose one; commit nothing.

    Args:
        settings: with the group of the present.

    Raises:
        ConsumerError: the cut cannot be committed: the reason says what is in the way. Or neither topic nor
            archive has an offset.
        SettingsError: the plan is of another engine, or the archive cannot be read.
    """
    source = ArchiveSource.of(settings)
    archive = None if source is None else await run_in_thread(partial(Archive.open, source))
    subscription = Subscription(settings.topics, settings.topic_pattern)
    async with connect_admin(connection_config(settings), settings.isolation_level) as admin:
        partitions = await admin.partitions_of(subscription)
        topics = {at.topic for at in partitions}
        history = await admin.list_group_offsets(history_group(settings.group))
        present = await admin.list_group_offsets(settings.group)
        plan = BackfillPlan.of_commits(settings.group, history, topics)
        if plan is not None:
            plan = replace(plan, remembers=wanted.remembers)
            _require_engine(plan, wanted.engine)
            is_cut = plan.is_adopted(present)
            if not is_cut:
                await refuse_members(admin, settings.group)
            starts = await admin.beginning_offsets(list(plan.histories))
            plan.require_records(history, starts, archive)
            done = sum(plan.done(history).values())
            return PreparedPlan(plan, False, is_cut, done, _archived(plan, archive))  # noqa: FBT003
        plan = await BackfillPlan.choose(
            admin,
            settings.group,
            partitions,
            begin=wanted.begin,
            end=wanted.end,
            engine=wanted.engine,
            archive=archive,
            remembers=wanted.remembers,
        )
        plan.refuse_commits(present)
        await refuse_members(admin, settings.group)
        return PreparedPlan(plan, True, False, 0, _archived(plan, archive))  # noqa: FBT003


def _archived(plan: BackfillPlan, archive: Archive | None) -> dict[TopicPartition, int]:
    if archive is None:
        return {}
    return {at: min(archive.end(at, h.first), h.until) for at, h in plan.histories.items()}


def _require_engine(plan: BackfillPlan, engine: str) -> None:
    begun = {each.engine for each in plan.histories.values()}
    if begun != {engine}:
        raise SettingsError(
            f"the backfill of group {plan.group} was begun with --engine {', '.join(sorted(begun))}: what it "
            "has written is known to that engine alone. Go on with it"
        )


async def begin_reading(settings: Settings, prepared: PreparedPlan) -> BackfillPlan:
    """Commit what is not committed yet, and return the plan. Raises ConsumerError as `commit_cut`."""
    if not prepared.is_cut:
        async with connect_admin(connection_config(settings)) as admin:
            await commit_cut(admin, settings, prepared.plan)
        _log.info(
            "the cut is committed: workers of the group may start"
            + (" when the history is complete" if prepared.plan.remembers else ""),
            group=settings.group,
            cut={str(at): entry.offset for at, entry in prepared.plan.cut.items()},
        )
    return prepared.plan


async def hand_over(settings: Settings, plan: BackfillPlan) -> None:
    """Commit for the group of the present what is remembered at the end of a history that is done.

    Its first worker begins as the last one of the history would go on: it reads the records of open windows
    again, and those that `Distinct` remembers.

    Raises:
        ConsumerError: the group has members, or the topic does not have these records any more.
    """
    async with connect_admin(connection_config(settings)) as admin:
        history = await admin.list_group_offsets(history_group(plan.group))
        wanted = plan.hand_over(history, await admin.list_group_offsets(plan.group))
        if not wanted:
            return
        await admin.reset_offsets(plan.group, wanted)
    _log.info(
        "the history is handed over: workers of the group may start",
        group=plan.group,
        begin={str(at): entry.offset for at, entry in wanted.items()},
    )


async def offsets_left(settings: Settings, plan: BackfillPlan) -> int:
    """Return how many offsets of the history are not done. Raises ConsumerError."""
    async with connect_admin(connection_config(settings)) as admin:
        committed = await admin.list_group_offsets(history_group(plan.group))
    return plan.offsets - sum(plan.done(committed).values())


def worker_flags(settings: Settings) -> dict[str, Any]:
    """Return the settings with which workers read the history of `settings.group`."""
    return {
        "group": history_group(settings.group),
        "history": True,
        "until_caught_up": True,
        "auto_offset_reset": "error",
        "on_out_of_range": "error",
        "group_instance_id": None,
    }


def spark_bounds(prepared: PreparedPlan) -> SourceBounds:
    """Return what Spark reads."""
    from ..spark.source_settings import SourceBounds

    plan = prepared.plan
    return SourceBounds(
        first={at: history.first for at, history in plan.histories.items()},
        until={at: history.until for at, history in plan.histories.items()},
        generation=plan.generation,
        metadata={at: entry.metadata for at, entry in plan.beginning.items()},
        is_begun=prepared.done > 0,
    )


def _watch(settings: Settings) -> Callable[[], Coroutine[Any, Any, None]]:
    """Return what logs the progress of the backfill of `settings.group`."""
    return BackfillWatch(connection_config(settings), settings.group, log_progress).run


async def beside(work: Awaitable[T], settings: Settings) -> T:
    """Await `work`, and log the progress of the backfill meanwhile; return the result of `work`."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_watch(settings))
        result = await work
        tasks.cancel_scope.cancel()
    return result


@contextmanager
def watching(settings: Settings) -> Iterator[None]:
    """Log the progress of the backfill from a thread beside the block."""
    with start_blocking_portal() as portal:
        seen = portal.start_task_soon(_watch(settings))
        try:
            yield
        finally:
            seen.cancel()
