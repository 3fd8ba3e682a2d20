"""The load: producers that send records and log the broker's response to each."""

from __future__ import annotations

import itertools
from random import Random
from typing import TYPE_CHECKING, Final

import anyio
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from chaos.workload import ID_BYTES

if TYPE_CHECKING:
    from aiokafka.producer.message_accumulator import BatchBuilder

    from chaos.history import Outcome, Recorder

_PADDING: Final = b"." * 80
_POISON: Final = b"poison".ljust(ID_BYTES, b"!")
_PAUSE: Final = 0.2  # seconds, before a producer that failed is replaced
_ABORTED: Final = 0.25  # of all transactions
_TRANSACTION_MS: Final = 10_000  # the broker's limit for a transaction


class Load:
    """Sends records to one topic at a steady rate until it is stopped.

    Half of the producers send each batch in a transaction and abort one in four. A batch is sent when
    the one before it was answered, so that of each record it is known whether it was acknowledged, and
    at which offset; where a producer gives up, it is not known.

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

    @property
    def count(self) -> int:
        """How many records the broker has acknowledged."""
        return self.acknowledged

    async def run(self, random: Random) -> None:
        """Send until `stop`; returns when every record was answered or given up."""
        async with anyio.create_task_group() as tasks:
            for number in range(self._producers):
                own = Random(random.random())  # noqa: S311  no secrets
                transactional_id = f"{self._topic}-{number}" if number % 2 else None
                tasks.start_soon(self._produce, own, transactional_id)

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

    async def _produce(self, random: Random, transactional_id: str | None) -> None:
        while not self._stopped:
            producer = AIOKafkaProducer(
                bootstrap_servers=self._bootstrap_servers,
                enable_idempotence=True,
                max_batch_size=self._batch * 4 * len(_PADDING),
                transactional_id=transactional_id,
                transaction_timeout_ms=_TRANSACTION_MS,
            )
            try:
                await producer.start()
                while not self._stopped:
                    began = anyio.current_time()
                    await self._send(producer, random, in_transaction=transactional_id is not None)
                    await anyio.sleep_until(began + self._interval)
            except KafkaError as error:
                self._recorder.event("noticed", "producer", f"{type(error).__name__}: {error}")
                await anyio.sleep(_PAUSE)
            finally:
                with anyio.CancelScope(shield=True), anyio.move_on_after(5):
                    await producer.stop()

    async def _send(
        self, producer: AIOKafkaProducer, random: Random, *, in_transaction: bool
    ) -> None:
        """One batch, and what became of it."""
        first = next(self._ids)
        ids = range(first, first + self._batch)
        poison = self._poison(ids)
        partition = random.randrange(self._partitions)
        aborts = in_transaction and random.random() < _ABORTED
        outcome: Outcome = "unknown"
        base = None
        try:
            if in_transaction:
                await producer.begin_transaction()
            batch = self._filled(producer.create_batch(), ids, poison)
            answer = await producer.send_batch(batch, self._topic, partition=partition)
            offset = (await answer).offset
            if aborts:
                await producer.abort_transaction()
            elif in_transaction:
                await producer.commit_transaction()
            base, outcome = offset, "aborted" if aborts else "acked"
        finally:
            self._recorder.produced(self._topic, partition, base, ids, outcome, poison)
        if outcome == "acked":
            self.acknowledged += len(ids)
            self._changed.set()
            self._changed = anyio.Event()

    def _filled(self, batch: BatchBuilder, ids: range, poison: list[int]) -> BatchBuilder:
        for number in ids:
            head = _POISON if number in poison else b"%0*d" % (ID_BYTES, number)
            batch.append(key=None, value=head + _PADDING, timestamp=None)
        return batch

    def _poison(self, ids: range) -> list[int]:
        every = self._poison_every
        return [number for number in ids if number % every == every // 2] if every else []
