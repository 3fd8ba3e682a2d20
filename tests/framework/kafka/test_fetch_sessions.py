"""What a fetch session asks for; no record is lost when a node forgets the session."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import pytest
from aiokafka.protocol.fetch import FetchRequest, FetchRequest_v4, FetchRequest_v11

from kmr.broker.apis.records.fetch_sessions import FetchSessions
from kmr.kafka.consumer import CommitOffset
from kmr.kafka.fetch_sessions import INVALID_EPOCH, UNKNOWN_SESSION, FetchSession
from kmr.record import TopicPartition

from .members import numbers, values

if TYPE_CHECKING:
    from .members import Consume, CreateTopic, Produce


class Answer(NamedTuple):
    """The beginning of a response."""

    session_id: int
    error_code: int = 0


def partition(number: int) -> TopicPartition:
    return TopicPartition("t", number)


def request(**offsets: int) -> FetchRequest:
    """Return a request for partitions `p0`, `p1`, ..., from these offsets."""
    return FetchRequest(
        500, 1, 1000, 0, [("t", [(int(name[1:]), at, 99) for name, at in offsets.items()])]
    )


def sent(session: FetchSession, wanted: FetchRequest) -> tuple[int, int, dict[int, int], list[int]]:
    """Return the id, the epoch, the named offsets and the forgotten partitions of a request."""
    built = session.ask(wanted).build(FetchRequest_v11)
    FetchRequest_v11.decode(built.encode())
    named = {each[0]: each[2] for _, partitions in built.topics for each in partitions}
    forgotten = [each for _, partitions in built.forgotten_topics_data for each in partitions]
    return built.session_id, built.session_epoch, named, sorted(forgotten)


def test_a_node_is_told_of_what_has_changed_only() -> None:
    session = FetchSession()
    assert sent(session, request(p0=5, p1=7)) == (0, 0, {0: 5, 1: 7}, [])
    assert session.accept(Answer(9), 1.0)
    wanted = request(p0=5, p1=8)
    assert sent(session, wanted) == (9, 1, {1: 8}, [])
    session.accept(Answer(9), 2.0)
    assert sent(session, wanted) == (9, 2, {}, [])
    session.accept(Answer(9), 3.0)
    assert sent(session, request(p1=8, p2=0)) == (9, 3, {2: 0}, [0])
    assert session.positions == {partition(1): 8, partition(2): 0}


def test_a_partition_was_answered_when_its_node_answered_a_request_for_it() -> None:
    session = FetchSession()
    session.ask(request(p0=5))
    assert session.answered_at(partition(0)) is None
    session.accept(Answer(9), 1.0)
    session.ask(request(p0=5, p1=0))
    assert (session.answered_at(partition(0)), session.answered_at(partition(1))) == (1.0, None)
    session.accept(Answer(9), 2.0)
    session.ask(request(p1=0))
    session.accept(Answer(9), 3.0)
    assert (session.answered_at(partition(0)), session.answered_at(partition(1))) == (2.0, 3.0)


@pytest.mark.parametrize("code", [UNKNOWN_SESSION, INVALID_EPOCH])
def test_a_refused_session_begins_anew_with_all_partitions(code: int) -> None:
    session, wanted = FetchSession(), request(p0=5)
    session.ask(wanted)
    session.accept(Answer(9), 1.0)
    session.ask(wanted)
    assert not session.accept(Answer(0, code), 2.0)
    assert session.answered_at(partition(0)) == 1.0
    assert sent(session, wanted) == (0, 0, {0: 5}, [])


def test_after_a_lost_answer_and_in_a_new_assignment_the_old_session_ends() -> None:
    session, wanted = FetchSession(), request(p0=5)
    session.ask(wanted)
    session.accept(Answer(9), 1.0)
    session.ask(wanted)
    session.lose()
    assert sent(session, wanted) == (9, 0, {0: 5}, [])
    session.accept(Answer(10), 2.0)
    assert sent(FetchSession(session.session_id), wanted) == (10, 0, {0: 5}, [])


def test_a_node_that_grants_no_session_is_asked_for_everything_each_time() -> None:
    session, wanted = FetchSession(), request(p0=5)
    for _ in range(2):
        assert sent(session, wanted) == (0, 0, {0: 5}, [])
        session.accept(Answer(0), 1.0)
    older = session.ask(wanted).build(FetchRequest_v4)
    assert older.topics == [("t", [(0, 5, 99)])]


def test_epochs_begin_anew_at_1() -> None:
    session = FetchSession()
    session.ask(request(p0=5))
    session.accept(Answer(9), 1.0)
    session._epoch = 2**31 - 1
    assert sent(session, request(p0=6))[1] == 2**31 - 1
    session.accept(Answer(9), 2.0)
    assert sent(session, request(p0=7))[1] == 1


async def test_idle_partitions_are_named_once(
    consume: Consume, create_topic: CreateTopic, produce: Produce
) -> None:
    await create_topic("t", 50)
    async with consume(fetch_max_wait=0.05) as member:
        named: list[int] = []
        news = anyio.Event()
        client = member.consumer._consumer._client
        send = client.send

        async def recorded(node: int, asked: Any, **options: Any) -> Any:
            nonlocal news
            if isinstance(asked, FetchRequest):
                named.append(sum(len(partitions) for _, partitions in asked.topics))
                news.set()
                news = anyio.Event()
            return await send(node, asked, **options)

        client.send = recorded
        await member.until_assigned(bool)
        while len(named) < 6:
            await news.wait()
        assert named[0] == 50
        assert sum(named[1:]) == 0
        del named[:]
        await produce("t", numbers(3), 7)
        await member.read(3)
        while sum(named) < 1 or named[-1]:
            await news.wait()
        assert sum(named) == 1, "the one whose offset has moved"


async def test_every_record_is_read_once_while_a_broker_forgets_sessions_and_partitions_pause(
    consume: Consume, create_topic: CreateTopic, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, partitions, use = random.Random(31), 4, FetchSessions.use

    def forgetful(sessions: FetchSessions, session_id: int) -> Any:
        session = use(sessions, session_id)
        match chance.randrange(6):
            case 0:
                return None
            case 1 if session is not None:
                session.epoch += 1
        return session

    monkeypatch.setattr(FetchSessions, "use", forgetful)
    await create_topic("t", partitions)
    async with consume(fetch_max_wait=0.02) as member:
        await member.until_assigned(bool)
        ends, found, paused = dict.fromkeys(range(partitions), 0), [], set[TopicPartition]()
        for _ in range(40):
            number = chance.randrange(partitions)
            first = ends[number]
            ends[number] += chance.randint(1, 3)
            await produce("t", numbers(first, ends[number]), number)
            if chance.random() < 0.3:
                paused.add(partition(number))
                member.consumer.pause([partition(number)])
            elif chance.random() < 0.3:
                member.consumer.resume(paused)
                paused.clear()
            with anyio.move_on_after(0.01):
                found += await member.consumer.poll()
        member.consumer.resume(paused)
        while sum(map(len, found)) < sum(ends.values()):
            found += await member.consumer.poll()
    for number, end in ends.items():
        assert values(each for each in found if each.partition == number) == numbers(end)


async def test_after_a_rebalance_the_ends_of_idle_partitions_are_told_again(
    consume: Consume, produce: Produce
) -> None:
    await produce("t", numbers(3))
    async with consume(fetch_max_wait=0.02) as member:
        assert values(await member.read(3)) == numbers(3)
        await member.consumer.commit({partition(0): CommitOffset(3)})
        fetcher = member.consumer._fetcher
        assert fetcher is not None

        async def until_answered() -> None:  # else its session is lost with the answer
            while fetcher._in_flight:  # noqa: ASYNC110  there is no event
                await anyio.sleep(0.01)

        member.on_revoked = until_answered
        member.partitions = frozenset()
        await member.consumer.join_anew()
        await member.until_assigned(bool)
        while member.consumer.end_offset(partition(0)) is None:  # noqa: ASYNC110  there is no event
            await anyio.sleep(0.01)
        assert member.consumer.end_offset(partition(0)) == 3
