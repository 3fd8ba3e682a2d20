"""A model of a broker's transactions, and of a producer that takes part in them.

The rules are those of KIP-98 and KIP-447: a new producer of a transactional id fences the one before and
aborts its transaction; offsets are accepted from a member of the present generation only, and are unstable
until the transaction ends; the broker aborts a transaction that takes too long. The client's side,
`kmr.kafka.transactions.Transactions`, is real.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
from aiokafka import errors as kafka_errors

from ..errors import BrokerUnavailable, CommitFenced, reason_of
from ..kafka.consumer import CommitOffset
from ..kafka.transactions import Transactions
from ..record import TopicPartition
from ..reducers.collect import Collecting
from ..reducers.reducer import Retry, limits_of
from ..reducers.sink import NEW, Sink, Write
from .world import current_member

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..kafka.group_offsets import Membership
    from ..record import Rows
    from ..reducers.reducer import Context
    from .group import Offsets
    from .sinks import BranchModels
    from .world import SimulatedMember

_TIMEOUT: Final = 6.0
"""Seconds after which a client gives a step up, and the broker aborts the transaction."""


class _Refused(kafka_errors.KafkaError, CommitFenced):  # type: ignore[misc]
    """The group refuses the offsets of this generation."""


@dataclass
class _OpenTransaction:
    """The newest producer of a transactional id, and what it has sent since its last transaction ended."""

    epoch: int = 0
    number: int = 0
    is_open: bool = False
    was_committed: bool = False
    rows: list[tuple[SimulatedMember, Sequence[Rows]]] = field(default_factory=list)


@dataclass(eq=False)
class Coordinator:
    """What brokers know of the transactions of one group's members.

    Args:
        offsets: of the group.
        on_rows: called with rows that readers with `read_committed` see from now on.
        on_offsets: called before offsets are stored; it checks them.
    """

    offsets: Offsets
    on_rows: Callable[[SimulatedMember, Sequence[Rows]], object] = lambda _member, _rows: None
    on_offsets: Callable[[Mapping[TopicPartition, CommitOffset]], object] = lambda _: None
    _transactions: dict[str, _OpenTransaction] = field(default_factory=dict, init=False)

    def init(self, name: str) -> int:
        """Fence the producer before, abort its transaction, and return the new producer's epoch."""
        transaction = self._transactions.setdefault(name, _OpenTransaction())
        self._end(name, transaction, commit=False)
        transaction.epoch += 1
        return transaction.epoch

    def send(self, name: str, epoch: int, member: SimulatedMember, rows: Sequence[Rows]) -> int:
        """Add rows to the transaction; return its number."""
        transaction = self._begun(name, epoch)
        transaction.rows.append((member, rows))
        return transaction.number

    def add_offsets(
        self,
        name: str,
        epoch: int,
        member: Membership,
        offsets: Mapping[TopicPartition, CommitOffset],
    ) -> int:
        """Add offsets to the transaction; return its number. Raises CommitFenced as `Offsets.commit`."""
        transaction = self._begun(name, epoch)
        self.offsets.add(name, member.member_id, member.generation, offsets)
        return transaction.number

    def commit(self, name: str, epoch: int) -> None:
        """End the transaction: its rows are seen, its offsets are committed. Asked again, it is done."""
        transaction = self._current(name, epoch)
        if transaction.is_open:
            self._end(name, transaction, commit=True)
        elif not transaction.was_committed:
            raise kafka_errors.InvalidTxnState("no transaction is open")

    def expire(self, name: str, number: int) -> None:
        """Abort a transaction if it is still open, and fence its producer."""
        transaction = self._transactions[name]
        if transaction.is_open and transaction.number == number:
            self._end(name, transaction, commit=False)
            transaction.epoch += 1

    def _current(self, name: str, epoch: int) -> _OpenTransaction:
        transaction = self._transactions.get(name)
        if transaction is None or transaction.epoch != epoch:
            raise kafka_errors.ProducerFenced
        return transaction

    def _begun(self, name: str, epoch: int) -> _OpenTransaction:
        transaction = self._current(name, epoch)
        if not transaction.is_open:
            transaction.is_open = True
            transaction.number += 1
        return transaction

    def _end(self, name: str, transaction: _OpenTransaction, *, commit: bool) -> None:
        rows, transaction.rows = transaction.rows, []
        transaction.is_open, transaction.was_committed = False, commit
        if commit:
            for member, each in rows:
                self.on_rows(member, each)
            self.on_offsets(self.offsets.pending.get(name, {}))
        self.offsets.end(name, commit=commit)


