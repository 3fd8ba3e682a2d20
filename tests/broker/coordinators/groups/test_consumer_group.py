"""Groups of KIP-848: no partition has two holders, assignments converge, and a restart loses nothing."""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from kmr.broker.coordinators.groups.assignors import (
    ASSIGNORS,
    Assignment,
    AssignorInput,
    range_,
    uniform,
)
from kmr.broker.coordinators.groups.consumer_group import ConsumerGroup
from kmr.broker.coordinators.groups.consumer_types import (
    ConsumerGroupState,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
)
from kmr.broker.coordinators.groups.group_types import GroupError, MemberIdentity
from kmr.broker.settings import BrokerSettings
from tests.examples import examples

TOPICS = {"a": (UUID(int=1), 4), "b": (UUID(int=2), 3)}
Partitions = frozenset[tuple[UUID, int]]


class Timers:
    """Timers that a test fires by hand."""

    def __init__(self) -> None:
        self.pending: list[tuple[float, Callable[[], object]]] = []

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Any:
        entry = (delay, callback)
        self.pending.append(entry)

        def cancel() -> None:
            if entry in self.pending:
                self.pending.remove(entry)

        return SimpleNamespace(cancel=cancel)


class System:
    """A group, and clients that revoke only when they choose to."""

    def __init__(self) -> None:
        self.settings = BrokerSettings(data_dir=Path("unused"), group_consumer_max_size=4)
        self.topics = dict(TOPICS)
        self.stored: dict[str | None, Any] = {}
        self.held: dict[str, Partitions] = {}
        self.target: dict[str, Partitions] = {}
        self.epochs: dict[str, int] = {}
        self.instances: dict[str, str | None] = {}
        self.joins = 0
        self.version = itertools.count()
        self.start()

    def start(self) -> None:
        self.timers = Timers()
        self.group = ConsumerGroup(
            "g",
            self.settings,
            self.timers,
            self.topics.get,
            lambda group: self.store(),
            topics_version=lambda: next(self.version),
        )
        if self.stored:
            self.group.restore(self._read())

    def _read(self) -> dict[str | None, Any]:
        return {key: json.loads(value) for key, value in self.stored.items()}

    def store(self) -> None:
        for key, value in self.group.changes().items():
            if value is None:
                self.stored.pop(key, None)
            else:
                self.stored[key] = json.dumps(value)
        self.group.mark_stored()

    def send(self, heartbeat: ConsumerHeartbeat) -> ConsumerHeartbeatResult:
        result = self.group.heartbeat(heartbeat)
        self.store()
        return result

    def join(self, *topics: str, instance: str | None = None, **more: Any) -> str:
        self.joins += 1
        member = f"m{self.joins}"
        result = self.send(
            ConsumerHeartbeat(
                member, 0, instance, rebalance_timeout=9.0, topics=topics, owned=frozenset(), **more
            )
        )
        assert result.error is None, result
        self.held[member] = frozenset()
        self.instances[member] = instance
        self.take(member, result)
        return member

    def beat(self, member: str) -> ConsumerHeartbeatResult:
        """Release what the target lacks, say what is held, take what is given."""
        self.held[member] &= self.target[member]
        result = self.send(
            ConsumerHeartbeat(
                member, self.epochs[member], self.instances[member], owned=self.held[member]
            )
        )
        assert result.error is None, result
        self.take(member, result)
        return result

    def take(self, member: str, result: ConsumerHeartbeatResult) -> None:
        assert result.epoch >= self.epochs.get(member, 0), "an epoch went back"
        self.epochs[member] = result.epoch
        if result.assignment is not None:
            self.target[member] = result.assignment
            self.held[member] |= result.assignment

    def forget(self, member: str) -> None:
        for each in (self.held, self.target, self.epochs, self.instances):
            each.pop(member, None)

    def settle(self) -> None:
        for _ in range(10):
            for member in self.held:
                self.beat(member)


