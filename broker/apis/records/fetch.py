"""Fetch 4 to 18: read records from the logs, with long polling.

Version 4 added transactions (KIP-98), 5 the log start offset, 7 sessions (KIP-227), 9 leader epochs
(KIP-320), 11 the client's rack (KIP-392), 13 topic ids (KIP-516); newer versions are for
replicas. The first batch is returned even if it exceeds the limits (KIP-74).

Differs from Kafka: racks have no effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from anyio import to_thread
from kio.schema.errors import ErrorCode

from ...authorization.rules import Operation, Resource
from ...log.records import parse_header
from ...log.results import LogError
from ...protocol.fetch_request import (
    FINAL_EPOCH,
    FULL_FETCHES,
    INITIAL_EPOCH,
    NO_SESSION,
    read_fetch_request,
)
from ...protocol.fetch_response import (
    ABORTED_TRANSACTION_BYTES,
    FetchResponseWriter,
    fetch_response_overhead,
)
from ...topics.topic import Watch
from ...turns import in_turns
from ..api import LEADER_EPOCH, SMALL_BYTES, Buffered, RawApi, read_error
from .fetch_sessions import Resting

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from ...log.records import BatchHeader
    from ...protocol.fetch_request import FetchFrame, FetchPartition
    from ...protocol.produce_frames import TopicKey
    from ...topics.topic import Partition
    from ..api import RawResponse, RequestContext
    from .fetch_sessions import FetchSession, Shown, Topics

__all__ = ["KEY", "postponed_fetch"]

KEY = 1
_FIRST_WITH_IDS = 13
_READ_COMMITTED = 1
_FEW_PARTITIONS = 500  # are looked up in one turn


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


class _Added(NamedTuple):
    """What one partition adds to a response.

    `size`: bytes of its records and of its list of aborted transactions. `has_more`: the limits left records
    out. `needed_bytes`: nothing was added, because the first batch of the response needs so many bytes.
    `shown`: what else the response says; None for an error.
    """

    size: int = 0
    has_more: bool = False
    needed_bytes: int = 0
    shown: Shown | None = None


class _Filled(NamedTuple):
    """A response, with the sums over its partitions (see `_Added`)."""

    response: Buffered
    size: int = 0
    has_more: bool = False
    needed_bytes: int = 0


class _Filling:
    """A response that is being written into `buffer`, with the sums over its partitions so far."""

    def __init__(
        self, buffer: memoryview, version: int, topics: _Topics, session: FetchSession | None
    ) -> None:
        self.buffer = buffer
        session_id = NO_SESSION if session is None else session.session_id
        self.writer = FetchResponseWriter(buffer, version, len(topics), session_id=session_id)
        self.size = 0
        self.has_more = False
        self.needed_bytes = 0


def _fetch(context: RequestContext, body: memoryview) -> RawResponse | Awaitable[RawResponse]:
    if len(body) > SMALL_BYTES:
        return _fetch_many(context, bytes(body))
    fetch = _Fetch(context, _read(context, body))
    return fetch.answer_now() or fetch.answer_later()


async def _fetch_many(context: RequestContext, body: bytes) -> RawResponse:
    """Fetch from so many partitions that reading the request alone takes long."""
    limiter = context.services.computing
    request = await to_thread.run_sync(_read, context, memoryview(body), limiter=limiter)
    return await _Fetch(context, request).answer_later()


def postponed_fetch(context: RequestContext, body: memoryview) -> Buffered:
    """Return a response without records, for a client that has to wait; its session goes on."""
    request = _read(context, body)
    if request.session_epoch == INITIAL_EPOCH:
        request = request._replace(
            session_epoch=FINAL_EPOCH
        )  # the client names its partitions again
    fetch = _Fetch(context, request)
    return fetch.answer_without_news()


def _read(context: RequestContext, body: memoryview) -> FetchFrame:
    return read_fetch_request(body, context.api_version, context.services.max_elements)


class _Fetch:
    """One fetch request on its way to a response."""

    def __init__(self, context: RequestContext, request: FetchFrame) -> None:
        services = context.services
        self._context = context
        self._version = context.api_version
        self._requests = services.requests
        self._request = request
        self._registry = services.topics
        self._buffers = services.response_buffers
        self._max_bytes = min(request.max_bytes, services.settings.fetch_max_bytes)
        self._read_committed = request.isolation_level == _READ_COMMITTED
        self._is_incremental = request.session_epoch not in FULL_FETCHES
        self._session: FetchSession | None = None
        self._refusal = ErrorCode.none
        self._topics: Topics = request.topics
        self._open_session()
        self._partitions = sum(len(partitions) for _, partitions in self._topics)
        self._overhead = fetch_response_overhead([key for key, _ in self._topics], self._partitions)
        wait = request.max_wait_ms / 1000
        self._deadline = asyncio.get_running_loop().time() + wait
        self._out_of_time = wait <= 0
        # Of the last response: bytes and number of offsets of each partition, error codes, what it says.
        self._added: list[tuple[Partition, int, int]] = []
        self._errors: list[int] = []
        self._said: list[tuple[TopicKey, int, _Added]] = []

    def _open_session(self) -> None:
        """Find the session that the request continues, or begin or end one."""
        request, sessions = self._request, self._context.services.fetch_sessions
        by_id = self._version >= _FIRST_WITH_IDS
        if not self._is_incremental:
            sessions.end(request.session_id)
            if request.session_epoch == INITIAL_EPOCH:
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
            session.update(request.topics, request.forgotten)
            session.turn()
            self._topics = session.topics()
            self._session = session
            if not 0 < len(session) <= self._context.services.max_elements:
                sessions.end(session.session_id)
                self._session = None

    def answer_now(self) -> RawResponse:
        """Return the response; None if it has to wait."""
        if self._refusal:
            return self._refused()
        if self._resting() and not self._is_over:
            return None
        topics = self._look_up_now()
        if not self._is_due(topics):
            return None
        buffer = self._buffers.take(self._buffer_size(topics))
        if buffer is None:
            return None
        said = self._news(topics)
        filling = _Filling(buffer, self._version, said, self._session)
        try:
            for _ in self._adding(filling, said):
                pass
        except BaseException:
            self._buffers.put(buffer)
            raise
        filled = self._filled(filling)
        if filled.needed_bytes or not (filled.has_more or self._suffices(topics, filled.size)):
            filled.response.release()
            return None
        return self._counted(filled, topics)

    def answer_without_news(self) -> Buffered:
        """Return a response without partitions, whatever there is."""
        return self._refused() if self._refusal else self._counted(self._nothing(), ())

    async def answer_later(self) -> RawResponse:
        """Return the response when there are enough records, or when the client's `max_wait` is over."""
        if self._refusal:
            return self._refused()
        while True:
            resting = self._resting()
            if resting:
                if self._is_over:
                    return self.answer_without_news()
                await self._wait([each.partition for each in resting], self._request.min_bytes)
                continue
            topics = await self._look_up()
            missing = self._request.min_bytes
            if self._is_due(topics):
                topics, filled = await self._fill_when_possible(topics)
                if filled.has_more or self._suffices(topics, filled.size):
                    return self._counted(filled, topics)
                missing -= filled.size
                filled.response.release()
            found = [each.partition for _, wanted in topics for each in wanted if each.partition]
            await self._wait(found, missing)

    async def _wait(self, partitions: Sequence[Partition], missing_bytes: int) -> None:
        """Wait until the partitions have grown, or one is closed, or the client's `max_wait` is over."""
        with Watch(partitions, missing_bytes) as watch:
            try:
                async with asyncio.timeout_at(self._deadline):
                    await watch.wait()
            except TimeoutError:
                self._out_of_time = True

    async def _fill_when_possible(self, topics: _Topics) -> tuple[_Topics, _Filled]:
        """Wait for a buffer, look up again and fill it; take a larger one if the first batch needs it."""
        size = self._buffer_size(topics)
        while True:
            buffer = self._buffers.take(size)
            if buffer is None:
                buffer = await self._buffers.wait(size)
                topics = []  # some of them may have changed
            try:
                topics = topics or await self._look_up()
                said = self._news(topics)
                filling = _Filling(buffer, self._version, said, self._session)
                async for _ in in_turns(self._adding(filling, said)):
                    pass
            except BaseException:
                self._buffers.put(buffer)
                raise
            filled = self._filled(filling)
            if not filled.needed_bytes:
                return topics, filled
            filled.response.release()
            size = filled.needed_bytes + self._overhead

    # -- looking up --------------------------------------------------------------------------------

    async def _look_up(self) -> _Topics:
        if self._partitions <= _FEW_PARTITIONS:
            return self._look_up_now()
        return [
            (key, [each async for each in in_turns(self._looking_up(key, partitions))])
            async for key, partitions in in_turns(self._topics)
        ]

    def _look_up_now(self) -> _Topics:
        return [(key, list(self._looking_up(key, partitions))) for key, partitions in self._topics]

    def _looking_up(self, key: TopicKey, partitions: Sequence[FetchPartition]) -> Iterator[_Wanted]:
        """Look up the partitions of a topic, one at each step."""
        registry = self._registry
        topic = registry.by_id(key) if isinstance(key, UUID) else registry.get(key)
        name = key if topic is None else topic.name
        if isinstance(name, UUID):
            for index, _, offset, max_bytes in partitions:
                yield _Wanted(index, offset, max_bytes, None, ErrorCode.unknown_topic_id)
            return
        allowed = self._context.allows(Operation.READ, Resource.TOPIC, name)
        existing = () if topic is None else topic.partitions
        for index, leader_epoch, offset, max_bytes in partitions:
            partition = existing[index] if 0 <= index < len(existing) else None
            if not allowed:
                error = ErrorCode.topic_authorization_failed
                yield _Wanted(index, offset, max_bytes, None, error)
            elif partition is None:
                error = ErrorCode.unknown_topic_or_partition
                yield _Wanted(index, offset, max_bytes, None, error)
            elif leader_epoch > LEADER_EPOCH:
                error = ErrorCode.unknown_leader_epoch
                yield _Wanted(index, offset, max_bytes, partition, error)
            else:
                start, stable = partition.log.log_start_offset, partition.last_stable_offset
                end = partition.high_watermark
                is_there = start <= offset <= end
                error = ErrorCode.none if is_there else ErrorCode.offset_out_of_range
                limit = stable if self._read_committed else end
                yield _Wanted(
                    *(index, offset, max_bytes, partition, error, limit),
                    has_records=is_there and offset < limit,
                    shown=(end, stable, start),
                )

    def _resting(self) -> Sequence[Resting]:
        """Return the partitions of a session if the client knows all of them, and nothing has changed."""
        session = self._session
        if session is None or not self._is_incremental:
            return ()
        resting = session.still_resting(read_committed=self._read_committed)
        if resting and self._context.services.authorizer is not None:
            topics = {each.partition.topic for each in resting}
            if not all(
                self._context.allows(Operation.READ, Resource.TOPIC, each) for each in topics
            ):
                return ()
        return resting

    def _news(self, topics: _Topics) -> _Topics:
        """Return what the response has to say: in a session only what the client does not know."""
        session = self._session
        if session is None or not self._is_incremental:
            return topics
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

    def _is_due(self, topics: _Topics) -> bool:
        """Whether to read now: there are records, or there is no reason to wait."""
        return self._suffices(topics, 0) or any(
            each.has_records for _, partitions in topics for each in partitions
        )

    def _suffices(self, topics: _Topics, size: int) -> bool:
        """Whether to send a response with `size` bytes of records instead of waiting."""
        return (
            size >= self._request.min_bytes
            or self._is_over
            or not self._partitions
            or any(each.error for _, partitions in topics for each in partitions)
        )

    @property
    def _is_over(self) -> bool:
        """Whether to respond now with what there is."""
        return self._out_of_time or self._request.min_bytes <= 0 or self._registry.stopping

    # -- reading -----------------------------------------------------------------------------------

    def _buffer_size(self, topics: _Topics) -> int:
        wanted = sum(
            max(each.max_bytes, 0)
            for _, partitions in topics
            for each in partitions
            if each.has_records
        )
        return self._overhead + min(wanted, max(self._max_bytes - self._overhead, 0))

    def _adding(self, filling: _Filling, topics: _Topics) -> Iterator[None]:
        """Write the response, one partition at each step; end early if the buffer is too small."""
        room = len(filling.buffer) - self._overhead
        self._added.clear()
        self._errors.clear()
        self._said.clear()
        for key, partitions in topics:
            filling.writer.topic(key, len(partitions))
            for wanted in partitions:
                added = self._fill_partition(filling.writer, wanted, filling.size, room)
                if added.needed_bytes:
                    filling.needed_bytes = added.needed_bytes
                    return
                filling.size += added.size
                filling.has_more = filling.has_more or added.has_more
                if self._session is not None:
                    self._said.append((key, wanted.partition_index, added))
                yield
            filling.writer.end_topic()

    def _filled(self, filling: _Filling) -> _Filled:
        """Return the response, which owns the buffer from now on."""
        release = partial(self._buffers.put, filling.buffer)
        if filling.needed_bytes:
            return _Filled(Buffered(filling.buffer, release), needed_bytes=filling.needed_bytes)
        response = Buffered(filling.writer.end(), release)
        return _Filled(response, filling.size, filling.has_more)

    def _fill_partition(
        self, writer: FetchResponseWriter, wanted: _Wanted, size: int, room: int
    ) -> _Added:
        """Add one partition to a response of `size` bytes of records; the first batch ignores the limits."""
        partition = wanted.partition
        if partition is None or wanted.error:
            self._no_records(writer, wanted)
            return _Added()
        start = writer.position
        high_watermark, last_stable_offset, log_start_offset = wanted.shown
        write = writer.partition if wanted.has_records else writer.empty_partition
        write(
            wanted.partition_index,
            high_watermark=high_watermark,
            last_stable_offset=last_stable_offset,
            log_start_offset=log_start_offset,
            read_committed=self._read_committed,
        )
        if not wanted.has_records:
            return _Added(shown=wanted.shown)
        limit = max(0, min(wanted.max_bytes, self._max_bytes - size, room - size))
        try:
            records = writer.begin_records(limit)
            span = partition.log.read_into(wanted.offset, records)
            if span.needed_bytes and not size:
                if span.needed_bytes > room:
                    return _Added(needed_bytes=span.needed_bytes)
                records = writer.begin_records(span.needed_bytes)
                span = partition.log.read_into(wanted.offset, records)
        except (LogError, OSError) as error:
            writer.position = start
            code = (
                self._unknown  # deleted since it was looked up
                if partition.closed
                else read_error(partition, error)
            )
            self._no_records(writer, wanted._replace(error=code))
            return _Added()
        added = span.size
        if span.next_offset > wanted.limit:
            added, _ = _first(records[:added], lambda batch: batch.next_offset <= wanted.limit)
        has_more = span.next_offset < wanted.limit
        end = min(span.next_offset, wanted.limit) if added else wanted.offset
        aborted = self._aborted(partition, wanted.offset, end)
        list_bytes = len(aborted) and (len(aborted) + 1) * ABORTED_TRANSACTION_BYTES
        if size + added + list_bytes > room:
            needed_bytes = parse_header(records).size + list_bytes
            rest = room - size - list_bytes
            added, end = _first(records[:added], lambda batch: batch.end <= rest)
            has_more = True
            if not added:
                if not size:
                    return _Added(needed_bytes=needed_bytes)
                aborted, list_bytes = [], 0
        writer.end_records(added, aborted)
        if added:
            self._added.append((partition, added, end - wanted.offset))
        return _Added(added + list_bytes, has_more, shown=wanted.shown)

    def _nothing(self) -> _Filled:
        """Return a response without news."""
        self._added.clear()
        self._errors.clear()
        self._said.clear()
        buffer = self._buffers.take_beyond_limit(1)
        return self._filled(_Filling(buffer, self._version, [], self._session))

    def _counted(self, filled: _Filled, topics: _Topics) -> Buffered:
        """Count the records and errors of the response, which is sent now; note what is known then."""
        for partition, size, offsets in self._added:
            partition.fetched_bytes += size
            partition.fetched_records += offsets
        if self._errors:
            self._requests.of(KEY).errors.update(self._errors)
        if self._session is not None:
            for key, index, added in self._said:
                self._session.responded(key, index, added.shown, has_records=added.size > 0)
            wanted = [each for _, partitions in topics for each in partitions]
            if wanted and not any(each.has_records or each.error for each in wanted):
                self._session.rest(
                    [
                        Resting(each.partition, each.shown[0], each.shown[2], self._read_committed)
                        for each in wanted
                        if each.partition is not None
                    ]
                )
        return filled.response

    def _aborted(self, partition: Partition, offset: int, end: int) -> list[tuple[int, int]]:
        """Return producer id and first offset of aborted transactions from `offset` to `end` (exclusive)."""
        if not self._read_committed or offset == end:
            return []
        found = partition.log.producers.aborted.between(offset, end)
        return [(each.producer_id, each.first_offset) for each in found]

    def _no_records(self, writer: FetchResponseWriter, wanted: _Wanted) -> None:
        self._errors.append(int(wanted.error))
        writer.empty_partition(
            wanted.partition_index, error=int(wanted.error), read_committed=self._read_committed
        )

    @property
    def _unknown(self) -> ErrorCode:
        if self._version < _FIRST_WITH_IDS:
            return ErrorCode.unknown_topic_or_partition
        return ErrorCode.unknown_topic_id

    def _refused(self) -> Buffered:
        """Respond that the session does not continue: the client starts over with a full request."""
        buffer = self._buffers.take_beyond_limit(1)
        error = int(self._refusal)
        self._requests.of(KEY).errors[error] += 1
        writer = FetchResponseWriter(buffer, self._version, 0, error)
        return Buffered(writer.end(), partial(self._buffers.put, buffer))


def _first(records: memoryview, fits: Callable[[BatchHeader], bool]) -> tuple[int, int]:
    """Return the size of the first batches that fit, and the offset after them."""
    position = offset = 0
    while position < len(records) and fits(header := parse_header(records, position)):
        position, offset = header.end, header.next_offset
    return position, offset


FETCH = RawApi("Fetch", min_version=4, max_version=18, handler=_fetch)
