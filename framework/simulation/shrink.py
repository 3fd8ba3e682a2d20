"""Shrinks a schedule that breaks a rule to few events that still break the same rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from .schedule import Event, Schedule


def shrink(schedule: Schedule, breaks: Callable[[Schedule], bool], most: int = 300) -> Schedule:
    """Remove what is not needed: events by halves, quarters and single ones (delta debugging), then members.

    Args:
        breaks: runs a schedule; returns whether it breaks the same rule.
        most: simulations that may be spent.
    """
    spent = 0

    def still(candidate: Schedule) -> bool:
        nonlocal spent
        spent += 1
        return spent <= most and breaks(candidate)

    size = len(schedule.events)
    while size >= 1:
        at = 0
        while at < len(schedule.events):
            rest = schedule.events[:at] + schedule.events[at + size :]
            candidate = msgspec.structs.replace(schedule, events=rest)
            if still(candidate):
                schedule = candidate
            else:
                at += size
        size //= 2
    for change in ({"members": 1}, {"members": 2}, {"budget": 0}):
        if any(getattr(schedule, name) > value for name, value in change.items()):
            candidate = msgspec.structs.replace(schedule, **change)
            if still(candidate):
                schedule = candidate
    return _fewer_records(schedule, still)


def _fewer_records(schedule: Schedule, still: Callable[[Schedule], bool]) -> Schedule:
    """Halve the records that are appended, as long as the rule is broken."""
    for at, event in enumerate(schedule.events):
        while event.what == "append" and event.count > 1:
            event = msgspec.structs.replace(event, count=event.count // 2)
            candidate = _with(schedule, at, event)
            if not still(candidate):
                break
            schedule = candidate
    return schedule


def _with(schedule: Schedule, at: int, event: Event) -> Schedule:
    events = (*schedule.events[:at], event, *schedule.events[at + 1 :])
    return msgspec.structs.replace(schedule, events=events)