class Model(RuleBasedStateMachine):
    """Clients join, leave, restart and lose responses in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.system = System()

    @rule(
        topics=st.sampled_from([("a",), ("b",), ("a", "b")]),
        assignor=st.sampled_from([None, "range"]),
    )
    def join(self, topics: tuple[str, ...], assignor: str | None) -> None:
        if len(self.system.held) < 4:
            self.system.join(*topics, assignor=assignor)

    @rule(at=st.integers(0, 3))
    def beat(self, at: int) -> None:
        if members := sorted(self.system.held):
            self.system.beat(members[at % len(members)])

    @rule(at=st.integers(0, 3))
    def beat_without_owned(self, at: int) -> None:
        if members := sorted(self.system.held):
            member = members[at % len(members)]
            result = self.system.send(ConsumerHeartbeat(member, self.system.epochs[member]))
            assert result.error is None
            self.system.take(member, result)

    @rule(at=st.integers(0, 3))
    def leave(self, at: int) -> None:
        if members := sorted(self.system.held):
            member = members[at % len(members)]
            assert self.system.send(ConsumerHeartbeat(member, -1)).error is None
            self.system.forget(member)

    @rule()
    def restart(self) -> None:
        self.system.start()

    @rule(count=st.integers(3, 6))
    def grow(self, count: int) -> None:
        topic, before = self.system.topics["b"]
        self.system.topics["b"] = (topic, max(before, count))

    @invariant()
    def no_partition_has_two_holders(self) -> None:
        held = [each for partitions in self.system.held.values() for each in partitions]
        assert len(held) == len(set(held))

    def teardown(self) -> None:
        system = self.system
        if not system.held:
            return
        system.settle()
        group = system.group
        assert group.state is ConsumerGroupState.STABLE
        read = set().union(*(each.subscription for each in group.members.values()))
        everything = {
            (topic, index)
            for name, (topic, count) in system.topics.items()
            if name in read
            for index in range(count)
        }
        assert set().union(*system.held.values()) == everything


def test_any_order_of_joins_leaves_losses_and_restarts_keeps_one_holder_and_converges() -> None:
    run_state_machine_as_test(
        Model, settings=settings(max_examples=examples(180), stateful_step_count=25, deadline=None)
    )


def test_a_partition_is_given_only_after_the_one_that_had_it_has_released_it() -> None:
    system = System()
    first = system.join("a")
    second = system.join("a")
    assert system.held[second] == frozenset()
    learns = system.send(ConsumerHeartbeat(first, system.epochs[first]))
    system.take(first, learns)
    assert not system.beat(second).assignment
    system.settle()
    assert {len(each) for each in system.held.values()} == {2}


def test_a_static_member_that_comes_back_has_its_partitions_and_fences_the_one_before() -> None:
    system = System()
    first = system.join("a", instance="i")
    system.settle()
    before = system.held[first]
    taken = system.group.heartbeat(
        ConsumerHeartbeat("x", 0, "i", rebalance_timeout=9.0, topics=("a",), owned=frozenset())
    )
    assert taken.error is GroupError.UNRELEASED_INSTANCE_ID
    assert system.send(ConsumerHeartbeat(first, -2, "i")).epoch == -2
    epoch = system.group.epoch
    system.start()
    second = system.join("a", instance="i")
    assert system.held[second] == before
    assert system.group.epoch == epoch
    assert system.send(ConsumerHeartbeat(first, 1, "i")).error is GroupError.FENCED_INSTANCE_ID


def test_a_member_with_another_epoch_is_fenced_and_may_not_commit() -> None:
    system = System()
    member = system.join("a")
    epoch = system.epochs[member]
    assert system.send(ConsumerHeartbeat(member, epoch + 1)).error is GroupError.FENCED_MEMBER_EPOCH
    check = system.group.check_commit
    assert check(MemberIdentity(member), epoch) is None
    assert check(MemberIdentity(member), epoch - 1) is GroupError.STALE_MEMBER_EPOCH
    assert check(MemberIdentity("other"), epoch) is GroupError.UNKNOWN_MEMBER_ID
    assert check(MemberIdentity(""), -1) is GroupError.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_release_in_time_is_removed() -> None:
    system = System()
    first = system.join("a")
    second = system.join("a")
    system.send(ConsumerHeartbeat(first, system.epochs[first], owned=system.held[first]))
    (expire,) = [callback for delay, callback in system.timers.pending if delay == 9.0]
    expire()
    assert list(system.group.members) == [second]
    system.forget(first)
    system.settle()
    assert len(system.held[second]) == 4


def test_an_unknown_assignor_and_a_member_too_many_are_refused() -> None:
    system = System()
    asked = ConsumerHeartbeat("m", 0, topics=("a",), assignor="sticky", owned=frozenset())
    assert system.group.heartbeat(asked).error is GroupError.UNSUPPORTED_ASSIGNOR
    for _ in range(4):
        system.join("a")
    asked = ConsumerHeartbeat("m", 0, topics=("a",), owned=frozenset())
    assert system.group.heartbeat(asked).error is GroupError.GROUP_MAX_SIZE_REACHED


def test_uniform_moves_only_what_makes_the_numbers_equal_and_range_gives_the_same_ranges() -> None:
    topics = dict(TOPICS.values())
    everything = list(topics)
    alone = uniform(AssignorInput({"x": everything}, topics), {})
    both = uniform(AssignorInput({"x": everything, "y": everything}, topics), alone)
    assert sorted(map(len, both.values())) == [3, 4]
    assert both["x"] < alone["x"]
    ranges = range_(AssignorInput({"x": everything, "y": everything}, topics), {})
    assert {index for _, index in ranges["y"]} == {2, 3}
    assert sum(map(len, ranges.values())) == 7


class Large:
    """A group of many members that read one topic, and the targets that were made for them."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        members: int,
        partitions: int,
        offload: Any = lambda work, done: done(work()),
    ) -> None:
        self.targets = 0
        self.looked_up = 0
        self.timers = Timers()
        settings = BrokerSettings(data_dir=Path("unused"))
        monkeypatch.setitem(ASSIGNORS, "uniform", self.assign)
        self.group = ConsumerGroup(
            *("g", settings, self.timers, self.topic, lambda _: None),
            topics_version=lambda: 1,
            offload=offload,
        )
        self.partitions = partitions
        self.epochs = {f"m{at}": self.beat(f"m{at}", 0, topics=("a",)) for at in range(members)}

    def assign(self, given: AssignorInput, before: Assignment) -> Assignment:
        self.targets += 1
        return uniform(given, before)

    def topic(self, _: str) -> tuple[UUID, int]:
        self.looked_up += 1
        return UUID(int=1), self.partitions

    def beat(self, member: str, epoch: int, **more: Any) -> int:
        heartbeat = ConsumerHeartbeat(
            member, epoch, rebalance_timeout=9.0, owned=frozenset(), **more
        )
        result = self.group.heartbeat(heartbeat)
        assert result.error is None, result
        return result.epoch


