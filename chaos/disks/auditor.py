"""Compares a broker's state after a crash with the responses that clients had before."""

# ruff: noqa: S101  these assertions are the tests'
from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from chaos.disks.wire import INIT, MINUTE, OK

if TYPE_CHECKING:
    from chaos.disks.promises import History, Register, Sent
    from chaos.disks.wire import Found


class Auditor:
    """Compares a broker's state after a crash with the responses that clients had before."""

    def __init__(self, history: History, at: int, *, durable: bool) -> None:
        """`at`: disk operations before the crash; `durable`: acknowledged changes must survive."""
        self._history = history
        self._at = at
        self._durable = durable

    def check(self, found: Found) -> None:
        """Raises AssertionError."""
        allowed = {key: self._allowed(each) for key, each in self._history.registers.items()}
        for key, values in allowed.items():
            if key[0] == "topic":
                assert found.topics.get(key[1]) in values, key
            if key[0] == "committed":
                unfinished = () if self._durable else self._history.unfinished[key]
                assert found.offsets.get(key[1:]) in [*values, *unfinished], key
            if key[0] == "start" and key[1] in found.topics:
                assert found.starts[key[1:]] in [each or 0 for each in values], key
        for partition, sent in self._history.records.items():
            if partition[0] not in found.topics:
                continue
            if partition[0] == "keyed":
                self._check_keyed(sent, found)
            else:
                self._check_records(sent, found.records[partition], found.starts[partition])
                self._check_committed(sent, found.committed[partition])
        self._check_transactions(found)

    def _allowed(self, register: Register) -> list[Any]:
        return register.allowed(self._at, durable=self._durable)

    def _must(self, sent: Sent) -> bool:
        return self._durable and sent.done is not None and sent.done <= self._at

    def _check_records(
        self, sent: list[Sent], seen: list[tuple[int, bytes | None]], start: int
    ) -> None:
        """The log has a prefix of the sent records, in order, each once."""
        expected = [each for each in sent if each.offset is None or each.offset >= start]
        assert [value for _, value in seen] == [each.value for each in expected[: len(seen)]]
        for (offset, _), each in zip(seen, expected, strict=False):
            assert each.offset in (None, offset)
        assert not any(map(self._must, expected[len(seen) :]))

    def _check_committed(self, sent: list[Sent], seen: list[tuple[int, bytes | None]]) -> None:
        """Readers of committed records see no others."""
        if not self._durable:
            # The coordinator's log may have lost more than the others: it ends an earlier transaction again,
            # and with it the one of the same producer that the other logs have as open.
            return
        values = {value for _, value in seen}
        for each in sent:
            if each.transaction is not None and True not in self._allowed(each.transaction):
                assert each.value not in values

    def _check_keyed(self, sent: list[Sent], found: Found) -> None:
        """Of each key the newest value that was acknowledged, or a newer one, is the newest there."""
        number = {each.value: n for n, each in enumerate(sent)}
        newest: dict[bytes | None, int] = {}
        for offset, value in found.records["keyed", 0]:
            at = number[value]
            assert sent[at].offset in (None, offset)
            assert found.keys["keyed", 0, offset] == sent[at].key
            assert newest.get(sent[at].key, -1) < at
            newest[sent[at].key] = at
        for at, each in enumerate(sent):
            if self._must(each):
                assert newest.get(each.key, -1) >= at

    def _check_transactions(self, found: Found) -> None:
        """All of a transaction or nothing of it."""
        if not self._durable or "paid" not in found.topics:
            return
        seen = [
            {value for _, value in found.committed.get(("paid", partition), ())}
            for partition in (0, 1)
        ]
        for one, other in zip(
            self._history.records["paid", 0], self._history.records["paid", 1], strict=False
        ):
            assert one.transaction is not None
            outcomes = self._allowed(one.transaction)
            visible = [one.value in seen[0], other.value in seen[1]]
            assert visible in [[each is True] * 2 for each in outcomes]

    async def check_producers(self, client: Any) -> None:
        """No producer id is issued twice, zombies are fenced, and a repeated batch is stored once."""
        used = {each.value for each in self._history.registers["producer ids",].changes[1:]}
        answer = await client.call(INIT, 4, transactional_id=None, transaction_timeout=MINUTE)
        assert answer.error_code is OK
        begun = {
            each.value
            for each in self._history.registers["producer ids",].changes
            if each.begun <= self._at
        }
        assert not (self._durable and answer.producer_id in begun & used)
        for each in self._history.newest_answers(self._at) if self._durable else ():
            assert await each.comes_again(client), each.partition

    async def check_epochs(self, client: Any) -> None:
        """Who takes over a transactional id fences everybody who had it."""
        if not self._durable:
            return
        holders = [each for each in self._allowed(self._history.registers["cashier",]) if each]
        async with asyncio.timeout(30):
            while True:
                answer = await client.call(
                    INIT, 4, transactional_id="cashier", transaction_timeout=MINUTE
                )
                if answer.error_code is not ErrorCode.concurrent_transactions:
                    break
        assert answer.error_code is OK
        for holder in holders:
            assert (answer.producer_id, answer.producer_epoch) > holder
