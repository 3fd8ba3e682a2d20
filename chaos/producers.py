"""The load: producers that send records and log the broker's response to each."""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

import anyio
from aiokafka import AIOKafkaProducer

from chaos.workload import ID_BYTES, REMEMBERED
from kmr.chaos.course import RecordSource
from kmr.intake.backpressure import Gate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from aiokafka.producer.message_accumulator import BatchBuilder

    from chaos.history import Outcome, Recorder

_PADDING: Final = b"." * 80
_POISON: Final = b"poison".ljust(ID_BYTES, b"!")
_LONGEST_REPEAT: Final = REMEMBERED / 3  # seconds; a broker that is killed makes it longer
_ABORTED: Final = 0.25  # of all transactions
_TRANSACTION_MS: Final = 10_000  # the broker's limit for a transaction


class Load(RecordSource):
    """Sends records to topics at a steady rate until it is stopped.

    Half of the producers send each batch in a transaction and abort one in four. A batch is sent when
    the one before it was answered, so that of each record it is known whether it was acknowledged, and
    at which offset; where a producer gives up, it is not known.

    Args:
        rate: records per second, of all producers together.
        poison_every: one record in so many has a value that the map cannot bear; 0: none.
        repeat_every: one record in so many has the id of one in an earlier batch of its partition, which its
            producer has sent; 0: none. In the history it is poison.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topics: Sequence[str],
        partitions: int,
        recorder: Recorder,
        *,
        rate: float,
        batch: int = 250,
        poison_every: int = 0,
        repeat_every: int = 0,
        producers: int = 2,
    ) -> None:
        super().__init__(recorder, batch * producers / rate)
        self._history = recorder
        self._bootstrap_servers = bootstrap_servers
        self._topics = topics
        self._partitions = partitions
        self._batch = batch
        self._poison_every = poison_every
        self._repeat_every = repeat_every
        self._producers = producers
        self._ids = itertools.count(0, batch)
        self._gate = Gate()
        self._gate.open()
        self.acknowledged = 0
        """Records that the broker has acknowledged."""

    @property
    def count(self) -> int:
        return self.acknowledged

    async def run(self, random: Random) -> None:
        """Send until `stop`; returns when every record was answered or given up."""
        async with anyio.create_task_group() as tasks:
            for number in range(self._producers):
                own = Random(random.random())  # noqa: S311  no secrets
                transactional_id = f"{self._topics[0]}-{number}" if number % 2 else None
                make = partial(
                    AIOKafkaProducer,
                    bootstrap_servers=self._bootstrap_servers,
                    enable_idempotence=True,
                    max_batch_size=self._batch * 4 * len(_PADDING),
                    transactional_id=transactional_id,
                    transaction_timeout_ms=_TRANSACTION_MS,
                )
                send = partial(
                    self._send, {}, random=own, in_transaction=transactional_id is not None
                )
                tasks.start_soon(self._produce, make, send)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Send nothing meanwhile; the block begins when each batch was answered."""
        self._gate.close()
        await self._gate.wait_quiet()
        try:
            yield
        finally:
            self._gate.open()

    async def until_silent(self, seconds: float) -> None:
        """Wait until nothing has been acknowledged for so long."""
        while True:
            with anyio.move_on_after(seconds) as silence:
                await self._changed.wait()
            if silence.cancelled_caught:
                return

    async def _send(
        self,
        sent: dict[tuple[str, int], tuple[float, range]],
        producer: AIOKafkaProducer,
        *,
        random: Random,
        in_transaction: bool,
    ) -> None:
        """One batch, and what became of it; `sent` has the last acknowledged ids of each partition."""
        async with self._gate:
            first = next(self._ids)
            ids = range(first, first + self._batch)
            poison = self._poison(ids)
            at = topic, partition = random.choice(self._topics), random.randrange(self._partitions)
            repeated = self._repeated(ids, sent.get(at), poison)
            aborts = in_transaction and random.random() < _ABORTED
            outcome: Outcome = "unknown"
            base = None
            try:
                if in_transaction:
                    await producer.begin_transaction()
                batch = self._filled(producer.create_batch(), ids, poison, repeated)
                answer = await producer.send_batch(batch, topic, partition=partition)
                offset = (await answer).offset
                if aborts:
                    await producer.abort_transaction()
                elif in_transaction:
                    await producer.commit_transaction()
                base, outcome = offset, "aborted" if aborts else "acked"
            finally:
                self._history.produced(topic, partition, base, ids, outcome, [*poison, *repeated])
            if outcome == "acked":
                sent[at] = anyio.current_time(), ids
                self.acknowledged += len(ids)
                self._changed.notify()

    def _filled(
        self, batch: BatchBuilder, ids: range, poison: list[int], repeated: dict[int, int]
    ) -> BatchBuilder:
        for number in ids:
            head = b"%0*d" % (ID_BYTES, repeated.get(number, number))
            head = _POISON if number in poison else head
            batch.append(key=None, value=head + _PADDING, timestamp=None)
        return batch

    def _repeated(
        self, ids: range, before: tuple[float, range] | None, poison: list[int]
    ) -> dict[int, int]:
        """Return which records repeat which id of the batch before."""
        if not self._repeat_every or before is None:
            return {}
        sent_at, old_ids = before
        if anyio.current_time() - sent_at > _LONGEST_REPEAT:
            return {}
        bad = {*poison, *self._poison(old_ids)}
        return {
            number: old
            for number, old in zip(ids, old_ids[1:], strict=False)  # none that is repeated itself
            if number % self._repeat_every == 1 and number not in bad and old not in bad
        }

    def _poison(self, ids: range) -> list[int]:
        every = self._poison_every
        return [number for number in ids if number % every == every // 2] if every else []