class ModelTransactions(Transactions):
    """The client's transactions, whose producer is a model."""

    def __init__(self, models: BranchModels, context: Context) -> None:
        member = models.member()
        # Half of the processes have the name of the one before, as static members have.
        name = member.name if models.world.rng.random() < 0.5 else f"worker {member.number}"
        super().__init__({}, context.group, name, _TIMEOUT)
        self._models = models

    async def _connect(self) -> None:
        models, name = self._models, self.transactional_id
        try:
            with anyio.fail_after(self._timeout):
                epoch = await models.world.request(
                    "commit", "broker", f"{name} begins anew",
                    lambda: models.coordinator.init(name), kafka_errors.KafkaConnectionError,
                )  # fmt: skip
        except (TimeoutError, kafka_errors.KafkaError) as error:
            raise BrokerUnavailable(f"transactional id {name}: {reason_of(error)}") from error
        self._producer = _ModelProducer(models, name, epoch)
        self._left_open = False

    async def _drop(self, producer: Any) -> None:
        pass


class _ModelProducer:
    """What `Transactions` and `ModelTransactionalWriter` use of an `AIOKafkaProducer`."""

    def __init__(self, models: BranchModels, name: str, epoch: int) -> None:
        self._models = models
        self._name = name
        self._epoch = epoch
        self._sender = SimpleNamespace(member=None)

    async def begin_transaction(self) -> None:
        pass

    async def flush(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def send(self, rows: Sequence[Rows]) -> None:
        member, coordinator = current_member(), self._models.coordinator

        def effect() -> None:
            self._expire_later(coordinator.send(self._name, self._epoch, member, rows))
            self._models.checks.memory(member)

        shown = ", ".join(str(r) for each in rows for r in each.ranges)
        await self._models.world.request(
            "sink", "broker", f"sends {shown}", effect, kafka_errors.KafkaConnectionError
        )

    async def send_offsets_to_transaction(self, offsets: Mapping[Any, Any], _group: str) -> None:
        sent = {
            TopicPartition(*at): CommitOffset(entry.offset, entry.metadata)
            for at, entry in offsets.items()
        }
        membership, coordinator = self._sender.member, self._models.coordinator

        def effect() -> None:
            try:
                number = coordinator.add_offsets(self._name, self._epoch, membership, sent)
            except CommitFenced as error:
                raise _Refused(str(error)) from error
            self._expire_later(number)

        shown = ", ".join(f"{at}={entry.offset}" for at, entry in sorted(sent.items()))
        await self._models.world.request(
            "commit", "group", f"adds {shown} to its transaction", effect,
            kafka_errors.KafkaConnectionError,
        )  # fmt: skip

    async def commit_transaction(self) -> None:
        await self._models.world.request(
            "commit", "broker", "commits its transaction",
            lambda: self._models.coordinator.commit(self._name, self._epoch),
            kafka_errors.KafkaConnectionError,
        )  # fmt: skip

    def _expire_later(self, number: int) -> None:
        models = self._models
        models.world.later(_TIMEOUT, models.coordinator.expire, self._name, number)


class ModelTransactionalWriter(Collecting, Sink):
    """A last reducer that writes in transactions, to a sink that shows rows when they are committed."""

    def __init__(self, like: Sink, models: BranchModels) -> None:
        super().__init__(**limits_of(like))
        self.capabilities = like.capabilities
        self._models = models

    def __deepcopy__(self, memo: object) -> Self:
        return copy.copy(self)  # the stage resets the copy

    def transactions(self, context: Context) -> Transactions:
        return ModelTransactions(self._models, context)

    async def flush(self, write: Write = NEW) -> None:
        assert write.transaction is not None  # noqa: S101  the guarantee enters one
        self._models.sink.sends(current_member(), self.rows)
        producer = await write.transaction.begin()
        try:
            with anyio.fail_after(_TIMEOUT):
                await producer.send(self.rows)
        except (TimeoutError, kafka_errors.KafkaError) as error:
            raise Retry(reason_of(error), may_double=False) from error
