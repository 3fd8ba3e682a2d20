"""`kmr offsets`: show the committed offsets of a consumer group, or reset them."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

import anyio
import msgspec
from cyclopts import App, Parameter
from rich.text import Text

from ..config.flags import Given, settings_flags
from ..config.schema import show_count
from ..delivery.announcement import (
    Announcement,
    Generation,
    next_generation,
    read_announcement,
    read_metadata,
)
from ..errors import ConsumerError, SettingsError
from ..kafka.admin import Admin, GroupListing, connect_admin
from ..kafka.connection import connection_config
from ..kafka.consumer import CommitOffset
from ..kafka.subscription import subscription_of
from ..observe.logs import setup_logs
from ..record import TopicPartition
from ..settings import GROUP, GroupSettings, LogSettings
from .output import plain_console, plain_table, print_json

app = App(name="offsets", help="Show the committed offsets of a consumer group, or reset them.")

_LEFT = ("Partition", "Member")


class PartitionOffsets(msgspec.Struct, frozen=True):
    """Offsets of one partition.

    Attributes:
        start, end: the first offset of its log, and the one after the last.
        member: the name of the member that has it: its client id, and the beginning of its member id.
        generation: the generation of its offsets, which each reset raises.
        announced: the range from the committed offset that a worker is writing, or was when it ended.
        held: offsets from the committed one on that open windows hold; they are no lag.
    """

    topic: str
    partition: int
    committed: int | None
    start: int
    end: int
    lag: int | None
    member: str | None
    generation: int = 0
    announced: Announcement | None = None
    held: int = 0


@Parameter(name="*", negative_bool=())
@dataclass(frozen=True, kw_only=True)
class NewOffsets:
    """The new offsets: exactly one way is given.

    Parameters
    ----------
    to_earliest
        Set to the first offset of each log.
    to_latest
        Set to the end of each log: only new records will be consumed.
    to_timestamp
        Set to the first record at or after a time: ISO 8601 (UTC without a zone), or milliseconds since
        1970. If there is none, set to the end of the log.
    to_offset
        Set to this offset in every partition, or in that of --partition.
    shift_by
        Move forward by this many offsets, or back if negative; not beyond either end of the log.
    """

    to_earliest: bool = False
    to_latest: bool = False
    to_timestamp: str | None = None
    to_offset: int | None = None
    shift_by: int | None = None

    def __post_init__(self) -> None:
        """Raise SettingsError unless exactly one is given and it is valid."""
        if sum(value is not None and value is not False for value in vars(self).values()) != 1:
            raise SettingsError(
                "give exactly one of --to-earliest, --to-latest, --to-timestamp, --to-offset, --shift-by"
            )
        if self.to_timestamp is not None:
            milliseconds(self.to_timestamp)


@app.command
@settings_flags(GROUP)
def show(
    *,
    given: Given[GroupSettings],
    as_json: Annotated[bool, Parameter("--json", negative=(), help="Print JSON.")] = False,
) -> None:
    """Show the committed offsets of a group, its lag and its members."""
    settings = _settings(given)
    group, rows = anyio.run(_look, settings)
    if as_json:
        print_json({"group": group.name, "state": group.state, "partitions": rows})
        return
    console = plain_console()
    state = "does not exist" if group.state == "Dead" else group.state  # Kafka's word for both
    console.print(f"group {group.name}: {state}, {show_count(len(group.members), 'member')}")
    table = plain_table(
        "Partition", "Committed", "Start", "End", "Lag", "Member", "Announced", left=_LEFT
    )
    for row in rows:
        figures = (row.committed, row.start, row.end, row.lag)
        table.add_row(
            Text(f"{row.topic}-{row.partition}"),
            *("-" if figure is None else f"{figure:,}" for figure in figures),
            Text(row.member or "-"),
            Text(_range(row.announced) or _held(row.held)),
        )
    console.print(table)
    lags = [row.lag for row in rows if row.lag is not None]
    console.print(f"total lag: {sum(lags):,}" if lags else "no committed offsets")


@app.command
@settings_flags(GROUP)
def reset(
    *,
    given: Given[GroupSettings],
    target: NewOffsets | None = None,
    partition: Annotated[tuple[int, ...], Parameter(negative=(), show_default=False)] = (),
    dry_run: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Set the committed offsets of a group; refused while the group has members.

    It begins a new generation of offsets, which is a part of every deduplication token: records that are
    read again are written again, also if a table remembers their first INSERT.

    Applies to the topics given with --topic, else to every partition with a committed offset.

    For example:

        kmr offsets reset --group errors --to-earliest --dry-run
        kmr offsets reset --group errors --topic hits --partition 3 --to-offset 1200
        kmr offsets reset --group errors --topic hits --to-timestamp 2026-11-01T00:00:00Z

    Parameters
    ----------
    partition
        Only this partition of the topic; may be repeated.
    dry_run
        Print the new offsets without setting them.
    """
    target = target or NewOffsets()
    settings = _settings(given)
    if partition and len(settings.topics) != 1:
        raise SettingsError("--partition is one of a topic: name that topic with --topic")
    chosen = frozenset(partition)
    before, after, members = anyio.run(partial(_reset, settings, target, chosen, dry_run=dry_run))
    announced: dict[TopicPartition, Announcement] = {}
    for at in after:
        with suppress(ConsumerError):  # a reset is the remedy for metadata that cannot be read
            if (announcement := read_announcement(at, before.get(at))) is not None:
                announced[at] = announcement
    table = plain_table("Partition", "From", "To", "Change", "Announced", left=_LEFT)
    for at, offset in after.items():
        old = before.get(at)
        table.add_row(
            Text(str(at)),
            "-" if old is None else f"{old.offset:,}",
            f"{offset:,}",
            "" if old is None else f"{offset - old.offset:+,}",
            Text(_range(announced.get(at))),
        )
    console = plain_console()
    console.print(table)
    if announced:
        console.print(
            "a reset forgets announced ranges, which may have been written already: their records may be "
            "written twice. To settle them first, run a worker of the group."
        )
    if not dry_run:
        console.print(f"group {settings.group}: reset {show_count(len(after), 'offset')}")
    elif members:
        console.print(
            f"dry run: a reset would be refused while the group has members ({members}); stop them"
        )
    else:
        console.print("dry run: nothing was changed")


