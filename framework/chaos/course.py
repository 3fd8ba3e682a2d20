"""The course of a storm: records flow, faults strike, the system recovers from each."""

from __future__ import annotations

import math
import time
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .faults import Fault, Strike
    from .services import Recorder
    from .site import SystemUnderTest


class RecordSource(Protocol):
    """What sends the records."""

    @property
    def count(self) -> int:
        """How many records the broker has acknowledged."""

    async def until_more(self, records: int) -> None:
        """Wait until so many more records have been acknowledged."""

    def stop(self) -> None:
        """Send no more."""


class ScheduleRun:
    """Carries out a schedule.

    Args:
        site: what the faults strike.
        faults: returns the fault of a name.
        between: records that must be acknowledged between two faults.
        patience: seconds for a fault to have its effect, and as many again for the system to recover.
        lasts: seconds after which no further fault strikes.

    Attributes:
        struck: how many faults did.
    """

    def __init__(
        self,
        site: SystemUnderTest,
        load: RecordSource,
        faults: Callable[[str], Fault[Any]],
        recorder: Recorder,
        say: Callable[[str], None],
        *,
        between: int,
        patience: float,
        lasts: float = math.inf,
    ) -> None:
        self.struck = 0
        self._site = site
        self._load = load
        self._faults = faults
        self._recorder = recorder
        self._say = say
        self._between = between
        self._patience = patience
        self._lasts = lasts

    async def run(self, finished: anyio.Event, schedule: Iterable[Strike]) -> None:
        """Let all faults of the schedule strike, and return when everything is settled.

        Args:
            finished: set when all records were answered, after `RecordSource.stop`.

        Raises:
            TimeoutError: it names what did not come about.
            ServiceFailed: a process did not come up again.
        """
        phase, load = self._recorder.event("phase", "load"), self._load
        await self._in_time("the first records", load.until_more(self._between))
        await self._in_time("the first commits", self._site.until_settled())
        until = anyio.current_time() + self._lasts
        for strike in schedule:
            await self._strike(strike)
            if anyio.current_time() > until:
                break
            await self._in_time("records after a fault", load.until_more(self._between))
        load.stop()
        await self._in_time("the end of the load", finished.wait())
        phase["until"] = time.time_ns()
        self._say(f"{load.count:,} records are acknowledged")
        await self._in_time("the last commits", self._site.until_settled())

    async def _strike(self, strike: Strike) -> None:
        fault = self._faults(strike.fault)
        event = self._recorder.event("fault", fault.name)
        random = Random(strike.seed)  # noqa: S311  no secrets
        event["detail"] = await self._in_time(fault.name, fault.strike(self._site, random))
        event["until"] = time.time_ns()
        self.struck += 1
        recovery = self._recorder.event("recovery", fault.name, event["detail"])
        await self._in_time(f"recovery from {fault.name}", self._recovered())
        recovery["until"] = time.time_ns()
        seconds = (recovery["until"] - recovery["time"]) / 1e9
        self._say(f"{fault.name}: {event['detail']}; recovered after {seconds:.1f} s")

    async def _recovered(self) -> None:
        await self._site.until_settled()
        await self._site.until_shared()

    async def _in_time(self, what: str, action: Any) -> Any:
        with anyio.move_on_after(self._patience):
            return await action
        raise TimeoutError(f"{what}: not within {self._patience:g} s")
