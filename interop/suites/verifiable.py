"""confluent-kafka's verifiable producer and consumer, which its source distribution ships.

Apache Kafka's system tests drive such clients, and compare the records that the producer reports as
acknowledged with the consumers' reports of records, assignments and commits. This suite does the same.
Their consumer does not support cooperative rebalancing: it loses track of partitions that it keeps.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Final

from anyio import to_thread

from demo.processes import ChildFailed, Children
from interop.cached import FetchFailed
from interop.checks import CheckFailed
from interop.sdists import fetch_sdist, locked, unpack
from interop.suites.contract import Outcome, SuiteNotRun
from interop.suites.verifiable_process import start_consumer, start_producer
from kmr.spark.jvm import cache_directory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from interop.suites.verifiable_process import Place, VerifiableConsumer, VerifiableProducer

__all__ = ["Verifiable"]

_PARTITIONS: Final = 3
_MESSAGES: Final = 3_000
_LONG_SESSION: Final = ("--session-timeout", "60000")
"""Milliseconds: more than a consumer takes to come back, and than a slow machine makes it wait."""


class Verifiable:
    """Producers with every codec and acks, consumers that share, die, leave, come back."""

    name = "confluent-kafka"
    broker: Sequence[str] = ("--partitions", str(_PARTITIONS))

    @property
    def about(self) -> str:
        """With the version that is locked."""
        return f"the verifiable clients in the source distribution of {locked(self.name)}"

    async def run(self, bootstrap_servers: str, directory: Path) -> Outcome:
        """Every case, each with a topic and a group of its own."""
        try:
            folder = await to_thread.run_sync(_prepare, directory)
        except FetchFailed as error:
            raise SuiteNotRun(str(error)) from error
        passed: list[str] = []
        failed: dict[str, str] = {}
        for name, case in _cases().items():
            async with Children(directory / name) as children:
                try:
                    await case(_Scene(bootstrap_servers, folder, children, name))
                except (CheckFailed, ChildFailed) as error:
                    failed[name] = str(error)
                else:
                    passed.append(name)
        return Outcome(passed, failed)


class _Scene:
    """Clients of one case, on one topic and in one group, both named after it."""

    def __init__(self, servers: str, folder: Path, children: Children, name: str) -> None:
        self.name = name
        self._common = ("--topic", name, "--broker-list", servers)
        self._folder = folder
        self._children = children
        self._started = 0

    @property
    def partitions(self) -> set[Place]:
        """All of the topic's."""
        return {(self.name, partition) for partition in range(_PARTITIONS)}

    async def producer(self, *arguments: str, messages: int = _MESSAGES) -> VerifiableProducer:
        common = (*self._common, "--max-messages", str(messages))
        name = self._next("producer")
        return await start_producer(self._children, self._folder, name, *common, *arguments)

    async def consumer(self, *arguments: str) -> VerifiableConsumer:
        common = (*self._common, "--group-id", self.name)
        name = self._next("consumer")
        return await start_consumer(self._children, self._folder, name, *common, *arguments)

    async def member(self, *arguments: str) -> VerifiableConsumer:
        """A consumer that has partitions already."""
        consumer = await self.consumer(*arguments)
        await consumer.until(lambda: bool(consumer.assigned), "an assignment")
        return consumer

    def _next(self, kind: str) -> str:
        self._started += 1
        return f"{kind}-{self._started}"


def _cases() -> dict[str, Callable[[_Scene], Awaitable[None]]]:
    cases: dict[str, Callable[[_Scene], Awaitable[None]]] = {
        f"acks_{acks}": partial(_acknowledges, ("--acks", acks)) for acks in ("all", "1", "0")
    }
    cases |= {
        f"codec_{codec}": partial(_acknowledges, ("-X", f"conf_compression.type={codec}"))
        for codec in ("gzip", "snappy", "lz4", "zstd")
    }
    cases["idempotent"] = partial(_acknowledges, ("-X", "conf_enable.idempotence=true"))
    cases["keys"] = partial(_acknowledges, ("--repeating-keys", "7"))
    cases["resumes_where_it_has_committed"] = _resumes
    for strategy in ("range", "roundrobin"):
        arguments = ("--assignment-strategy", strategy)
        cases[f"member_dies_{strategy}"] = partial(_member_goes, arguments, dies=True)
        cases[f"member_leaves_{strategy}"] = partial(_member_goes, arguments, dies=False)
    cases["static_member_comes_back"] = _static_member
    cases["static_member_is_fenced"] = _fenced
    return cases


async def _acknowledges(arguments: tuple[str, ...], scene: _Scene) -> None:
    """Every message is acknowledged, at an offset of its own, and consumed."""
    producer = await scene.producer(*_acks(arguments))
    offsets = await producer.offsets()
    _expect("acknowledged messages", sum(map(len, offsets.values())), _MESSAGES)
    if arguments != ("--acks", "0"):  # acks=0 has no responses
        for place, found in offsets.items():
            _expect(f"offsets of {place}", found, list(range(len(found))))
    consumer = await scene.consumer(*_LONG_SESSION)
    await consumer.until(lambda: consumer.consumed >= _MESSAGES, "the last message")
    await consumer.stop()
    _expect("consumed messages", consumer.consumed, _MESSAGES)
    if arguments != ("--acks", "0"):
        _expect("committed", consumer.committed, {at: len(all_) for at, all_ in offsets.items()})


