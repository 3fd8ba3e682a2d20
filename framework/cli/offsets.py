"""`kmr offsets`: where a consumer group stands, and how to put it elsewhere."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

import anyio
import msgspec
from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from framework.announcement import Announcement, announced
from framework.cli.flags import Given, with_settings
from framework.consumer import CommitOffset
from framework.errors import ConsumerError, SettingsError
from framework.kafka.admin import Admin, Group, connect_admin
from framework.kafka.clients import connection_config
from framework.logs import setup_logs
from framework.record import TopicPartition
from framework.settings import GroupSettings, LogSettings

__all__ = ["app"]

app = App(name="offsets", help="Where a consumer group stands, and how to put it elsewhere.")


class PartitionOffsets(msgspec.Struct, frozen=True):
    """One partition: `start` is the first offset of its log, `end` the one after the last.

    `announced`: the range from the committed offset on that a worker is writing, or was when it ended.
    """

    topic: str
    partition: int
    committed: int | None
    start: int
    end: int
    lag: int | None
    member: str | None
    announced: Announcement | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """Where offsets are to be put: exactly one of these."""

    earliest: bool
    latest: bool
    timestamp: str | None
    offset: int | None
    shift: int | None

    def check(self) -> None:
        """Raise SettingsError unless exactly one is given, and it can be read."""
        given = (self.earliest, self.latest, self.timestamp, self.offset, self.shift)
        if sum(value is not None and value is not False for value in given) != 1:
            raise SettingsError(
                "say where to: exactly one of --to-earliest, --to-latest, --to-timestamp, "
                "--to-offset, --shift-by"
            )
        if self.timestamp is not None:
            milliseconds(self.timestamp)


@app.command
@with_settings(GroupSettings)
def show(
    *,
    given: Given,
    as_json: Annotated[bool, Parameter("--json", negative=(), help="Print JSON.")] = False,
) -> None:
    """Show what a group has committed, how far it is behind, and who its members are."""
    settings = _settings(given)
    group, rows = anyio.run(_look, settings)
    if as_json:
        text = msgspec.json.encode({"group": group.name, "state": group.state, "partitions": rows})
        _console().print(msgspec.json.format(text).decode())
        return
    console = _console()
    console.print(f"group {group.name}: {group.state}, {len(group.members)} members")
    table = _table("Partition", "Committed", "Start", "End", "Lag", "Member", "Announced")
    for row in rows:
        figures = (row.committed, row.start, row.end, row.lag)
        table.add_row(
            Text(f"{row.topic}-{row.partition}"),
            *("-" if figure is None else f"{figure:,}" for figure in figures),
            Text(row.member or "-"),
            Text(_range(row.announced)),
        )
    console.print(table)
    lags = [row.lag for row in rows if row.lag is not None]
    console.print(f"lag in all: {sum(lags):,}" if lags else "nothing is committed")


@app.command
@with_settings(GroupSettings)
def reset(
    *,
    given: Given,
    to_earliest: Annotated[bool, Parameter(negative=())] = False,
    to_latest: Annotated[bool, Parameter(negative=())] = False,
    to_timestamp: str | None = None,
    to_offset: int | None = None,
    shift_by: int | None = None,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Put the committed offsets of a group elsewhere; refused while the group has members.

    Without --topic, every partition that the group has committed is meant.

    Parameters
    ----------
    to_earliest
        To the first offset of each log.
    to_latest
        To the end of each log: only new records are consumed.
    to_timestamp
        To the first record at or after a time: ISO 8601 (UTC without a zone), or milliseconds since
        1970. The end of the log if there is none.
    to_offset
        To this offset, in every partition.
    shift_by
        By this many offsets forward, or back if negative; not beyond either end of the log.
    dry_run
        Only print what would be done.
    """
    target = Target(to_earliest, to_latest, to_timestamp, to_offset, shift_by)
    target.check()
    settings = _settings(given)
    before, after, members = anyio.run(partial(_reset, settings, target, dry_run=dry_run))
    table = _table("Partition", "From", "To", "Change", "Announced")
    for at, offset in after.items():
        old = before.get(at)
        table.add_row(
            Text(str(at)),
            "-" if old is None else f"{old.offset:,}",
            f"{offset:,}",
            "" if old is None else f"{offset - old.offset:+,}",
            Text(_range(announced(at, old))),
        )
    console = _console()
    console.print(table)
    if any(announced(at, old) is not None for at, old in before.items() if at in after):
        console.print(
            "announced ranges may have been written already, and are forgotten by a reset: what is read "
            "again of them may be doubled. A worker of the group settles them when it runs."
        )
    if not dry_run:
        console.print(f"group {settings.group}: {len(after)} offsets were reset")
    elif members:
        console.print(f"dry run; it would be refused: the group has {members} members, stop them")
    else:
        console.print("dry run: nothing was changed")


