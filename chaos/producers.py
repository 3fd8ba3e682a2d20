"""The load: producers that send records and take down what the broker said to each."""

from __future__ import annotations

import asyncio
import itertools
from random import Random
from typing import TYPE_CHECKING, Final

import anyio
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from chaos.workload import ID_BYTES

if TYPE_CHECKING:
    from chaos.history import Recorder

__all__ = ["Load"]

_PADDING: Final = b"." * 80
_POISON: Final = b"poison".ljust(ID_BYTES, b"!")
_PAUSE: Final = 0.2  # seconds, before a producer that failed is replaced


class Load:
    """Sends records to one topic, at a steady rate, until it is told to stop.

    A batch is sent when the one before it was answered, so that of each record it is known whether it
    was acknowledged, and at which offset; where a producer gives up, it is not known.

    Args:
        rate: records per second, of all producers together.
        poison_every: one record in so many has a value that the map cannot bear; 0: none.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        partitions: int,
        recorder: Recorder,
        *,
        rate: float,
        batch: int = 250,
        poison_every: int = 0,
        producers: int = 2,
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self._partitions = partitions
        self._recorder = recorder
        self._interval = batch * producers / rate
        self._batch = batch
        self._poison_every = poison_every
        self._producers = producers
        self._ids = itertools.count(0, batch)
        self._stopped = False
        self._changed = anyio.Event()
        self.acknowledged = 0
        """Records that the broker has acknowledged."""

    async def run(self, random: Random) -> None:
        """Send until `stop`; returns when every record was answered or given up."""
        async with anyio.create_task_group() as tasks:
            for _ in range(self._producers):
                own = Random(random.random())  # noqa: S311  no secrets
                tasks.start_soon(self._produce, own)

    def stop(self) -> None:
        """Send no more."""
        self._stopped = True

    async def until(self, acknowledged: int) -> None:
        """Wait until so many records have been acknowledged."""
        while self.acknowledged < acknowledged:
            await self._changed.wait()

    async def until_more(self, records: int) -> None:
        """Wait until so many more records have been acknowledged."""
        await self.until(self.acknowledged + records)

    async def until_silent(self, seconds: float) -> None:
        """Wait until nothing has been acknowledged for so long."""
        while True:
            with anyio.move_on_after(seconds) as silence:
                await self._changed.wait()
            if silence.cancelled_caught:
                return

    async def _produce(self, random: Random) -> None:
        while not self._stopped:
            producer = AIOKafkaProducer(
                bootstrap_servers=self._bootstrap_servers,
                enable_idempotence=True,
                max_batch_size=self._batch * 4 * len(_PADDING),
            )
            try:
                await producer.start()
                await self._send(producer, random)
            except KafkaError as error:
                self._recorder.event("noticed", "producer", f"{type(error).__name__}: {error}")
                await anyio.sleep(_PAUSE)
            finally:
                with anyio.CancelScope(shield=True), anyio.move_on_after(5):
                    await producer.stop()

    async def _send(self, producer: AIOKafkaProducer, random: Random) -> None:
        while not self._stopped:
            began = anyio.current_time()
            first = next(self._ids)
            ids = range(first, first + self._batch)
            poison = self._poison(ids)
            batch = producer.create_batch()
            for number in ids:
                head = _POISON if number in poison else b"%0*d" % (ID_BYTES, number)
                batch.append(key=None, value=head + _PADDING, timestamp=None)
            partition = random.randrange(self._partitions)
            try:
                answer = await producer.send_batch(batch, self._topic, partition=partition)
                base = (await answer).offset
            except (KafkaError, asyncio.CancelledError):
                self._recorder.produced(self._topic, partition, None, ids, "unknown", poison)
                raise
            self._recorder.produced(self._topic, partition, base, ids, "acked", poison)
            self.acknowledged += len(ids)
            self._changed.set()
            self._changed = anyio.Event()
            await anyio.sleep_until(began + self._interval)

    def _poison(self, ids: range) -> list[int]:
        every = self._poison_every
        return [number for number in ids if number % every == every // 2] if every else []