async def _resumes(scene: _Scene) -> None:
    """A consumer that comes back begins with the first message that its group has not committed."""
    await (await scene.producer()).offsets()
    first = await scene.consumer(*_LONG_SESSION)
    await first.until(lambda: first.consumed >= _MESSAGES, "the last message")
    await first.stop()
    await (await scene.producer()).offsets()
    second = await scene.consumer(*_LONG_SESSION)
    await second.until(lambda: second.consumed >= _MESSAGES, "the last message")
    await second.stop()
    _expect("messages consumed by the second", second.consumed, _MESSAGES)
    _expect_all_once([*first.ranges, *second.ranges], scene)


async def _member_goes(arguments: tuple[str, ...], scene: _Scene, *, dies: bool) -> None:
    """Two share the partitions; when one goes, the other gets all, and no message is left out."""
    earlier = await (await scene.producer()).offsets()
    staying = await scene.member(*arguments)
    going = await scene.consumer(*arguments)
    await going.until(lambda: _shared(scene, staying, going), "its share")
    consumed = going.consumed
    producer = await scene.producer("--throughput", "300")
    await going.until(lambda: going.consumed > consumed, "a message")
    if dies:
        going.kill()
    else:
        await going.stop()
    await staying.until(lambda: staying.assigned == scene.partitions, "all partitions")
    later = await producer.offsets()
    ends = {place: len(earlier[place]) + len(later[place]) for place in scene.partitions}
    await staying.until(lambda: staying.committed == ends, "the last commit")
    await staying.stop()
    _expect_none_missing([*staying.ranges, *going.ranges], ends)


async def _static_member(scene: _Scene) -> None:
    """A static member that comes back has its partitions again, without a rebalance of the others."""
    await (await scene.producer()).offsets()
    staying = await scene.member("--group-instance-id", "one", *_LONG_SESSION)
    other = await scene.consumer("--group-instance-id", "two", *_LONG_SESSION)
    await other.until(lambda: _shared(scene, staying, other), "its share")
    assignments, had = len(staying.assignments), other.assigned
    await other.stop()
    back = await scene.member("--group-instance-id", "two", *_LONG_SESSION)
    await (await scene.producer()).offsets()
    everything = 2 * _MESSAGES
    await back.until(
        lambda: staying.consumed + other.consumed + back.consumed >= everything, "the last message"
    )
    _expect("partitions of the one that came back", back.assigned, had)
    _expect("assignments of the other", len(staying.assignments), assignments)
    await back.stop()
    await staying.stop()


async def _fenced(scene: _Scene) -> None:
    """Of two members with one group.instance.id, the earlier one is fenced."""
    await (await scene.producer()).offsets()
    earlier = await scene.member("--group-instance-id", "one", *_LONG_SESSION)
    later = await scene.member("--group-instance-id", "one", *_LONG_SESSION)
    await earlier.until(lambda: earlier.wrote("fenced"), "an error")
    _expect("partitions of the later one", later.assigned, scene.partitions)
    earlier.kill()
    await later.stop()


def _acks(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """The script takes numbers."""
    return ("--acks=-1",) if arguments == ("--acks", "all") else arguments


def _shared(scene: _Scene, *members: VerifiableConsumer) -> bool:
    """Whether each of them has some, and together they have each partition once."""
    shares = [member.assigned for member in members]
    return (
        all(shares)
        and set().union(*shares) == scene.partitions
        and sum(map(len, shares)) == _PARTITIONS
    )


def _expect(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise CheckFailed(f"{what}: {found!r:.500}, not {expected!r:.500}")


def _expect_all_once(ranges: Sequence[tuple[Place, int, int]], scene: _Scene) -> None:
    for place in scene.partitions:
        following = 0
        for first, last in sorted((low, high) for at, low, high in ranges if at == place):
            _expect(f"the offset of {place} after {following - 1}", first, following)
            following = last + 1


def _expect_none_missing(ranges: Sequence[tuple[Place, int, int]], ends: dict[Place, int]) -> None:
    for place, end in ends.items():
        reached = 0
        for first, last in sorted((low, high) for at, low, high in ranges if at == place):
            if first > reached:
                raise CheckFailed(f"no consumer has offsets {reached} to {first - 1} of {place}")
            reached = max(reached, last + 1)
        _expect(f"offsets of {place} that were consumed", reached, end)


def _prepare(directory: Path) -> Path:
    archive = fetch_sdist(locked(Verifiable.name), cache_directory(os.environ) / "sdists")
    return unpack(archive, directory) / "src" / "confluent_kafka" / "kafkatest"
