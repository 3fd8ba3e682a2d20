"""Send one flush of messages to a Kafka topic: attempt by attempt, each message once."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio
import numpy as np
from aiokafka import errors

from ...errors import SinkError
from ...reducers.reducer import Retry
from ...service.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiokafka import AIOKafkaProducer
    from numpy.typing import NDArray

    from .row_messages import RowMessages

_LOST: Final = (
    errors.ProducerFenced,
    errors.ProducerClosed,
    errors.OutOfOrderSequenceNumber,
    errors.UnknownProducerId,
    errors.InvalidProducerIdMapping,
)
_TOO_LARGE: Final = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)
# Temporary errors that aiokafka does not mark as retriable.
_LATER: Final = (errors.KafkaTimeoutError, errors.CorruptRecordException)


# The leader refuses these before it writes anything.
_NOT_WRITTEN: Final = (
    errors.NotEnoughReplicasError,
    errors.NotLeaderForPartitionError,
    errors.UnknownTopicOrPartitionError,
    errors.CorruptRecordException,
    *_TOO_LARGE,
)


class ProducerLost(Exception):
    """The broker refuses further messages of this producer; a new one can continue with the `SendState`.

    Attributes:
        may_double: messages that the new one sends again may have been written.
        too_large: only a record batch was too large; its parts are sent next.
    """

    def __init__(self, reason: str, *, may_double: bool, too_large: bool = False) -> None:
        super().__init__(reason)
        self.may_double = may_double
        self.too_large = too_large


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """The positions of messages for one record batch of one partition."""

    partition: int
    positions: NDArray[np.int64]


class SendState:
    """The messages of one flush: which are still to be sent, which are in flight, which are refused.

    Messages in flight stay so between attempts, because the client keeps retrying them: the next
    attempt waits for them instead of sending them again.

    Attributes:
        refused: the positions of messages that are too large for the topic.
    """

    def __init__(
        self,
        topic: str,
        messages: RowMessages,
        partitions: NDArray[np.int64],
        refused: Sequence[int] = (),
    ) -> None:
        """`refused`: positions not to send at all."""
        self._topic = topic
        self._messages = messages
        self._instead: dict[int, tuple[RowMessages, int]] = {}
        self._partitions = partitions
        self._in_flight: dict[asyncio.Future[Any], MessageBatch] = {}
        self._acknowledged: list[MessageBatch] = []
        self.refused = list(refused)
        # Stable, so that order within a partition is kept.
        order = np.argsort(partitions, kind="stable")
        order = order[~np.isin(order, self.refused)]
        ends = np.flatnonzero(np.diff(partitions[order])) + 1
        # By partition; only the first chunk of each is in flight, so that none overtakes a refused one.
        self._waiting: dict[int, deque[MessageBatch]] = {
            int(partitions[positions[0]]): deque(
                [MessageBatch(int(partitions[positions[0]]), positions)]
            )
            for positions in np.split(order, ends)
            if len(positions)
        }

    def send_instead(self, messages: RowMessages) -> bool:
        """Send other messages in place of the refused ones, in order; False if that was done before."""
        if not self._instead.keys().isdisjoint(self.refused):
            return False
        for number, at in enumerate(self.refused):
            self._instead[at] = messages, number
            partition = int(self._partitions[at])
            again = MessageBatch(partition, np.array([at]))
            self._waiting.setdefault(partition, deque()).append(again)
        self.refused = []
        return True

    def restart(self) -> None:
        """Send all messages again after an aborted transaction, but for those that were refused."""
        self._again(*self._in_flight.values())
        self._in_flight.clear()
        self._again(*self._acknowledged)
        self._acknowledged.clear()

    async def attempt(
        self, producer: AIOKafkaProducer, timeout: float, *, idempotent: bool
    ) -> None:
        """Send the remaining messages and wait for acknowledgements, `timeout` seconds for each step.

        It returns when every message is acknowledged or refused.

        Raises:
            Retry: not all of them are; call it again.
            ProducerLost: call it again with a new producer.
            SinkError: the topic permanently refuses our messages.
        """
        while True:
            reason = await self._send(producer, timeout)
            if reason is not None:
                raise Retry(reason, may_double=False)
            if not self._in_flight:
                return
            await self._wait_acknowledged(timeout, idempotent=idempotent)

    async def _send(self, producer: AIOKafkaProducer, timeout: float) -> str | None:
        """Send the next chunk of every partition that has none in flight."""
        busy = {chunk.partition for chunk in self._in_flight.values()}
        for partition, chunks in self._waiting.items():
            if not chunks or partition in busy:
                continue
            chunk = chunks.popleft()
            builder, taken = await run_in_thread(self._build, producer.create_batch(), chunk)
            rest = chunk.positions[taken:]
            if len(rest):
                chunks.appendleft(MessageBatch(partition, rest))
            chunk = MessageBatch(partition, chunk.positions[:taken])
            future = None
            try:
                with anyio.move_on_after(timeout):
                    future = await producer.send_batch(builder, self._topic, partition=partition)
            except errors.KafkaError as error:
                chunks.appendleft(chunk)
                return self._reason(error)
            if future is None:
                chunks.appendleft(chunk)
                return self._unanswered(timeout)
            future.add_done_callback(_retrieve_error)
            self._in_flight[future] = chunk
        return None

    def _build(self, builder: Any, chunk: MessageBatch) -> tuple[Any, int]:
        """Fill one record batch; return it and the number of messages that fit, at least one."""
        taken = 0
        for position in chunk.positions.tolist():
            messages, at = self._instead.get(position, (self._messages, position))
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

    async def _wait_acknowledged(self, timeout: float, *, idempotent: bool) -> None:
        done, _ = await asyncio.wait(
            self._in_flight, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            raise Retry(self._unanswered(timeout), may_double=False)  # it is awaited, not sent
        if idempotent and any(_needs_new_producer(future) for future in done):
            # The next producer sends again what is in flight: let it arrive first.
            done, _ = await asyncio.wait(self._in_flight, timeout=timeout)
        reason = None
        may_double = False
        lost: BaseException | None = None
        for future in done:
            chunk = self._in_flight.pop(future)
            error = future.exception()
            if error is None:
                self._acknowledged.append(chunk)
                continue
            if isinstance(error, _TOO_LARGE):
                self._again(*self._halves(chunk))
                if idempotent:
                    # Its sequence numbers are used up: later messages would be out of order.
                    lost = error
                continue
            self._again(chunk)
            may_double |= not isinstance(error, _NOT_WRITTEN)
            if isinstance(error, _LOST):
                lost = error
            else:
                reason = self._reason(error)
        if lost is not None:
            may_double |= bool(self._in_flight)
            self._again(*self._in_flight.values())
            self._in_flight.clear()
            raise ProducerLost(
                str(lost) or type(lost).__name__,
                may_double=may_double,
                too_large=isinstance(lost, _TOO_LARGE),
            )
        if reason is not None:
            raise Retry(reason, may_double=may_double)

    def _again(self, *chunks: MessageBatch) -> None:
        """Put chunks back to the front of their partitions."""
        for chunk in reversed(chunks):
            self._waiting[chunk.partition].appendleft(chunk)

    def _halves(self, chunk: MessageBatch) -> list[MessageBatch]:
        """Halve a record batch that is too large for the topic; refuse a single message."""
        if len(chunk.positions) == 1:
            self.refused += chunk.positions.tolist()
            return []
        return [MessageBatch(chunk.partition, half) for half in np.array_split(chunk.positions, 2)]

    def _unanswered(self, timeout: float) -> str:
        return f"topic {self._topic}: no acknowledgement from the brokers in {timeout:g} s"

    def _reason(self, error: BaseException) -> str:
        """Return the reason to try again; raise SinkError if trying again cannot help."""
        described = f"{type(error).__name__}{f': {error}' if str(error) else ''}"
        if isinstance(error, _LATER) or getattr(error, "retriable", False):
            return f"topic {self._topic}: {described}"
        hint = ""
        if isinstance(error, errors.TopicAuthorizationFailedError):
            hint = "; allow our user to write to it"
        elif isinstance(error, errors.TransactionalIdAuthorizationFailed):
            hint = "; allow our user Write on the transactional id"
        elif isinstance(error, errors.InvalidTopicError):
            hint = "; choose another name"
        raise SinkError(
            f"the brokers refuse messages for topic {self._topic}: {described}{hint}"
        ) from error


def _needs_new_producer(future: asyncio.Future[Any]) -> bool:
    """Return whether an idempotent producer cannot go on after this answer."""
    return isinstance(future.exception(), (*_LOST, *_TOO_LARGE))


def _retrieve_error(future: asyncio.Future[Any]) -> None:
    """Keep asyncio from logging the error of a future that no attempt awaits any more."""
    if not future.cancelled():
        future.exception()