def test_a_large_group_has_one_new_target_a_second_however_many_members_join(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = Large(monkeypatch, members=100, partitions=3000)
    assert large.targets == 1
    (pause,) = [fire for delay, fire in large.timers.pending if delay == 1.0]
    pause()
    assert large.targets == 2
    for _ in range(2):
        for member, epoch in large.epochs.items():
            large.epochs[member] = large.beat(member, epoch)
    assert large.group.state is ConsumerGroupState.STABLE
    assert {len(each.assigned) for each in large.group.members.values()} == {30}
    assert large.targets == 2


def test_a_member_of_a_large_group_has_an_epoch_before_the_first_target_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computing: list[Any] = []
    large = Large(monkeypatch, 2, 3000, lambda *work: computing.append(work))
    assert min(large.epochs.values()) > 0
    (work, done), *_ = computing
    done(work())
    for member in ("m0", "m1"):
        large.beat(member, large.epochs[member])
    assert [len(each.assigned) for each in large.group.members.values()] == [3000, 0]


def test_a_target_that_was_computed_elsewhere_is_for_those_who_are_still_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computing: list[Any] = []

    def finish() -> None:
        work, done = computing.pop()
        done(work())

    def pause() -> None:
        (fire,) = [fire for delay, fire in large.timers.pending if delay == 1.0]
        large.timers.pending = [each for each in large.timers.pending if each[0] != 1.0]
        fire()

    large = Large(monkeypatch, 3, 3000, lambda *work: computing.append(work))
    static = ConsumerHeartbeat("s1", 0, "s", rebalance_timeout=9.0, topics=("a",))
    large.group.heartbeat(static)
    finish()
    pause()
    assert len(computing) == 1, "three members have joined since"
    large.group.heartbeat(ConsumerHeartbeat("m0", -1))
    large.group.heartbeat(ConsumerHeartbeat("s1", -2, "s"))
    large.group.heartbeat(replace(static, member_id="s2"))
    finish()
    pause()
    finish()
    held = {member: len(parts) for member, parts in large.group.target.items()}
    assert held == {"m1": 1000, "m2": 1000, "s2": 1000}
    assert large.group.assignment_epoch == large.group.epoch
    pause()
    large.group.heartbeat(ConsumerHeartbeat("m1", -1))
    large.group.heartbeat(ConsumerHeartbeat("m2", large.group.members["m2"].epoch))
    _, failed = computing.pop()
    failed(None)
    pause()
    finish()
    assert set(large.group.target) == {"m2", "s2"}, "what failed is tried again"


def test_a_heartbeat_without_news_looks_up_no_topic_and_stores_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = Large(monkeypatch, members=10, partitions=20)
    for member, epoch in large.epochs.items():
        large.epochs[member] = large.beat(member, epoch)
    large.group.mark_stored()
    looked_up, targets = large.looked_up, large.targets
    result = large.group.heartbeat(ConsumerHeartbeat("m0", large.epochs["m0"]))
    assert (result.error, result.assignment) == (None, None)
    assert (large.looked_up, large.targets) == (looked_up, targets)
    assert large.group.changes() == {}