def _settings(given: Given[GroupSettings]) -> GroupSettings:
    settings = given.load()
    # Our own error reports what the Kafka client cannot recover from.
    setup_logs(LogSettings(level="error"))
    return settings


async def _look(settings: GroupSettings) -> tuple[GroupListing, list[PartitionOffsets]]:
    async with connect_admin(connection_config(settings)) as admin:
        group = await admin.group(settings.group)
        committed = await committed_offsets(admin, settings)
        members = {at: member.name for member in group.members for at in member.partitions}
        wanted = await _partitions(admin, settings, {*committed, *members})
        starts = await admin.beginning_offsets(wanted)
        ends = await admin.end_offsets(wanted)
    rows = []
    for at in wanted:
        commit = committed.get(at)
        offset = None if commit is None else commit.offset
        found = read_metadata(at, commit)
        closed = found.closed
        held = 0 if offset is None or closed is None else max(0, closed.read_to + 1 - offset)
        lag = None if offset is None else max(0, ends[at] - max(offset + held, starts[at]))
        rows.append(
            PartitionOffsets(
                *at,
                offset,
                starts[at],
                ends[at],
                lag,
                members.get(at),
                found.generation,
                found if isinstance(found, Announcement) else None,
                held,
            )
        )
    return group, rows


async def _reset(
    settings: GroupSettings, target: NewOffsets, chosen: frozenset[int], *, dry_run: bool
) -> tuple[dict[TopicPartition, CommitOffset], dict[TopicPartition, int], int]:
    """Return the committed offsets before, the offsets after, and the number of members."""
    async with connect_admin(connection_config(settings)) as admin:
        before = await committed_offsets(admin, settings)
        partitions = await _partitions(admin, settings, set(before))
        if not partitions:
            raise ConsumerError(
                f"group {settings.group} has no committed offsets; name the topics with --topic"
            )
        if missing := chosen - {at.partition for at in partitions}:
            shown = ", ".join(map(str, sorted(missing)))
            raise ConsumerError(f"topic {settings.topics[0]} has no partition {shown}")
        partitions = [at for at in partitions if not chosen or at.partition in chosen]
        after = await _aim(admin, target, partitions, before)
        members = len((await admin.group(settings.group)).members)
        if not dry_run:
            metadata = Generation(next_generation(_generations(before))).metadata
            reset = {at: CommitOffset(offset, metadata) for at, offset in after.items()}
            await admin.reset_offsets(settings.group, reset)
    return before, after, members


def _generations(committed: Mapping[TopicPartition, CommitOffset]) -> Iterator[int]:
    for at, commit in committed.items():
        with suppress(ConsumerError):
            yield read_metadata(at, commit).generation


async def _aim(
    admin: Admin,
    target: NewOffsets,
    partitions: list[TopicPartition],
    before: Mapping[TopicPartition, CommitOffset],
) -> dict[TopicPartition, int]:
    starts = await admin.beginning_offsets(partitions)
    ends = await admin.end_offsets(partitions)
    if target.to_earliest:
        return starts
    if target.to_latest:
        return ends
    if target.to_timestamp is not None:
        moment = milliseconds(target.to_timestamp)
        found = await admin.offsets_for_times(dict.fromkeys(partitions, moment))
        return {at: ends[at] if (offset := found[at]) is None else offset for at in partitions}
    if target.to_offset is not None:
        return dict.fromkeys(partitions, target.to_offset)
    shift = target.shift_by or 0
    missing = [str(at) for at in partitions if at not in before]
    if missing:
        raise ConsumerError(f"--shift-by: no committed offset in {', '.join(missing)}")
    return {at: min(max(before[at].offset + shift, starts[at]), ends[at]) for at in partitions}


async def committed_offsets(
    admin: Admin, settings: GroupSettings
) -> dict[TopicPartition, CommitOffset]:
    """Return what the group has committed, of the topics in the settings if they name any."""
    wanted = subscription_of(settings)
    offsets = await admin.list_group_offsets(settings.group)
    return {at: commit for at, commit in offsets.items() if wanted is None or at.topic in wanted}


async def _partitions(
    admin: Admin, settings: GroupSettings, known: set[TopicPartition]
) -> list[TopicPartition]:
    """Return the partitions of the topics in the settings, else the group's own."""
    wanted = subscription_of(settings)
    return sorted(known) if wanted is None else await admin.partitions_of(wanted)


def _range(announcement: Announcement | None) -> str:
    if announcement is None:
        return ""
    rows = f"{show_count(announcement.rows, 'row')} by {announcement.writer}"
    return f"{announcement.first:,}..{announcement.last:,}, {rows}"


def _held(offsets: int) -> str:
    return f"open windows hold {offsets:,}" if offsets else ""


def milliseconds(text: str, flag: str = "--to-timestamp") -> int:
    """Parse the time that a flag has to milliseconds since 1970. Raises SettingsError."""
    if text.isdecimal() and int(text) < 1 << 63:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(
            f"{flag} must be a time such as 2026-01-31T12:00:00Z or milliseconds since 1970, "
            f"not {text!r}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
