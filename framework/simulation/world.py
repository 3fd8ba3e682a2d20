"""What the models of one simulation share: chance, the network with its faults, the trace, the problems."""

from __future__ import annotations

import asyncio
import random
from contextlib import contextmanager
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from ..errors import CommitFenced
from .loop import PROCESS, Process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import anyio

    from ..worker import Worker
    from .consumer import GroupConsumer
    from .loop import SimulationLoop
    from .schedule import Event, How, Schedule, Target

T = TypeVar("T")

_LATENCIES: Final = (0.001, 0.002, 0.005, 0.02, 0.1, 0.3)
_OUTSIDE: Final = Context()  # of callbacks of servers: they are never paused with a member


class Step(NamedTuple):
    """One line of the trace: a message from `source` to `target`, at `at` seconds."""

    at: float
    source: str
    target: str
    text: str


class Problem(NamedTuple):
    """A rule that was broken.

    Attributes:
        rule: which one, in a few words; the same for all schedules that break it.
        text: what was seen.
    """

    rule: str
    text: str


class SimulatedMember(Process):
    """A process with a worker.

    Attributes:
        dead: it was killed. What it still does has no effect.
        scope: of its task; None before that runs.
        worker: None before it has started.
        consumer: its membership of the group.
        asked_to_end: when it was asked to drain; None before.
        slept_since_asked: whether it slept since then.
        last_commit: when its last commit arrives at the group.
        under_way: what it waits for: answers to its requests, the end of a rebalance.
        commits: how many of its commits the group has confirmed.
        answered: when the last of these came.
        is_fenced: the group has refused a commit since the last assignment.
        context: of its callbacks.
    """

    def __init__(self, number: int, life: int) -> None:
        super().__init__()
        self.number = number
        self.name = f"member {number}" if life == 1 else f"member {number} (life {life})"
        self.dead = False
        self.scope: anyio.CancelScope | None = None
        self.ended = asyncio.Event()
        self.worker: Worker | None = None
        self.consumer: GroupConsumer | None = None
        self.asked_to_end: float | None = None
        self.slept_since_asked = False
        self.last_commit = 0.0
        self.under_way = 0
        self.commits = 0
        self.answered = 0.0
        self.is_fenced = False
        self.context = Context()

    @contextmanager
    def waiting(self, loop: SimulationLoop) -> Iterator[None]:
        """Count what it waits for. A commit that is refused is refused however often it is sent."""
        self.under_way += 1
        is_repeated = False
        try:
            yield
        except CommitFenced:
            is_repeated, self.is_fenced = self.is_fenced, True
            raise
        finally:
            self.under_way -= 1
            if not is_repeated:
                self.answered = loop.now


def current_member() -> SimulatedMember:
    """Return the member whose code is running."""
    member = PROCESS.get()
    assert isinstance(member, SimulatedMember)  # noqa: S101  models are called by members only
    return member


