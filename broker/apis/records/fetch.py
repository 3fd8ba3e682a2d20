"""Fetch 4 to 18: read records from the logs, with long polling.

Version 4 added transactions (KIP-98), 5 the log start offset, 7 sessions (KIP-227), 9 leader epochs
(KIP-320), 11 the client's rack (KIP-392), 13 topic ids (KIP-516); newer versions are for
replicas. The first batch is returned even if it exceeds the limits (KIP-74).

Differs from Kafka: racks have no effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from ...authorization.rules import Operation, Resource
from ...log.records import first_batches, parse_header
from ...log.results import LogError
from ...protocol.fetch_request import (
    FINAL_EPOCH,
    FULL_FETCHES,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchReader,
)
from ...protocol.fetch_response import (
    ABORTED_TRANSACTION_BYTES,
    FetchResponseWriter,
    fetch_response_overhead,
)
from ...topics.topic import Watch
from ...turns import in_turns
from ..api import LEADER_EPOCH, SMALL_BYTES, RawApi, Reply, read_error
from .fetch_sessions import IDLE, Resting, are_resting
from .long_poll import Lacking, LongPoll
from .plain_fetch import MOST_PARTITIONS, READ_COMMITTED, PlainFetch, readable

if TYPE_CHECKING:
    from collections.abc import Generator

    from ...protocol.fetch_request import FetchFrame, FetchPartition
    from ...protocol.fetch_response import Shown
    from ...protocol.produce_frames import TopicKey
    from ...topics.topic import Partition
    from ..api import RequestContext
    from .fetch_sessions import FetchSession, Topics

_READER = b"reader"
_LEAST_BYTES = 64 * 1024  # of records in a response, while memory is short
_FIRST_WITH_IDS = 13
_FEW_PARTITIONS = 500  # are looked up in one turn
_SLICE_PARTITIONS = 20  # of others


T = TypeVar("T")


class _Wanted(NamedTuple):
    """A partition of the request; the client may read up to `limit` (exclusive)."""

    partition_index: int
    offset: int
    max_bytes: int
    partition: Partition | None
    error: ErrorCode
    limit: int = 0
    has_records: bool = False
    shown: Shown = (-1, -1, -1)


_Topics = Sequence[tuple["TopicKey", Sequence[_Wanted]]]


class _Found:
    """The partitions of a request as they are now; `wanted_bytes` of records are wanted at most."""

    __slots__ = ("has_errors", "partitions", "topics", "wanted_bytes")

    def __init__(self) -> None:
        self.topics: list[tuple[TopicKey, list[_Wanted]]] = []
        self.partitions: list[Partition] = []
        self.has_errors = False
        self.wanted_bytes = 0


class _Idle(NamedTuple):
    """A fetch without a session that found nothing, and its response.

    A client without records sends the same bytes again and again. They have the same response until there
    is news of one of the partitions.
    """

    body: bytes
    request: FetchFrame
    resting: Sequence[Resting]
    response: bytes


class _Filling:
    """A response that is being written into `buffer`.

    Attributes:
        added: bytes and number of offsets of each partition with records.
        errors: the error codes of partitions.
        said: what the response says of each partition of a session, None for an error, and whether it has
            records.
        size: bytes of records, and of lists of aborted transactions.
        has_more: whether limits left records out.
    """

    __slots__ = ("added", "buffer", "errors", "has_more", "said", "size", "writer")

    def __init__(
        self, buffer: memoryview, version: int, topics: int, session: FetchSession | None
    ) -> None:
        self.buffer = buffer
        session_id = NO_SESSION if session is None else session.session_id
        self.writer = FetchResponseWriter(buffer, version, topics, session_id=session_id)
        self.added: list[tuple[Partition, int, int]] = []
        self.errors: list[int] = []
        self.said: list[tuple[TopicKey, int, Shown | None, bool]] = []
        self.size = 0
        self.has_more = False


def _fetch(context: RequestContext, body: memoryview) -> Reply:
    if len(body) > SMALL_BYTES:
        return Reply(later=_fetch_many(context, bytes(body)))
    idle: _Idle | None = context.remembered.get(IDLE)
    if idle is not None and len(idle.body) == len(body) and idle.body == bytes(body):
        return _answered(Fetch(context, idle.request, idle))
    request = _read(context, body)
    if _is_plain(request):
        return _answered(PlainFetch(context, request, partial(Fetch, context, request)))
    fetch = Fetch(context, request, body=body)
    if fetch.is_large:
        return Reply(later=fetch.answer_in_turns())
    return _answered(fetch)


def _answered(fetch: Fetch | PlainFetch) -> Reply:
    answer = fetch.answer_now()
    return Reply(later=LongPoll(fetch, answer).reply) if isinstance(answer, Lacking) else answer


def _is_plain(request: FetchFrame) -> bool:
    count = 0
    for _, partitions in request.topics:
        count += len(partitions)
    return 0 < count <= MOST_PARTITIONS and request[4:6] == (NO_SESSION, FINAL_EPOCH)


async def _fetch_many(context: RequestContext, body: bytes) -> Reply:
    """Fetch from so many partitions that reading the request alone takes long."""
    request = await context.services.compute(_read, context, memoryview(body))
    return await Fetch(context, request).answer_in_turns()


def _read(context: RequestContext, body: memoryview) -> FetchFrame:
    reader: FetchReader | None = context.remembered.get(_READER)
    if reader is None:
        reader = FetchReader(context.api_version, context.services.max_elements)
        context.remembered[_READER] = reader
    return reader.read(body)


class Fetch:
    """One fetch request on its way to a response.

    Attributes:
        buffers: where its response is from.
        deadline: when to respond with what there is (monotonic seconds, the loop's time).
        out_of_time: whether that time has come.
    """

    def __init__(
        self,
        context: RequestContext,
        request: FetchFrame,
        idle: _Idle | None = None,
        body: memoryview | None = None,
    ) -> None:
        """`idle`: the memory of the same request, if it found nothing the last time. `body`: of this one."""
        services = context.services
        self._context = context
        self._version = context.api_version
        self._request = request
        self._registry = services.topics
        self.buffers = services.response_buffers
        self._max_bytes = min(request.max_bytes, services.node.settings.fetch_max_bytes)
        self._read_committed = request.isolation_level == READ_COMMITTED
        self._is_incremental = request.session_epoch not in FULL_FETCHES
        self._session: FetchSession | None = None
        self._refusal = ErrorCode.none
        self._topics: Topics = request.topics
        self._open_session()
        self._partitions = 0
        for _, partitions in self._topics:
            self._partitions += len(partitions)
        self._overhead = fetch_response_overhead(self._topics, self._partitions)
        self.deadline = monotonic() + request.max_wait_ms / 1000
        self.out_of_time = request.max_wait_ms <= 0
        self._buffer: memoryview | None = None
        self._result: Reply | Lacking = Lacking()
        self._idle = idle
        self._body = b"" if idle is None else idle.body
        """To remember the response by, if there are no records."""
        if (
            body is not None
            and self._partitions > MOST_PARTITIONS
            and request.session_epoch == FINAL_EPOCH
        ):
            self._body = bytes(body)

    def _open_session(self) -> None:
        """Find the session that the request continues, or begin or end one."""
        request, sessions = self._request, self._context.services.fetch_sessions
        by_id = self._version >= _FIRST_WITH_IDS
        if not self._is_incremental:
            if request.session_id:
                sessions.end(request.session_id)
            if request.session_epoch == INITIAL_EPOCH and self._exist_and_are_readable():
                self._session = sessions.create(request.topics, by_id=by_id)
            return
        session = sessions.use(request.session_id)
        if session is None:
            self._refusal = ErrorCode.fetch_session_id_not_found
        elif session.epoch != request.session_epoch:
            self._refusal = ErrorCode.invalid_fetch_session_epoch
        elif session.by_id != by_id:
            self._refusal = ErrorCode.fetch_session_topic_id_error
        else:
            before = len(session)
            session.update(request.topics, request.forgotten)
            session.turn()
            self._topics = session.topics()
            self._session = session
            if (
                not 0 < len(session) <= self._context.services.max_elements
                or (len(session) > before and not sessions.make_room())
                or not self._exist_and_are_readable()
            ):
                sessions.end(session.session_id)
                self._session = None

    def _exist_and_are_readable(self) -> bool:
        """Whether the client may read all topics that the request names, and their partitions exist.

        A session remembers no others: it would keep whatever a client has thought up.
        """
        for key, partitions in self._request.topics:
            existing, refusal = readable(self._context, key)
            if refusal or any(not 0 <= each[0] < len(existing) for each in partitions):
                return False
        return True

    @property
    def is_large(self) -> bool:
        """Whether an attempt may take longer than one turn."""
        return self._partitions > _FEW_PARTITIONS

    def answer_now(self, buffer: memoryview | None = None) -> Reply | Lacking:
        """Return the response, or what it lacks. `buffer`, if it was lacking, belongs to the fetch now."""
        for _ in self._attempt(buffer):
            pass
        return self._result

    async def answer_in_turns(self) -> Reply:
        """Return the response when there are enough records, or when the client's `max_wait` is over."""
        buffer: memoryview | None = None
        while True:
            with closing(self._attempt(buffer)) as steps:
                async for _ in in_turns(steps):
                    pass
            result, buffer = self._result, None
            if isinstance(result, Reply):
                return result
            if result.buffer_bytes:
                buffer = await self.buffers.wait(result.buffer_bytes)
            else:
                await self._wait(result)

    async def _wait(self, lacking: Lacking) -> None:
        due = asyncio.Event()
        with Watch(lacking.partitions, lacking.missing_bytes, due.set):
            try:
                async with asyncio.timeout_at(self.deadline):
                    await due.wait()
            except TimeoutError:
                self.out_of_time = True

    def answer_without_news(self) -> Reply:
        """Return a response without partitions, whatever there is."""
        if self._refusal:
            return self._refused()
        buffer = self.buffers.take_beyond_limit(1)
        return self._counted(_Filling(buffer, self._version, 0, self._session), ())

    def _attempt(self, buffer: memoryview | None) -> Generator[None]:
        """Make the response if nothing is lacking, in a step for each partition; set `_result`."""
        self._buffer = buffer
        try:
            resting: Sequence[Resting] = ()
            if self._idle is not None or (self._session is not None and self._is_incremental):
                resting = self._resting()
            if resting and not self._is_over:
                partitions = [each.partition for each in resting]
                self._result = Lacking(partitions, self._request.min_bytes)
            elif resting and self._idle is not None:
                self._result = self._repeated(self._idle.response)
            elif resting or self._refusal:
                self._result = self.answer_without_news()
            else:
                found = _Found()
                for key, wanted in self._topics:
                    topic: list[_Wanted] = []
                    found.topics.append((key, topic))
                    existing, refusal = readable(self._context, key)
                    for some in _slices(wanted):
                        self._look_up(found, topic, some, existing, refusal)
                        yield
                if found.wanted_bytes or self._suffices(found, 0):
                    yield from self._read_records(found)
                else:
                    self._result = Lacking(found.partitions, self._request.min_bytes)
        finally:
            self._take_buffer(0)

    def _suffices(self, found: _Found, size: int) -> bool:
        """Whether to send a response with `size` bytes of records instead of waiting."""
        return (
            size >= self._request.min_bytes
            or found.has_errors
            or not self._partitions
            or self._is_over
        )

    def _take_buffer(self, size: int) -> memoryview | None:
        """Return a buffer of at least `size` bytes, and keep no other; None if there is none."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None and len(buffer) >= size > 0:
            return buffer
        if buffer is not None:
            self.buffers.put(buffer)
        return self.buffers.take(size) if size else None

    # -- looking up --------------------------------------------------------------------------------

    def _look_up(
        self,
        found: _Found,
        topic: list[_Wanted],
        partitions: Sequence[FetchPartition],
        existing: Sequence[Partition],
        refusal: ErrorCode,
    ) -> None:
        """Find some partitions of a topic, of which these exist."""
        for each in partitions:
            wanted = self._wanted(each, existing, refusal)
            topic.append(wanted)
            if wanted.partition is not None:
                found.partitions.append(wanted.partition)
            if wanted.error:
                found.has_errors = True
            elif wanted.has_records:
                found.wanted_bytes += max(wanted.max_bytes, 1)

    def _wanted(
        self, each: FetchPartition, existing: Sequence[Partition], refusal: ErrorCode
    ) -> _Wanted:
        index, leader_epoch, offset, max_bytes = each
        if not 0 <= index < len(existing):
            error = refusal or ErrorCode.unknown_topic_or_partition
            return _Wanted(index, offset, max_bytes, None, error)
        partition = existing[index]
        if leader_epoch > LEADER_EPOCH:
            return _Wanted(index, offset, max_bytes, partition, ErrorCode.unknown_leader_epoch)
        shown = end, stable, start = partition.offsets()
        limit = stable if self._read_committed else end
        error = ErrorCode.none if start <= offset <= end else ErrorCode.offset_out_of_range
        has_records = not error and offset < limit
        return _Wanted(index, offset, max_bytes, partition, error, limit, has_records, shown)

    def _resting(self) -> Sequence[Resting]:
        """Return the partitions if the client knows all of them, and nothing has changed."""
        session, idle = self._session, self._idle
        resting: Sequence[Resting] = ()
        if session is not None:
            resting = session.still_resting(read_committed=self._read_committed)
        elif idle is not None and are_resting(idle.resting, read_committed=self._read_committed):
            resting = idle.resting
        if resting and self._context.services.authorizer is not None:
            topics = {each.partition.topic for each in resting}
            if not all(
                self._context.allows(Operation.READ, Resource.TOPIC, each) for each in topics
            ):
                return ()
        return resting

    def _news(self, topics: _Topics, session: FetchSession) -> _Topics:
        """Return what the client of a session does not know."""
        news = []
        for key, partitions in topics:
            changed = [
                each
                for each in partitions
                if each.has_records
                or each.error
                or session.has_news(key, each.partition_index, each.shown)
            ]
            if changed:
                news.append((key, changed))
        return news

    @property
    def _is_over(self) -> bool:
        """Whether to respond now with what there is."""
        return self.out_of_time or self._request.min_bytes <= 0 or self._registry.stopping

    # -- reading -----------------------------------------------------------------------------------

    def _read_records(self, found: _Found) -> Generator[None]:
        """Read records into a buffer that the first batch fits into, some partitions at each step.

        If there is no memory for as much as the client wants, the response has less.
        """
        news: _Topics = found.topics
        if self._session is not None and self._is_incremental:
            news = self._news(news, self._session)
        size = self._overhead + min(found.wanted_bytes, max(self._max_bytes - self._overhead, 0))
        if self._buffer is not None:
            size = min(size, len(self._buffer))
        least = min(size, self._overhead + _LEAST_BYTES)
        while True:
            self._buffer = buffer = self._take_buffer(size) or self._take_buffer(least)
            if buffer is None:
                self._result = Lacking(buffer_bytes=least)
                return
            filling = _Filling(buffer, self._version, len(news), self._session)
            needed_bytes = 0
            for key, partitions in news:
                filling.writer.topic(key, len(partitions))
                for some in _slices(partitions):
                    needed_bytes = needed_bytes or self._fill(filling, key, some)
                    yield
                filling.writer.end_topic()
            if not needed_bytes:
                break
            size = least = needed_bytes + self._overhead
        if filling.has_more or self._suffices(found, filling.size):
            self._buffer = None
            self._result = self._counted(filling, found.topics)
        else:
            self._result = Lacking(found.partitions, self._request.min_bytes - filling.size)

    def _fill(self, filling: _Filling, key: TopicKey, partitions: Sequence[_Wanted]) -> int:
        """Write partitions; return 0, or what the first batch of the response needs in a larger buffer."""
        for wanted in partitions:
            size, errors = filling.size, len(filling.errors)
            if wanted.error or wanted.partition is None:
                self._no_records(filling, wanted)
            elif not wanted.has_records:
                filling.writer.empty_partition(
                    wanted.partition_index, wanted.shown, read_committed=self._read_committed
                )
            elif needed_bytes := self._fill_partition(filling, wanted, wanted.partition):
                return needed_bytes
            if self._session is not None:
                shown = wanted.shown if len(filling.errors) == errors else None
                has_records = filling.size > size
                filling.said.append((key, wanted.partition_index, shown, has_records))
        return 0

    def _fill_partition(self, filling: _Filling, wanted: _Wanted, partition: Partition) -> int:
        """Write a partition with records; the first batch of the response ignores the limits."""
        writer, size = filling.writer, filling.size
        offset, limit = wanted.offset, wanted.limit
        start, room = writer.position, len(filling.buffer) - self._overhead
        writer.partition(wanted.partition_index, wanted.shown, read_committed=self._read_committed)
        most_bytes = max(0, min(wanted.max_bytes, self._max_bytes - size, room - size))
        try:
            records = writer.begin_records(most_bytes)
            added, _, end, needed_bytes = partition.log.read_into(offset, records, limit)
            if needed_bytes and not size:
                if needed_bytes > room:
                    return needed_bytes
                records = writer.begin_records(needed_bytes)
                added, _, end, _ = partition.log.read_into(offset, records, limit)
        except (LogError, OSError) as error:
            writer.position = start
            code = (
                self._unknown  # deleted since it was looked up
                if partition.closed
                else read_error(partition, error)
            )
            self._no_records(filling, wanted._replace(error=code))
            return 0
        aborted: Sequence[tuple[int, int]] = ()
        if self._read_committed and added:
            found = partition.log.producers.aborted.between(offset, end)
            aborted = [(each.producer_id, each.first_offset) for each in found]
        list_bytes = len(aborted) and (len(aborted) + 1) * ABORTED_TRANSACTION_BYTES
        if size + added + list_bytes > room:
            needed_bytes = parse_header(records).size + list_bytes
            rest = room - size - list_bytes
            added, end = first_batches(records[:added], lambda batch: batch.end <= rest)
            if not added:
                if not size:
                    return needed_bytes
                aborted, list_bytes = (), 0
        writer.end_records(added, aborted)
        filling.size += added + list_bytes
        if not added or end < limit:
            filling.has_more = True
        if added:
            filling.added.append((partition, added, end - offset))
        return 0

    def _counted(self, filling: _Filling, topics: _Topics) -> Reply:
        """Return the response, which is sent now; count its records and errors, note what is known then."""
        for partition, size, offsets in filling.added:
            partition.fetched_bytes += size
            partition.fetched_records += offsets
        if filling.errors:
            self._context.meter.errors.update(filling.errors)
        session = self._session
        response = filling.writer.end()
        if session is not None:
            for key, index, shown, has_records in filling.said:
                session.responded(key, index, shown, has_records=has_records)
            if resting := self._without_news(topics):
                session.rest(resting)
        elif self._body and (resting := self._without_news(topics)):
            idle = _Idle(self._body, self._request, resting, bytes(response))
            self._context.services.fetch_sessions.remember_idle(self._context.remembered, idle)
        return Reply(response, partial(self.buffers.put, filling.buffer))

    def _without_news(self, topics: _Topics) -> list[Resting]:
        """Return all partitions if none has records or an error, else nothing."""
        resting = []
        for _, partitions in topics:
            for each in partitions:
                if each.has_records or each.error or each.partition is None:
                    return []
                shown = each.shown
                resting.append(Resting(each.partition, shown[0], shown[2], self._read_committed))
        return resting

    def _repeated(self, response: bytes) -> Reply:
        buffer = self.buffers.take_beyond_limit(len(response))
        buffer[: len(response)] = response
        return Reply(buffer[: len(response)], partial(self.buffers.put, buffer))

    def _no_records(self, filling: _Filling, wanted: _Wanted) -> None:
        filling.errors.append(int(wanted.error))
        filling.writer.empty_partition(
            wanted.partition_index, error=int(wanted.error), read_committed=self._read_committed
        )

    @property
    def _unknown(self) -> ErrorCode:
        if self._version < _FIRST_WITH_IDS:
            return ErrorCode.unknown_topic_or_partition
        return ErrorCode.unknown_topic_id

    def _refused(self) -> Reply:
        """Respond that the session does not continue: the client starts over with a full request."""
        buffer = self.buffers.take_beyond_limit(1)
        error = int(self._refusal)
        self._context.meter.errors[error] += 1
        writer = FetchResponseWriter(buffer, self._version, 0, error)
        return Reply(writer.end(), partial(self.buffers.put, buffer))


def _slices(partitions: Sequence[T]) -> Sequence[Sequence[T]]:
    if len(partitions) <= _SLICE_PARTITIONS:
        return (partitions,)
    starts = range(0, len(partitions), _SLICE_PARTITIONS)
    return [partitions[at : at + _SLICE_PARTITIONS] for at in starts]


FETCH = RawApi("Fetch", min_version=4, max_version=18, handler=_fetch)
