"""Whether the group's committed offsets are still in the logs, and for how long."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from ..reducers.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..kafka.admin import Admin
    from ..record import TopicPartition
    from ..settings import Settings

_NEARLY: Final = 0.75
"""The part of `retention.ms` after which a record that is not read yet is in danger."""

_OUTAGE: Final = 86_400.0
"""Seconds without a worker that retention should outlast."""

_AHEAD_MS: Final = 60_000
"""How far a record may be ahead of our clock."""


async def check_offsets(
    settings: Settings, admin: Admin, topics: Iterable[str], remembered: float = 0.0
) -> list[Finding]:
    """Compare committed offsets with the logs, and both with the retention and the clock.

    Args:
        remembered: seconds before the committed offset that a worker reads again (`Distinct`).
    """
    partitions = await admin.topic_partitions(topics)
    committed = await admin.list_group_offsets(settings.group)
    first = await admin.beginning_offsets(partitions)
    end = await admin.end_offsets(partitions)
    found = []
    reading: dict[TopicPartition, int] = {}
    for partition in partitions:
        if (entry := committed.get(partition)) is None:
            continue
        if first[partition] <= entry.offset <= end[partition]:
            reading[partition] = entry.offset
        else:
            found.append(
                _outside(settings, partition, entry.offset, first[partition], end[partition])
            )
    found += await _retention(admin, reading, end)
    if remembered:
        found += await _memory(admin, sorted({at.topic for at in partitions}), remembered)
    found += await _clock(admin, partitions)
    lag = sum(end[partition] - offset for partition, offset in reading.items())
    new = sum(partition not in committed for partition in partitions)
    text = f"{len(reading)} partitions are read from committed offsets, with a lag of {lag:,}"
    if new:
        text += f"; {new} begin at auto_offset_reset ({settings.auto_offset_reset})"
    return [Finding("ok", f"group {settings.group}", text), *found]


def _outside(
    settings: Settings, partition: TopicPartition, offset: int, first: int, end: int
) -> Finding:
    subject, group = f"topic {partition.topic}", settings.group
    if offset > end:
        what = (
            f"{partition}: the committed offset {offset} is after the end of the log ({end}): the topic was "
            "created anew, or lost records"
        )
    else:
        what = (
            f"{partition}: the committed offset is {offset}, the log begins at {first}: retention has "
            f"deleted {first - offset:,} records that the group has not read"
        )
    if settings.on_out_of_range == "error":
        return Finding(
            "problem",
            subject,
            f"{what}. The worker stops there",
            f"run kmr offsets reset --group {group} --topic {partition.topic} --to-earliest, or set "
            "on_out_of_range",
        )
    return Finding(
        "warning", subject, f"{what}. The worker continues at {settings.on_out_of_range}"
    )


async def _retention(
    admin: Admin,
    reading: dict[TopicPartition, int],
    end: dict[TopicPartition, int],
) -> list[Finding]:
    """Find topics whose next unread record retention will soon delete."""
    found = []
    for topic in sorted({partition.topic for partition in reading}):
        limits = await admin.topic_settings(topic)
        retention = int((limits or {}).get("retention.ms", "-1"))
        if retention < 0 or "delete" not in (limits or {}).get("cleanup.policy", "delete"):
            continue
        latest = round(time.time() * 1000 - _NEARLY * retention)
        ours = [p for p in reading if p.topic == topic and reading[p] < end[p]]
        young = await admin.offsets_for_times(dict.fromkeys(ours, latest))
        late = [p for p in ours if (at := young[p]) is None or reading[p] < at]
        if late:
            found.append(
                Finding(
                    "warning",
                    f"topic {topic}",
                    f"the next record of {len(late)} partitions is older than {_NEARLY:.0%} of retention.ms "
                    f"({retention / 3_600_000:g} h): it may be deleted before it is read",
                    "raise retention.ms until the group has caught up",
                )
            )
    return found


async def _memory(admin: Admin, topics: Iterable[str], remembered: float) -> list[Finding]:
    """Find topics whose retention is shorter than what is remembered and an outage of a day."""
    found = []
    for topic in topics:
        limits = await admin.topic_settings(topic) or {}
        retention = int(limits.get("retention.ms", "-1")) / 1000
        if 0 <= retention < remembered + _OUTAGE and "delete" in limits.get(
            "cleanup.policy", "delete"
        ):
            found.append(
                Finding(
                    "warning",
                    f"topic {topic}",
                    f"retention.ms ({retention / 3600:g} h) is shorter than within= of Distinct "
                    f"({remembered / 3600:g} h) and a day without a worker: duplicates may pass after it",
                    "raise retention.ms",
                )
            )
    return found


async def _clock(admin: Admin, partitions: list[TopicPartition]) -> list[Finding]:
    """Find records of the future: no API tells the time of a broker."""
    soon = round(time.time() * 1000) + _AHEAD_MS
    found = await admin.offsets_for_times(dict.fromkeys(partitions, soon))
    ahead = [partition for partition, offset in found.items() if offset is not None]
    if not ahead:
        return []
    return [
        Finding(
            "warning",
            "clock",
            f"{ahead[0]} has records more than {_AHEAD_MS // 1000} s in the future: our clock is behind, or "
            "that of producers or brokers ahead. Lags in seconds are wrong, and such records are kept longer",
            "let all machines synchronise their clocks (NTP)",
        )
    ]
