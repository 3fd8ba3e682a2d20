"""Text for terminals and for pipes: aligned columns, pairs like `name=value`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from broker.cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["columns", "pairs", "required", "say", "say_json", "show_group", "show_topic"]

if TYPE_CHECKING:
    from broker.cli.admin import GroupInfo, TopicInfo

Name = TypeVar("Name", bound=str)


def say(*lines: str) -> None:
    """Write lines to stdout."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def say_json(value: Any) -> None:
    """Write a value to stdout as JSON."""
    say(msgspec.json.format(msgspec.json.encode(value)).decode())


def columns(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Lines with aligned columns; numbers are flush right."""
    cells = [[str(cell) for cell in row] for row in rows]
    numeric = [
        all(row[at].lstrip("-").isdigit() or row[at] == "-" for row in cells)
        for at in range(len(header))
    ]
    table = [list(header), *cells]
    widths = [max(len(row[at]) for row in table) for at in range(len(header))]
    return [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in table
    ]


def pairs(given: Iterable[str], what: str) -> dict[str, str]:
    """Read `name=value` texts. Raises UsageError."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{what} {text!r} is not of the form name=value")
        found[name] = value
    return found


def required(names: tuple[Name, ...], what: str) -> tuple[Name, ...]:
    """Names of which there must be one at least. Raises UsageError."""
    if not names:
        raise UsageError(f"name at least one {what}")
    return names


def show_topic(topic: TopicInfo) -> list[str]:
    """A topic for people."""
    records = sum(each.end - each.start for each in topic.partitions)
    lines = [f"{topic.name}: {len(topic.partitions)} partitions, {records} offsets in use"]
    lines += [f"  {name}={value}" for name, value in sorted(topic.config.items())]
    return lines + columns(
        ["PARTITION", "LEADER", "START", "END", "COUNT"],
        [(p.index, p.leader, p.start, p.end, p.end - p.start) for p in topic.partitions],
    )


def show_group(group: GroupInfo) -> list[str]:
    """A group for people: its members, and how far it has come."""
    lines = [f"{group.name}: {group.state}, {len(group.members)} members"]
    owners = {tp: member for member in group.members for tp in member.assignment}
    lines += [
        f"  {member.member_id} at {member.host}, {len(member.assignment)} partitions"
        for member in group.members
    ]
    rows = []
    for tp in sorted({*group.committed, *owners}):
        committed, end = group.committed.get(tp), group.ends.get(tp)
        lag = "-" if committed is None or end is None else max(end - committed, 0)
        owner = owners.get(tp)
        rows.append(
            (
                tp.topic,
                tp.partition,
                "-" if committed is None else committed,
                "-" if end is None else end,
                lag,
                owner.member_id if owner else "",
            )
        )
    if rows:
        header = ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER"]
        lines += columns(header, rows)
    return lines
