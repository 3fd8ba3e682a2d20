"""Fetch 4 to 18: read records from the logs, with long polling.

Version 4 added transactions (KIP-98), 5 the log start offset, 7 sessions (KIP-227), 9 leader epochs
(KIP-320), 11 the client's rack (KIP-392), 13 topic ids (KIP-516); newer versions are for
replicas. The first batch is returned even if it exceeds the limits (KIP-74).

Differs from Kafka: every fetch is a full one (no sessions), and racks have no effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast
from uuid import UUID

from anyio import to_thread
from kio.schema.errors import ErrorCode

from ..authorization.rules import Operation, Resource
from ..log.records import parse_header
from ..log.results import LogError
from ..protocol.fetch_response import (
    ABORTED_TRANSACTION_BYTES,
    FetchResponseWriter,
    fetch_response_overhead,
)
from ..protocol.messages import read_message, request_type
from ..topics.topic import Watch
from ..turns import in_turns
from .api import LEADER_EPOCH, NO_TOPIC_ID, SMALL_BYTES, Buffered, RawApi, read_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from ..log.records import BatchHeader
    from ..protocol.produce_frames import TopicKey
    from ..topics.topic import Partition
    from . import entities
    from .api import RawResponse, RequestContext

__all__ = ["KEY"]

KEY = 1
_FIRST_WITH_SESSIONS = 7
_FULL_FETCH = (0, -1)  # session epochs that begin a session or end one
_FIRST_WITH_LEADER_EPOCHS = 9
_FIRST_WITH_IDS = 13
_READ_COMMITTED = 1


class _Wanted(NamedTuple):
    """A partition of the request; the client may read up to `limit` (exclusive)."""

    partition_index: int
    offset: int
    max_bytes: int
    partition: Partition | None
    error: ErrorCode
    limit: int

    @property
    def has_records(self) -> bool:
        return self.partition is not None and not self.error and self.offset < self.limit


_Topics = Sequence[tuple["TopicKey", Sequence[_Wanted]]]


class _Added(NamedTuple):
    """What one partition adds to a response.

    `size`: bytes of its records and of its list of aborted transactions. `has_more`: the limits left records
    out. `needed_bytes`: nothing was added, because the first batch of the response needs so many bytes.
    """

    size: int = 0
    has_more: bool = False
    needed_bytes: int = 0


class _Filled(NamedTuple):
    """A response, with the sums over its partitions (see `_Added`)."""

    response: Buffered
    size: int = 0
    has_more: bool = False
    needed_bytes: int = 0


class _Filling:
    """A response that is being written into `buffer`, with the sums over its partitions so far."""

    def __init__(self, buffer: memoryview, version: int, topics: _Topics) -> None:
        self.buffer = buffer
        self.writer = FetchResponseWriter(buffer, version, len(topics))
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


def _read(context: RequestContext, body: memoryview) -> entities.FetchRequest:
    message_type = request_type(KEY, context.api_version)
    return cast(
        "entities.FetchRequest", read_message(message_type, body, context.services.max_elements)
    )


class _Fetch:
    """One fetch request on its way to a response."""

    def __init__(self, context: RequestContext, request: entities.FetchRequest) -> None:
        services = context.services
        self._context = context
        self._version = context.api_version
        self._requests = services.requests
        self._request = request
        self._registry = services.topics
        self._buffers = services.response_buffers
        self._max_bytes = min(request.max_bytes, services.settings.fetch_max_bytes)
        self._read_committed = request.isolation_level == _READ_COMMITTED
        self._overhead = fetch_response_overhead(
            [self._key(topic) for topic in request.topics],
            sum(len(topic.partitions) for topic in request.topics),
        )
        wait = request.max_wait.total_seconds()
        self._deadline = asyncio.get_running_loop().time() + wait
        self._out_of_time = wait <= 0
        # Of the last response: bytes and number of offsets of each partition, and error codes.
        self._added: list[tuple[Partition, int, int]] = []
        self._errors: list[int] = []

    @property
    def _wants_session(self) -> bool:
        if self._version < _FIRST_WITH_SESSIONS:
            return False
        return self._request.session_epoch not in _FULL_FETCH

    def answer_now(self) -> RawResponse:
        """Return the response; None if it has to wait."""
        if self._wants_session:
            return self._no_session()
        topics = [
            (self._key(topic), list(self._looking_up(topic))) for topic in self._request.topics
        ]
        if not self._is_due(topics):
            return None
        buffer = self._buffers.take(self._buffer_size(topics))
        if buffer is None:
            return None
        filling = _Filling(buffer, self._version, topics)
        try:
            for _ in self._adding(filling, topics):
                pass
        except BaseException:
            self._buffers.put(buffer)
            raise
        filled = self._filled(filling)
        if filled.needed_bytes or not (filled.has_more or self._suffices(topics, filled.size)):
            filled.response.release()
            return None
        return self._counted(filled)

    async def answer_later(self) -> RawResponse:
        """Return the response when there are enough records, or when the client's `max_wait` is over."""
        if self._wants_session:
            return self._no_session()
        while True:
            topics = await self._look_up()
            missing = int(self._request.min_bytes)
            if self._is_due(topics):
                topics, filled = await self._fill_when_possible(topics)
                if filled.has_more or self._suffices(topics, filled.size):
                    return self._counted(filled)
                missing -= filled.size
                filled.response.release()
            found = [each.partition for _, wanted in topics for each in wanted if each.partition]
            with Watch(found, missing) as watch:
                try:
                    async with asyncio.timeout_at(self._deadline):
                        await watch.wait()
                except TimeoutError:
                    self._out_of_time = True

    async def _fill_when_possible(self, topics: _Topics) -> tuple[_Topics, _Filled]:
        """Wait for a buffer, look up again and fill it; take a larger one if the first batch needs it."""
        size = self._buffer_size(topics)
        while True:
            buffer = self._buffers.take(size) or await self._buffers.wait(size)
            try:
                topics = await self._look_up()
                filling = _Filling(buffer, self._version, topics)
                async for _ in in_turns(self._adding(filling, topics)):
                    pass
            except BaseException:
                self._buffers.put(buffer)
                raise
            filled = self._filled(filling)
            if not filled.needed_bytes:
                return topics, filled
            filled.response.release()
            size = filled.needed_bytes + self._overhead

    def _key(self, topic: entities.FetchTopic) -> TopicKey:
        """Return the name of a topic of the request, or its id."""
        if self._version < _FIRST_WITH_IDS:
            return topic.topic
        by_id = cast("entities.FetchTopicById", topic)
        return by_id.topic_id or NO_TOPIC_ID

    # -- looking up --------------------------------------------------------------------------------

    async def _look_up(self) -> _Topics:
        return [
            (self._key(topic), [each async for each in in_turns(self._looking_up(topic))])
            async for topic in in_turns(self._request.topics)
        ]

    def _looking_up(self, topic: entities.FetchTopic) -> Iterator[_Wanted]:
        """Look up the partitions of a topic, one at each step."""
        key = self._key(topic)
        if isinstance(key, UUID):
            found = self._registry.by_id(key)
            if found is None:
                for each in topic.partitions:
                    yield _unknown_id(each)
                return
            key = found.name
        allowed = self._context.allows(Operation.READ, Resource.TOPIC, key)
        for each in topic.partitions:
            yield self._look_up_partition(key, each, allowed=allowed)

    def _look_up_partition(
        self, topic: str, wanted: entities.FetchPartition, *, allowed: bool
    ) -> _Wanted:
        partition = self._registry.partition(topic, wanted.partition)
        error, limit = ErrorCode.none, 0
        if not allowed:
            partition, error = None, ErrorCode.topic_authorization_failed
        elif partition is None:
            error = ErrorCode.unknown_topic_or_partition
        elif (
            self._version >= _FIRST_WITH_LEADER_EPOCHS
            and wanted.current_leader_epoch > LEADER_EPOCH
        ):
            error = ErrorCode.unknown_leader_epoch
        else:
            end = partition.high_watermark
            if not partition.log.log_start_offset <= wanted.fetch_offset <= end:
                error = ErrorCode.offset_out_of_range
            limit = partition.last_stable_offset if self._read_committed else end
        return _Wanted(
            wanted.partition,
            wanted.fetch_offset,
            wanted.partition_max_bytes,
            partition,
            error,
            limit,
        )

    def _is_due(self, topics: _Topics) -> bool:
        """Whether to read now: there are records, or there is no reason to wait."""
        return self._suffices(topics, 0) or any(
            each.has_records for _, partitions in topics for each in partitions
        )

    def _suffices(self, topics: _Topics, size: int) -> bool:
        """Whether to send a response with `size` bytes of records instead of waiting."""
        return (
            size >= self._request.min_bytes
            or self._out_of_time
            or self._registry.stopping
            or not any(partitions for _, partitions in topics)
            or any(each.error for _, partitions in topics for each in partitions)
        )

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
        for name, partitions in topics:
            filling.writer.topic(name, len(partitions))
            for wanted in partitions:
                added = self._fill_partition(filling.writer, wanted, filling.size, room)
                if added.needed_bytes:
                    filling.needed_bytes = added.needed_bytes
                    return
                filling.size += added.size
                filling.has_more = filling.has_more or added.has_more
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
        writer.partition(
            wanted.partition_index,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.log.log_start_offset,
            read_committed=self._read_committed,
        )
        if not wanted.has_records:
            writer.no_records()
            return _Added()
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
        return _Added(added + list_bytes, has_more)

    def _counted(self, filled: _Filled) -> Buffered:
        """Count the records and errors of the response, which is sent now."""
        for partition, size, offsets in self._added:
            partition.fetched_bytes += size
            partition.fetched_records += offsets
        if self._errors:
            self._requests.of(KEY).errors.update(self._errors)
        return filled.response

    def _aborted(self, partition: Partition, offset: int, end: int) -> list[tuple[int, int]]:
        """Return producer id and first offset of aborted transactions from `offset` to `end` (exclusive)."""
        if not self._read_committed or offset == end:
            return []
        found = partition.log.producers.aborted.between(offset, end)
        return [(each.producer_id, each.first_offset) for each in found]

    def _no_records(self, writer: FetchResponseWriter, wanted: _Wanted) -> None:
        self._errors.append(int(wanted.error))
        writer.partition(
            wanted.partition_index, error=int(wanted.error), read_committed=self._read_committed
        )
        writer.no_records()

    @property
    def _unknown(self) -> ErrorCode:
        if self._version < _FIRST_WITH_IDS:
            return ErrorCode.unknown_topic_or_partition
        return ErrorCode.unknown_topic_id

    def _no_session(self) -> Buffered:
        """Respond that there is no such session: the client starts over with a full request."""
        buffer = self._buffers.take_beyond_limit(1)
        error = int(ErrorCode.fetch_session_id_not_found)
        self._requests.of(KEY).errors[error] += 1
        writer = FetchResponseWriter(buffer, self._version, 0, error)
        return Buffered(writer.end(), partial(self._buffers.put, buffer))


def _unknown_id(wanted: entities.FetchPartition) -> _Wanted:
    """Refuse a partition of a topic that does not exist, or no longer has this id."""
    return _Wanted(
        wanted.partition,
        wanted.fetch_offset,
        wanted.partition_max_bytes,
        None,
        ErrorCode.unknown_topic_id,
        0,
    )


def _first(records: memoryview, fits: Callable[[BatchHeader], bool]) -> tuple[int, int]:
    """Return the size of the first batches that fit, and the offset after them."""
    position = offset = 0
    while position < len(records) and fits(header := parse_header(records, position)):
        position, offset = header.end, header.next_offset
    return position, offset


FETCH = RawApi("Fetch", min_version=4, max_version=18, handler=_fetch)
