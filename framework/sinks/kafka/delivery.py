"""Bringing one flush of messages to a Kafka topic: attempt by attempt, each message once."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio
import numpy as np
from aiokafka import errors
from anyio import to_thread

from framework.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiokafka import AIOKafkaProducer
    from numpy.typing import NDArray

    from framework.sinks.kafka.messages import Messages

__all__ = ["Delivery", "ProducerLost", "stop_producer"]

_LOST: Final = (
    errors.ProducerFenced,
    errors.ProducerClosed,
    errors.OutOfOrderSequenceNumber,
    errors.UnknownProducerId,
    errors.InvalidProducerIdMapping,
)
_TOO_LARGE: Final = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)
# Neither is marked as such, but both are about a moment, not about the messages.
_LATER: Final = (errors.KafkaTimeoutError, errors.CorruptRecordException)


class ProducerLost(Exception):
    """The broker no longer accepts what this producer sends; a new one can go on with the delivery."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Messages that go to one partition in one record batch, by their positions."""

    partition: int
    positions: NDArray[np.int64]


class Delivery:
    """One flush on its way.

    What was sent and has no answer yet is waited for by the next attempt, not sent again: the client
    goes on with it meanwhile.

    Attributes:
        refused: the positions of messages that the topic can never take.
    """

    def __init__(
        self,
        topic: str,
        messages: Messages,
        partitions: NDArray[np.int64],
        refused: Sequence[int] = (),
    ) -> None:
        """`refused` are positions that are not to be sent at all."""
        self._topic = topic
        self._messages = messages
        self._sent: dict[asyncio.Future[Any], Chunk] = {}
        self.refused = list(refused)
        # Stable, so that order within a partition is kept.
        order = np.argsort(partitions, kind="stable")
        order = order[~np.isin(order, self.refused)]
        ends = np.flatnonzero(np.diff(partitions[order])) + 1
        # By partition; only the first of each is on its way, or order would suffer if it is refused.
        self._todo: dict[int, deque[Chunk]] = {
            int(partitions[positions[0]]): deque([Chunk(int(partitions[positions[0]]), positions)])
            for positions in np.split(order, ends)
            if len(positions)
        }

    async def attempt(
        self, producer: AIOKafkaProducer, timeout: float, *, idempotent: bool
    ) -> str | None:
        """Send what is left and wait for acknowledgements, at most `timeout` seconds.

        Returns None when every message is acknowledged or refused, else why it is not.

        Raises:
            ProducerLost: call it again with a new producer.
            SinkError: the topic does not take our messages, and will not.
        """
        while True:
            reason = await self._send(producer, timeout)
            if reason is not None or not self._sent:
                return reason
            reason = await self._acknowledged(timeout, idempotent=idempotent)
            if reason is not None:
                return reason

    async def _send(self, producer: AIOKafkaProducer, timeout: float) -> str | None:
        """Send the next chunk of every partition that waits for no other."""
        busy = {chunk.partition for chunk in self._sent.values()}
        for partition, chunks in self._todo.items():
            if not chunks or partition in busy:
                continue
            chunk = chunks.popleft()
            builder, taken = await to_thread.run_sync(self._build, producer.create_batch(), chunk)
            rest = chunk.positions[taken:]
            if len(rest):
                chunks.appendleft(Chunk(partition, rest))
            chunk = Chunk(partition, chunk.positions[:taken])
            future = None
            try:
                with anyio.move_on_after(timeout):
                    future = await producer.send_batch(builder, self._topic, partition=partition)
            except errors.KafkaError as error:
                chunks.appendleft(chunk)
                return self._why(error)
            if future is None:
                chunks.appendleft(chunk)
                return self._unanswered(timeout)
            # If nobody comes back for it, its error is not worth a line in the log.
            future.add_done_callback(_look_at)
            self._sent[future] = chunk
        return None

    def _build(self, builder: Any, chunk: Chunk) -> tuple[Any, int]:
        """Fill one record batch; returns how many messages found room, at least one."""
        messages = self._messages
        taken = 0
        for at in chunk.positions.tolist():
            appended = builder.append(
                timestamp=messages.timestamps[at],
                key=messages.keys[at],
                value=messages.values[at],
                headers=messages.headers[at],
            )
            if appended is None:
                break
            taken += 1
        builder.close()
        return builder, taken

    async def _acknowledged(self, timeout: float, *, idempotent: bool) -> str | None:
        done, _ = await asyncio.wait(
            self._sent, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            return self._unanswered(timeout)
        reason = None
        lost: BaseException | None = None
        for future in done:
            chunk = self._sent.pop(future)
            error = future.exception()
            if error is None:
                continue
            if isinstance(error, _TOO_LARGE):
                self._again(*self._halves(chunk))
                if idempotent:
                    # Its sequence numbers are used up, so that all that follows is out of order.
                    lost = error
                continue
            self._again(chunk)
            if isinstance(error, _LOST):
                lost = error
            else:
                reason = self._why(error)
        if lost is not None:
            self._again(*self._sent.values())
            self._sent.clear()
            raise ProducerLost(str(lost) or type(lost).__name__)
        return reason

    def _again(self, *chunks: Chunk) -> None:
        """Put chunks back to the front of their partitions."""
        for chunk in reversed(chunks):
            self._todo[chunk.partition].appendleft(chunk)

    def _halves(self, chunk: Chunk) -> list[Chunk]:
        """What to send instead of a record batch that is too large for the topic."""
        if len(chunk.positions) == 1:
            self.refused += chunk.positions.tolist()
            return []
        return [Chunk(chunk.partition, half) for half in np.array_split(chunk.positions, 2)]

    def _unanswered(self, timeout: float) -> str:
        return f"topic {self._topic}: no acknowledgement from the brokers in {timeout:g} s"

    def _why(self, error: BaseException) -> str:
        """The reason to try again, or the end of it."""
        said = f"{type(error).__name__}{f': {error}' if str(error) else ''}"
        if isinstance(error, _LATER) or getattr(error, "retriable", False):
            return f"topic {self._topic}: {said}"
        hint = ""
        if isinstance(error, errors.TopicAuthorizationFailedError):
            hint = "; allow our user to write to it"
        elif isinstance(error, errors.InvalidTopicError):
            hint = "; it is no name of a topic that can be written to"
        raise SinkError(
            f"the brokers refuse messages for topic {self._topic}: {said}{hint}"
        ) from error


async def stop_producer(producer: AIOKafkaProducer, patience: float) -> None:
    """Stop a producer, after `patience` seconds even though brokers do not answer.

    An idempotent one would wait for them for ever. What it then drops was never acknowledged.
    """
    with anyio.move_on_after(patience):
        await producer.flush()
        await producer.stop()
        return
    # Stopping it half: no public method leaves out the wait for what is pending.
    producer._closed = True  # noqa: SLF001
    with anyio.move_on_after(1.0):
        await producer._sender.close()  # noqa: SLF001
    await producer.client.close()


def _look_at(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