class World:
    """The surroundings of the members in one simulation.

    Attributes:
        rng: decides what the schedule leaves to chance.
        trace: what has happened.
        problems: the rules that were broken.
        broken: done with the first of them.
        stood_still: when the machine did so last: its end.
    """

    def __init__(self, loop: SimulationLoop, schedule: Schedule) -> None:
        self.loop = loop
        self.rng = random.Random(schedule.seed)  # noqa: S311  chance that can be repeated
        self.trace: list[Step] = []
        self.problems: list[Problem] = []
        self.broken: asyncio.Future[None] = loop.create_future()
        self.stood_still = 0.0
        self._faults: list[Event] = []
        self._overtaken: list[_Request] = []
        self.expel: Callable[[SimulatedMember], None] = lambda _member: None

    def note(self, source: str, target: str, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append(Step(self.loop.now, source, target, text))

    def problem(self, rule: str, text: str) -> None:
        """Note that a rule is broken."""
        self.problems.append(Problem(rule, text))
        self.note("check", "check", f"BROKEN: {rule}: {text}")
        if not self.broken.done():
            self.broken.set_result(None)

    def arm(self, fault: Event) -> None:
        """Let a fault happen to the next request to its target."""
        self._faults.append(fault)

    def disarm(self) -> None:
        """Forget the faults that have not happened."""
        self._faults = []

    def later(self, seconds: float, call: Callable[..., object], *arguments: Any) -> None:
        """Call something outside of all members."""
        self.loop.call_later(seconds, call, *arguments, context=_OUTSIDE)

    def latency(self) -> float:
        """Return how long a message is under way, in seconds."""
        return self.rng.choice(_LATENCIES)

    def kill(self, member: SimulatedMember) -> None:
        """End a process at once: from now on nothing that it does has an effect."""
        if not member.dead and not member.ended.is_set():
            self.note(member.name, member.name, "is killed")
            member.dead = True
            if member.scope is not None:
                member.scope.cancel()
            if member.asleep:
                member.wake(self.loop)

    def sleep(self, member: SimulatedMember, seconds: float) -> None:
        """Hold a process back, as SIGSTOP does."""
        if member.dead or member.asleep or member.ended.is_set():
            return
        self.note(member.name, member.name, f"sleeps for {seconds:g} s")
        member.fall_asleep(self.loop)
        member.slept_since_asked = True
        self.later(seconds, self._wake, member)
        consumer = member.consumer
        if consumer is not None:
            consumer.silent_for(seconds)

    def _wake(self, member: SimulatedMember) -> None:
        if member.asleep:
            self.note(member.name, member.name, "wakes up")
            member.answered = self.loop.now
            member.wake(self.loop)

    async def request(
        self,
        target: Target,
        name: str,
        text: str,
        effect: Callable[[], T],
        error: Callable[[str], Exception],
        *,
        torn: Callable[[], object] | None = None,
        part: Callable[[], T] | None = None,
    ) -> T:
        """Send a request from the current member to a server, and return its answer.

        Args:
            target: which faults may happen to it.
            name: the server, for the trace.
            text: the request, for the trace.
            effect: what the server does; what it raises is its answer.
            error: makes the exception of a failed request.
            torn: what the server does instead, when it dies in between.
            part: what it does instead, when it refuses some of what is asked.
        """
        member = current_member()
        if member.dead:
            raise error("the process is dead")
        fault = self._fault(target, can_tear=torn is not None, can_divide=part is not None)
        if fault is not None and fault.how == "part" and part is not None:
            effect = part
        request = _Request(self, member, target, name, text, effect, error, torn, fault)
        if request.how in ("sleep before", "overtaken"):
            self.sleep(member, request.seconds)
        under_way = self.latency()
        if request.how in ("slow", "sleep before", "overtaken"):
            under_way += request.seconds
        if request.how == "overtaken":
            self._overtaken.append(request)
        if request.how == "late":
            self.later(under_way, request.fail, "the connection is lost")
            under_way = request.seconds
        elif target == "commit":
            # Commits of one connection arrive in the order in which they were sent.
            member.last_commit = max(self.loop.now + under_way, member.last_commit + 1e-6)
            under_way = member.last_commit - self.loop.now
        self.later(under_way, request.arrive)
        with member.waiting(self.loop):
            result: T = await request.answer
        return result

    def overtake(self, member: SimulatedMember) -> None:
        """Let the requests arrive that wait for a commit of another member, which this one has made."""
        arriving = [request for request in self._overtaken if request.member is not member]
        self._overtaken = [request for request in self._overtaken if request.member is member]
        for request in arriving:
            self._wake(request.member)
            request.arrive()

    def _fault(self, target: Target, *, can_tear: bool, can_divide: bool) -> Event | None:
        able = {"torn": can_tear, "part": can_divide}
        for fault in self._faults:
            if fault.target == target and able.get(fault.how, True):
                self._faults.remove(fault)
                return fault
        return None


class _Request:
    """A request that is under way to a server, and its answer."""

    def __init__(
        self,
        world: World,
        member: SimulatedMember,
        target: Target,
        name: str,
        text: str,
        effect: Callable[[], Any],
        error: Callable[[str], Exception],
        torn: Callable[[], object] | None,
        fault: Event | None,
    ) -> None:
        self.answer: asyncio.Future[Any] = world.loop.create_future()
        self.how: How = "" if fault is None else fault.how
        self.seconds = 0.0 if fault is None else fault.seconds
        self.member = member
        self._world = world
        self._target = target
        self._has_arrived = False
        self._name = name
        self._text = text
        self._effect = effect
        self._error = error
        self._torn = torn

    def arrive(self) -> None:
        """Let the server do what is asked, once, unless the fault comes first."""
        world, member = self._world, self.member
        if self._has_arrived:
            return
        self._has_arrived = True
        match self.how:
            case "refuse":
                self.fail("refused")
            case "kill before":
                self._tell("lost with its sender")
                world.kill(member)
            case "torn" if self._torn is not None:
                self._torn()
                self.fail("the server died, and has lost it")
            case "expel":
                world.expel(member)
                self._act()
            case _:
                self._act()

    def _act(self) -> None:
        try:
            value, raised = self._effect(), None
        except Exception as refused:  # noqa: BLE001  the server's answer
            value, raised = None, refused
        self._tell("" if raised is None else f"refused ({raised})")
        if self._target == "commit" and raised is None:
            self._world.overtake(self.member)
        match self.how:
            case "kill after":
                self._world.kill(self.member)
            case "hang":
                pass
            case "lose":
                self.fail("the answer is lost")
            case how:
                if how == "sleep after":
                    self._world.sleep(self.member, self.seconds)
                self._reply(value, raised)

    def _tell(self, what: str) -> None:
        self._world.note(
            self.member.name, self._name, f"{self._text}: {what}" if what else self._text
        )

    def fail(self, why: str) -> None:
        """Let its sender see an error."""
        self._tell(why)
        self._reply(None, self._error(why))

    def _reply(self, value: object, raised: Exception | None) -> None:
        self._world.later(self._world.latency(), _resolve, self.answer, value, raised)


def _resolve(answer: asyncio.Future[Any], value: object, raised: Exception | None) -> None:
    if answer.done():  # its sender has given up
        return
    if raised is None:
        answer.set_result(value)
    else:
        answer.set_exception(raised)
