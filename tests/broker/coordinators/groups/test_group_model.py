"""A group keeps its invariants under any order of requests, timeouts and disconnects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kmr.broker.coordinators.groups.group_types import (
    GroupError,
    GroupState,
    JoinResult,
    MemberIdentity,
    SyncResult,
)
from tests.examples import examples

if TYPE_CHECKING:
    from tests.broker.coordinators.conftest import Answer, GroupBench

PROTOCOLS = ("range", "sticky", "roundrobin")
FATAL = {GroupError.FENCED_INSTANCE_ID}
FORGET_ID = {GroupError.UNKNOWN_MEMBER_ID, GroupError.INCONSISTENT_GROUP_PROTOCOL}


@dataclass(eq=False)
class Client:
    """A consumer: joins, syncs, heartbeats, and starts over when the group asks for it."""

    bench: GroupBench
    instance_id: str | None
    needs_id_first: bool
    protocols: dict[str, bytes]
    member_id: str = ""
    joining: Answer[JoinResult] | None = None
    joined: JoinResult | None = None
    syncing: Answer[SyncResult] | None = None
    assignment: bytes | None = None
    fenced: bool = False
    generations: list[int] = field(default_factory=list)

    @property
    def settled(self) -> bool:
        return self.assignment is not None

    def step(self) -> None:
        """Do the next thing that the protocol asks for."""
        if self.fenced:
            return
        if self.joining is not None:
            self._read_join(self.joining)
        elif self.joined is None:
            self.join()
        elif self.assignment is None:
            self._sync(self.joined)
        else:
            self._obey(self.bench.heartbeat(self.joined, self.instance_id))

    def join(self) -> None:
        self.start_over()
        self.joining = self.bench.join(
            self.member_id,
            instance_id=self.instance_id,
            protocols=self.protocols,
            require_known_member_id=self.needs_id_first,
        )

    def start_over(self) -> None:
        self.joining = self.joined = self.syncing = self.assignment = None

    def _read_join(self, answer: Answer[JoinResult]) -> None:
        if not answer.done():
            return
        self.joining = None
        if answer.value.error is GroupError.MEMBER_ID_REQUIRED:
            self.member_id = answer.value.member_id
        elif self._obey(answer.value.error):
            self.joined = answer.value
            self.member_id = answer.value.member_id
            self.generations.append(answer.value.generation)

    def _sync(self, joined: JoinResult) -> None:
        if self.syncing is None:
            plan = {
                member.member_id: f"{member.member_id}@{joined.generation}".encode()
                for member in joined.members
            }
            self.syncing = self.bench.sync(
                joined, None if joined.skip_assignment else plan, self.instance_id
            )
        if self.syncing.done():
            answer, self.syncing = self.syncing.value, None
            if self._obey(answer.error):
                self.assignment = answer.assignment

    def _obey(self, error: GroupError | None) -> bool:
        if error is not None:
            self.start_over()
            self.fenced = error in FATAL
            if error in FORGET_ID:
                self.member_id = ""
        return error is None


class GroupMachine(RuleBasedStateMachine):
    """Clients that come, go, vanish, restart and dawdle."""

    def __init__(self, bench: GroupBench) -> None:
        super().__init__()
        self.bench = bench
        self.group = bench.group
        self.clients: list[Client] = []
        self.answers: list[Answer[JoinResult] | Answer[SyncResult]] = []
        self.history: list[tuple[MemberIdentity, int]] = []
        self.assigners: dict[int, str] = {}
        self.instances: dict[str, str] = {}
        self.last_generation = 0

    def pick(self, number: int) -> Client:
        return self.clients[number % len(self.clients)]

    def note(self, client: Client) -> None:
        """Record the answers, and the open requests."""
        self.answers += [each for each in (client.joining, client.syncing) if each is not None]
        joined = client.joined
        if joined is None:
            return
        self.history.append(
            (MemberIdentity(client.member_id, client.instance_id), joined.generation)
        )
        if client.instance_id is not None:
            self.instances[client.member_id] = client.instance_id
        if joined.leader_id == joined.member_id and not joined.skip_assignment:
            assigner = self.assigners.setdefault(joined.generation, joined.member_id)
            assert assigner == joined.member_id, "two leaders in one generation"
            ids = [member.member_id for member in joined.members]
            assert joined.member_id in ids
            assert len(ids) == len(set(ids))
        else:
            assert not joined.members or joined.skip_assignment
        if client.assignment is not None:
            self.check_assignment(client, joined)

    def check_assignment(self, client: Client, joined: JoinResult) -> None:
        made_for, _, generation = (client.assignment or b"").decode().rpartition("@")
        assert int(generation) == joined.generation
        assert made_for == client.member_id or (
            client.instance_id is not None
            and self.instances.get(made_for, made_for[:1]) == client.instance_id
        )

    def expected(self, identity: MemberIdentity, generation: int) -> GroupError | None:
        """Return the expected answer to a request of this member, seen from outside."""
        members = self.group.describe().members
        static = {member.instance_id: member.member_id for member in members}
        if identity.instance_id is not None and identity.instance_id in static:
            if static[identity.instance_id] != identity.member_id:
                return GroupError.FENCED_INSTANCE_ID
        elif identity.member_id not in {member.member_id for member in members}:
            return GroupError.UNKNOWN_MEMBER_ID
        if generation != self.group.generation:
            return GroupError.ILLEGAL_GENERATION
        return None

    @initialize(count=st.integers(1, 3))
    def some_clients(self, count: int) -> None:
        for _ in range(count):
            self.comes(None, needs_id_first=True, protocols=["range"])

    @precondition(lambda self: len(self.clients) < 6)
    @rule(
        instance_id=st.sampled_from([None, None, "a", "b"]),
        needs_id_first=st.booleans(),
        protocols=st.lists(st.sampled_from(PROTOCOLS), min_size=1, unique=True),
    )
    def comes(self, instance_id: str | None, needs_id_first: bool, protocols: list[str]) -> None:
        # Everybody supports "range", so that the group can always agree.
        choices = dict.fromkeys((*protocols, "range"), b"")
        self.clients.append(Client(self.bench, instance_id, needs_id_first, choices))

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 5), times=st.integers(1, 4))
    def steps(self, number: int, times: int) -> None:
        client = self.pick(number)
        for _ in range(times):
            client.step()
            self.note(client)

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 5))
    def changes_its_topics(self, number: int) -> None:
        client = self.pick(number)
        if client.fenced:
            return
        client.protocols = {name: data + b"+" for name, data in client.protocols.items()}
        client.join()
        self.note(client)

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 5))
    def leaves(self, number: int) -> None:
        client = self.pick(number)
        self.clients.remove(client)
        if client.member_id:
            self.bench.leave(client.member_id, client.instance_id)

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 5))
    def vanishes(self, number: int) -> None:
        client = self.pick(number)
        self.clients.remove(client)
        for answer in (client.joining, client.syncing):
            if answer is not None:
                answer.gone = True

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 5))
    def restarts(self, number: int) -> None:
        client = self.pick(number)
        self.vanishes(number)
        self.clients.append(
            Client(self.bench, client.instance_id, client.needs_id_first, client.protocols)
        )

    @rule(seconds=st.sampled_from([0.1, 3, 9, 11, 61, 301]))
    def time_passes(self, seconds: float) -> None:
        self.bench.clock.advance(seconds)

    @precondition(lambda self: self.history)
    @rule(number=st.integers(0, 1000))
    def an_old_request_arrives(self, number: int) -> None:
        identity, generation = self.history[number % len(self.history)]
        expected, state = self.expected(identity, generation), self.group.state
        heartbeat = self.group.heartbeat(identity, generation)
        if expected is None and state is GroupState.PREPARING_REBALANCE:
            assert heartbeat is GroupError.REBALANCE_IN_PROGRESS
        else:
            assert heartbeat is expected
        commit = self.group.check_commit(identity, generation)
        if expected is None and state is GroupState.COMPLETING_REBALANCE:
            assert commit is GroupError.REBALANCE_IN_PROGRESS
        else:
            assert commit is expected

    @rule()
    def all_settle(self) -> None:
        """With clients that behave, a group becomes stable with all of them."""
        for _ in range(400):
            for client in self.clients:
                client.step()
                self.note(client)
            self.bench.clock.advance(1)
            living = [client for client in self.clients if not client.fenced]
            members = {member.member_id for member in self.group.describe().members}
            final = GroupState.STABLE if living else GroupState.EMPTY
            if (
                self.group.state is final
                and members == {client.member_id for client in living}
                and all(client.settled for client in living)
            ):
                break
        else:
            raise AssertionError("the group does not settle")
        assert len({client.assignment for client in living}) == len(living)

    @invariant()
    def generations_never_go_back(self) -> None:
        assert self.group.generation >= self.last_generation
        self.last_generation = self.group.generation
        for client in self.clients:
            assert client.generations == sorted(client.generations)

    @invariant()
    def the_state_fits_the_members(self) -> None:
        members, state = self.group.describe().members, self.group.state
        if state is not GroupState.PREPARING_REBALANCE:
            assert (state is GroupState.EMPTY) == (not members)
        if members:
            assert self.bench.clock.pending

    def teardown(self) -> None:
        """All requests are answered in the end, and an empty group runs no timers."""
        self.bench.clock.advance(3600)
        assert all(answer.done() for answer in self.answers)
        assert self.group.state is GroupState.EMPTY
        assert self.bench.clock.pending == 0


def test_the_invariants_hold_in_any_order_of_events(make_bench: type[GroupBench]) -> None:
    class Machine(GroupMachine):
        def __init__(self) -> None:
            super().__init__(make_bench())

    run_state_machine_as_test(
        Machine,
        settings=settings(max_examples=examples(150), stateful_step_count=40, deadline=None),
    )
