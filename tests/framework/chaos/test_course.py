"""Faults strike while records flow, and the system must recover from each in time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from kmr.chaos.course import RecordSource, ScheduleRun
from kmr.chaos.faults import StormFault, Strike
from kmr.chaos.site import SystemUnderTest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random


class Calm(SystemUnderTest):
    """Whatever strikes it, it has recovered at once."""

    workers = ()

    @property
    def acknowledged(self) -> Mapping[tuple[str, int], int]:
        return {}

    async def until_shared(self) -> None:
        pass

    async def until_settled(self, *groups: str) -> None:
        pass


class Restless(Calm):
    """It never shares its partitions again."""

    async def until_shared(self) -> None:
        await anyio.sleep_forever()


class Flow(RecordSource):
    """A load whose records are acknowledged when they are waited for."""

    count = 0

    def __init__(self) -> None:
        super().__init__(Notes(), 1.0)
        self.finished = anyio.Event()

    async def until_more(self, records: int) -> None:
        self.count += records

    def stop(self) -> None:
        self.finished.set()


class Dice(StormFault[SystemUnderTest]):
    """It harms nothing."""

    name = "dice"

    async def strike(self, site: SystemUnderTest, random: Random) -> str:
        return f"rolled {random.randint(1, 6)}"


class Notes:
    """Takes down the events."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def line(self, table: str, **values: object) -> dict[str, Any]:
        return {"table": table, **values}

    def event(self, kind: str, name: str, detail: str = "") -> dict[str, Any]:
        self.events.append({"kind": kind, "name": name, "detail": detail, "time": 0})
        return self.events[-1]


SCHEDULE = [Strike("dice", 1), Strike("dice", 1)]


async def run(site: SystemUnderTest, load: Flow, notes: Notes, **options: Any) -> ScheduleRun:
    limits: dict[str, Any] = {"between": 10, "patience": 30.0, **options}
    course = ScheduleRun(site, load, lambda _: Dice(), notes, lambda _: None, **limits)
    await course.run(load.finished, SCHEDULE)
    return course


async def test_records_flow_before_and_after_each_fault_and_then_no_more() -> None:
    load, notes = Flow(), Notes()
    course = await run(Calm(), load, notes)
    assert (course.struck, load.count) == (2, 30)
    assert load.finished.is_set()
    kinds = [event["kind"] for event in notes.events]
    assert kinds == ["phase", "fault", "recovery", "fault", "recovery"]
    assert all("until" in event for event in notes.events)


async def test_a_fault_takes_what_it_decides_from_its_seed() -> None:
    notes = Notes()
    await run(Calm(), Flow(), notes)
    first, second = (event["detail"] for event in notes.events if event["kind"] == "fault")
    assert first == second


async def test_no_fault_strikes_when_the_time_is_over() -> None:
    course = await run(Calm(), Flow(), Notes(), lasts=-1.0)
    assert course.struck == 1


async def test_a_system_that_does_not_recover_is_named_with_its_fault() -> None:
    with pytest.raises(TimeoutError, match=r"recovery from dice: not within 0\.05 s"):
        await run(Restless(), Flow(), Notes(), patience=0.05)
