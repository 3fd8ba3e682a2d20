"""The course of a storm: records flow, faults strike, the system recovers from each."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

import anyio
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from ..service.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from .faults import StormFault, Strike
    from .records import Values
    from .services import Recorder
    from .site import SystemUnderTest


_PAUSE: Final = 0.3  # seconds, before a producer that failed is replaced


class RecordSource(ABC):
    """Sends records until it is stopped; `interval`: seconds from one batch of a producer to the next."""

    def __init__(self, recorder: Recorder, interval: float) -> None:
        self._recorder = recorder
        self._interval = interval
        self._stopped = False
        self._changed = Wakeup()

    @property
    @abstractmethod
    def count(self) -> int:
        """How many records the broker has acknowledged."""

    def stop(self) -> None:
        """Send no more."""
        self._stopped = True

    async def until_more(self, records: int) -> None:
        """Wait until so many more records have been acknowledged."""
        wanted = self.count + records
        while self.count < wanted:
            await self._changed.wait()

    async def _produce(
        self,
        make: Callable[[], AIOKafkaProducer],
        send: Callable[[AIOKafkaProducer], Awaitable[None]],
    ) -> None:
        """Send one batch after the other until `stop`; a new producer replaces one that fails."""
        while not self._stopped:
            producer = make()
            try:
                await producer.start()
                while not self._stopped:
                    began = anyio.current_time()
                    await send(producer)
                    await anyio.sleep_until(began + self._interval)
            except KafkaError as error:
                self._recorder.event("noticed", "producer", f"{type(error).__name__}: {error}")
                await anyio.sleep(_PAUSE)
            finally:
                with anyio.CancelScope(shield=True), anyio.move_on_after(5):
                    await producer.stop()


@dataclass(eq=False)
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

    site: SystemUnderTest
    load: RecordSource
    faults: Callable[[str], StormFault[Any]]
    recorder: Recorder
    say: Callable[[str], None]
    between: int
    patience: float
    lasts: float = math.inf
    struck: int = field(default=0, init=False)

    async def run(self, finished: anyio.Event, schedule: Iterable[Strike]) -> None:
        """Let all faults of the schedule strike, and return when everything is settled.

        Args:
            finished: set when all records were answered, after `RecordSource.stop`.

        Raises:
            TimeoutError: it names what did not come about.
            ServiceFailed: a process did not come up again.
        """
        phase, load = self.recorder.event("phase", "load"), self.load
        await self._in_time("the first records", load.until_more(self.between))
        await self._in_time("the first commits", self.site.until_settled())
        until = anyio.current_time() + self.lasts
        for strike in schedule:
            await self._strike(strike)
            if anyio.current_time() > until:
                break
            await self._in_time("records after a fault", load.until_more(self.between))
        load.stop()
        await self._in_time("the end of the load", finished.wait())
        phase["until"] = time.time_ns()
        self.say(f"{load.count:,} records are acknowledged")
        await self._in_time("the last commits", self.site.until_settled())

    async def _strike(self, strike: Strike) -> None:
        fault = self.faults(strike.fault)
        event = self.recorder.event("fault", fault.name)
        random = Random(strike.seed)  # noqa: S311  no secrets
        event["detail"] = await self._in_time(fault.name, fault.strike(self.site, random))
        event["until"] = time.time_ns()
        self.struck += 1
        recovery = self.recorder.event("recovery", fault.name, event["detail"])
        await self._in_time(f"recovery from {fault.name}", self._recovered())
        recovery["until"] = time.time_ns()
        seconds = (recovery["until"] - recovery["time"]) / 1e9
        self.say(f"{fault.name}: {event['detail']}; recovered after {seconds:.1f} s")

    async def _recovered(self) -> None:
        await self.site.until_settled()
        await self.site.until_shared()

    async def _in_time(self, what: str, action: Any) -> Any:
        with anyio.move_on_after(self.patience):
            return await action
        raise TimeoutError(f"{what}: not within {self.patience:g} s")


_BATCH: Final = 20
_ANSWER: Final = 60_000
"""Milliseconds until the fate of a record is unknown: longer than a broker takes to start again."""


class Load(RecordSource):
    """Values for topics, over and over, spread over the partitions.

    Attributes:
        acknowledged: by topic and partition: the offsets and their values.
        unknown: records of which no answer came.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        values: Mapping[str, Values],
        partitions: int,
        rate: float,
        recorder: Recorder,
    ) -> None:
        """`rate`: records per second, all topics together."""
        super().__init__(recorder, _BATCH / rate)
        self.acknowledged: dict[tuple[str, int], dict[int, bytes | None]] = defaultdict(dict)
        self.unknown = 0
        self.sent = 0
        self._bootstrap_servers = bootstrap_servers
        self._records = itertools.cycle(
            (topic, value) for topic, each in values.items() for value in each
        )
        self._partitions = itertools.cycle(range(partitions))

    @property
    def count(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    async def run(self) -> None:
        """Send until `stop`; returns when every record was answered or given up."""
        make = partial(
            AIOKafkaProducer,
            bootstrap_servers=self._bootstrap_servers,
            enable_idempotence=True,
            request_timeout_ms=_ANSWER,
        )
        await self._produce(make, self._send)

    async def _send(self, producer: AIOKafkaProducer) -> None:
        """A few records, each to the next partition, and what became of them."""
        batch = [(*next(self._records), next(self._partitions)) for _ in range(_BATCH)]
        self.sent += len(batch)
        answers = [
            # A record without a value is a tombstone, which has a key.
            await producer.send(
                topic, value, key=b"" if value is None else None, partition=partition
            )
            for topic, value, partition in batch
        ]
        found = await asyncio.gather(*answers, return_exceptions=True)
        for (topic, value, partition), answer in zip(batch, found, strict=True):
            if isinstance(answer, BaseException):
                self.unknown += 1
            else:
                self.acknowledged[topic, partition][answer.offset] = value
        self._changed.notify()
        for answer in found:
            if isinstance(answer, BaseException):
                raise answer