def _settings(given: Given) -> GroupSettings:
    settings = given.load_group()
    # What the Kafka client cannot mend is told by our own error.
    setup_logs(LogSettings(level="error"))
    return settings


async def _look(settings: GroupSettings) -> tuple[Group, list[PartitionOffsets]]:
    async with connect_admin(connection_config(settings)) as admin:
        group = await admin.group_members(settings.group)
        committed = await _committed(admin, settings)
        members = {at: member.client_id for member in group.members for at in member.partitions}
        wanted = await _partitions(admin, settings, {*committed, *members})
        starts = await admin.beginning_offsets(wanted)
        ends = await admin.end_offsets(wanted)
    rows = []
    for at in wanted:
        commit = committed.get(at)
        offset = None if commit is None else commit.offset
        lag = None if offset is None else max(0, ends[at] - max(offset, starts[at]))
        range_ = announced(at, commit)
        rows.append(
            PartitionOffsets(*at, offset, starts[at], ends[at], lag, members.get(at), range_)
        )
    return group, rows


async def _reset(
    settings: GroupSettings, target: Target, *, dry_run: bool
) -> tuple[dict[TopicPartition, CommitOffset], dict[TopicPartition, int], int]:
    """Returns what is committed before and after, and the number of members."""
    async with connect_admin(connection_config(settings)) as admin:
        before = await _committed(admin, settings)
        partitions = await _partitions(admin, settings, set(before))
        if not partitions:
            raise ConsumerError(
                f"group {settings.group} has committed nothing; name the topics with --topic"
            )
        after = await _aim(admin, target, partitions, before)
        members = len((await admin.group_members(settings.group)).members)
        if not dry_run:
            await admin.reset_offsets(settings.group, after)
    return before, after, members


async def _aim(
    admin: Admin,
    target: Target,
    partitions: list[TopicPartition],
    before: Mapping[TopicPartition, CommitOffset],
) -> dict[TopicPartition, int]:
    starts = await admin.beginning_offsets(partitions)
    ends = await admin.end_offsets(partitions)
    if target.earliest:
        return starts
    if target.latest:
        return ends
    if target.timestamp is not None:
        moment = milliseconds(target.timestamp)
        found = await admin.offsets_for_times(dict.fromkeys(partitions, moment))
        return {at: ends[at] if (offset := found[at]) is None else offset for at in partitions}
    if target.offset is not None:
        return dict.fromkeys(partitions, target.offset)
    shift = target.shift or 0
    missing = [str(at) for at in partitions if at not in before]
    if missing:
        raise ConsumerError(f"nothing is committed for {', '.join(missing)}: nothing to shift")
    return {at: min(max(before[at].offset + shift, starts[at]), ends[at]) for at in partitions}


async def _committed(admin: Admin, settings: GroupSettings) -> dict[TopicPartition, CommitOffset]:
    offsets = await admin.list_group_offsets(settings.group)
    return {
        at: commit
        for at, commit in offsets.items()
        if not settings.topics or at.topic in settings.topics
    }


async def _partitions(
    admin: Admin, settings: GroupSettings, known: set[TopicPartition]
) -> list[TopicPartition]:
    """Those of the topics that were named, else those that are known of the group."""
    return await admin.topic_partitions(settings.topics) if settings.topics else sorted(known)


def _range(announcement: Announcement | None) -> str:
    if announcement is None:
        return ""
    rows = f"{announcement.rows:,} rows by {announcement.writer}"
    return f"{announcement.first:,}..{announcement.last:,}, {rows}"


def milliseconds(text: str) -> int:
    """A time as milliseconds since 1970. Raises SettingsError."""
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(
            f"--to-timestamp must be a time such as 2026-01-31T12:00:00Z or milliseconds since 1970, "
            f"not {text!r}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def _console() -> Console:
    return Console(highlight=False, soft_wrap=True, markup=False)


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column, justify="left" if column in ("Partition", "Member") else "right")
    return table
