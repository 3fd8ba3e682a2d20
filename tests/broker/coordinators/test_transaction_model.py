"""Any order of transactions, kills at any write, fencing and timeouts, against lists and a number."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from kmr.broker.coordinators.transaction_state import TransactionError
from kmr.broker.log.producers import ProducerIdentity
from tests.examples import examples

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pytest

NAMES = st.sampled_from("ab")
PARTITIONS = st.integers(0, 1)
KILL = st.one_of(st.none(), st.integers(1, 6))
"""Kill the broker when the operation has made so many writes; the client then tries it again."""
TIMEOUT_SECONDS = 60.0


class Client:
    """The expected state of the client of one transactional id."""

    def __init__(self, producer: ProducerIdentity) -> None:
        self.producer = producer
        self.sequences = [0, 0]
        self.open_for: float | None = None
        self.written: list[list[bytes]] = [[], []]
        self.offset: int | None = None

    def ended(self) -> None:
        self.open_for = None
        self.written = [[], []]
        self.offset = None


class Transactions(RuleBasedStateMachine):
    def __init__(self, make_disk: Callable[[], Any]) -> None:
        super().__init__()
        self.disk = make_disk()
        self.runner = asyncio.Runner()
        self.clients: dict[str, Client] = {}
        self.committed: list[set[bytes]] = [set(), set()]
        self.offsets: set[int | None] = {None}  # of two that were committed, the later record holds
        self.values = 0
        self.node: Any
        self.runner.run(self.start())
        for name in "ab":
            self.clients[name] = Client(self.runner.run(self.node.begin(name)))

    async def start(self) -> None:
        started, self.stop = asyncio.Event(), asyncio.Event()

        async def run() -> None:
            async with self.disk.running() as self.node:
                started.set()
                await self.stop.wait()

        self.run = asyncio.create_task(run())
        waiting = asyncio.create_task(started.wait())
        await asyncio.wait([self.run, waiting], return_when=asyncio.FIRST_COMPLETED)
        if self.run.done():
            self.run.result()

    async def end_run(self) -> None:
        self.stop.set()
        await self.run

    async def restart(self) -> None:
        await self.end_run()
        await self.start()

    async def twice(self, operation: Callable[[], Awaitable[Any]], kill: int | None) -> Any:
        """Run it; if the broker is killed meanwhile, the answer is lost: run it again."""
        before = self.disk.directory
        self.disk.kill_after(kill or 0)
        answer = await operation()
        self.disk.kill_after(0)
        if self.disk.directory != before:
            await self.restart()
            answer = await operation()
        return answer

    def fenced(self, name: str) -> None:
        """Only a timeout fences a client here; a new one takes its place."""
        assert (self.clients[name].open_for or 0) > TIMEOUT_SECONDS
        self.clients[name] = Client(self.runner.run(self.node.begin(name)))

    # -- what clients do -----------------------------------------------------------------------

    @rule(name=NAMES, kill=KILL)
    def begin(self, name: str, kill: int | None) -> None:
        zombie = self.clients[name].producer
        producer = self.runner.run(self.twice(lambda: self.node.begin(name), kill))
        assert producer > zombie
        answer = self.runner.run(self.node.coordinator.end(name, zombie, commit=True))
        assert answer is TransactionError.PRODUCER_FENCED
        self.clients[name] = Client(producer)

    @rule(name=NAMES, partition=PARTITIONS, kill=KILL)
    def produce(self, name: str, partition: int, kill: int | None) -> None:
        client = self.clients[name]
        self.values += 1
        value = b"%d" % self.values

        async def send() -> Any:
            sequence = client.sequences[partition]
            return await self.node.produce(name, client.producer, partition, sequence, value)

        if self.runner.run(self.twice(send, kill)) is None:
            client.sequences[partition] += 1
            client.written[partition].append(value)
            client.open_for = client.open_for or 0.0
        else:
            self.fenced(name)

    @rule(name=NAMES, kill=KILL)
    def commit_offset(self, name: str, kill: int | None) -> None:
        client = self.clients[name]
        self.values += 1
        offset = self.values
        operation = lambda: self.node.commit_offset(name, client.producer, offset)  # noqa: E731
        if self.runner.run(self.twice(operation, kill)) is None:
            client.offset = offset
            client.open_for = client.open_for or 0.0
        else:
            self.fenced(name)

    @rule(name=NAMES, commit=st.booleans(), kill=KILL, raise_epoch=st.booleans())
    def end(self, name: str, commit: bool, kill: int | None, raise_epoch: bool) -> None:
        client = self.clients[name]
        if client.open_for is None and (commit or not raise_epoch):
            return
        producer = client.producer

        async def end() -> Any:
            coordinator = self.node.coordinator
            change = coordinator.end_and_raise_epoch if raise_epoch else coordinator.end
            return await change(name, producer, commit=commit)

        answer = self.runner.run(self.twice(end, kill))
        if isinstance(answer, ProducerIdentity):
            assert answer == (producer.producer_id, producer.epoch + 1)
            client.producer, client.sequences, answer = answer, [0, 0], None
            late = self.runner.run(self.node.produce(name, producer, 0, 0, b"late"))
            assert late is TransactionError.PRODUCER_FENCED
        if answer is TransactionError.PRODUCER_FENCED:
            self.fenced(name)
            return
        assert answer is None
        if commit:
            for partition in (0, 1):
                self.committed[partition].update(client.written[partition])
            if client.offset is not None:
                known = max((each for each in self.offsets if each is not None), default=0)
                self.offsets = {max(known, client.offset)}
        client.ended()

    # -- what else happens ---------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1.0, 20.0, 61.0]), kill=KILL)
    def time_passes(self, seconds: float, kill: int | None) -> None:
        self.disk.clock.seconds += seconds
        for client in self.clients.values():
            if client.open_for is not None:
                client.open_for += seconds
        self.runner.run(self.twice(self.node.coordinator.check, kill))

    @rule()
    def kill(self) -> None:
        self.disk.kill()
        self.runner.run(self.restart())

    @rule()
    def rewrite(self) -> None:
        for log in (self.node.store.log, self.node.groups.offsets.log):
            log._rewrite_bytes = 0
        self.runner.run(self.node.store.maintain())
        self.runner.run(self.node.groups.offsets.maintain())

    # -- what always holds ---------------------------------------------------------------------

    @invariant()
    def only_what_was_committed_is_seen(self) -> None:
        waiting = any(each.open_for is not None for each in self.clients.values())
        for partition in (0, 1):
            seen = self.node.committed(partition)
            assert len(seen) == len(set(seen))
            assert set(seen) <= self.committed[partition]
            if not waiting:
                assert set(seen) == self.committed[partition]
        assert self.runner.run(self.node.committed_offset()) in self.offsets

    def teardown(self) -> None:
        self.disk.clock.seconds += TIMEOUT_SECONDS + 1
        self.runner.run(self.node.coordinator.check())
        for partition in (0, 1):
            assert set(self.node.committed(partition)) == self.committed[partition]
        self.runner.run(self.end_run())
        self.runner.close()


def test_transactions_are_atomic_in_any_order_of_events(
    make_disk: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # a kill forgets nothing that was written

    class Machine(Transactions):
        def __init__(self) -> None:
            super().__init__(make_disk)

    run_state_machine_as_test(
        Machine, settings=settings(max_examples=examples(60), stateful_step_count=30)
    )
