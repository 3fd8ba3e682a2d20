"""Sends records while everything else is harmed, and keeps what the broker has acknowledged."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import anyio
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from ..service.changes import Wakeup

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .records import Values
    from .services import Recorder

_BATCH: Final = 20
_PAUSE: Final = 0.3
_ANSWER: Final = 60_000
"""Milliseconds until the fate of a record is unknown: longer than a broker takes to start again."""


class Load:
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
        self.acknowledged: dict[tuple[str, int], dict[int, bytes | None]] = defaultdict(dict)
        self.unknown = 0
        self.sent = 0
        self._bootstrap_servers = bootstrap_servers
        self._records = itertools.cycle(
            (topic, value) for topic, each in values.items() for value in each
        )
        self._partitions = itertools.cycle(range(partitions))
        self._interval = _BATCH / rate
        self._recorder = recorder
        self._stopped = False
        self._changed = Wakeup()

    @property
    def count(self) -> int:
        """How many records are acknowledged."""
        return sum(map(len, self.acknowledged.values()))

    def stop(self) -> None:
        """Send no more."""
        self._stopped = True

    async def until_more(self, records: int) -> None:
        """Wait until so many more records have been acknowledged."""
        wanted = self.count + records
        while self.count < wanted:
            await self._changed.wait()

    async def run(self) -> None:
        """Send until `stop`; returns when every record was answered or given up."""
        while not self._stopped:
            producer = AIOKafkaProducer(
                bootstrap_servers=self._bootstrap_servers,
                enable_idempotence=True,
                request_timeout_ms=_ANSWER,
            )
            try:
                await producer.start()
                while not self._stopped:
                    began = anyio.current_time()
                    await self._send(producer)
                    await anyio.sleep_until(began + self._interval)
            except KafkaError as error:
                self._recorder.event("noticed", "producer", f"{type(error).__name__}: {error}")
                await anyio.sleep(_PAUSE)
            finally:
                with anyio.CancelScope(shield=True), anyio.move_on_after(5):
                    await producer.stop()

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
