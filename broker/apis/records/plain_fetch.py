"""Fetches of few partitions without a session and without an error, as most consumers send them.

`Fetch` answers all others.
"""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from ...authorization.rules import Operation, Resource
from ...log.results import LogError
from ...protocol.fetch_response import FetchResponseWriter, fetch_response_overhead
from ..api import LEADER_EPOCH, Reply
from .long_poll import Lacking

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from ...protocol.fetch_request import FetchFrame
    from ...protocol.fetch_response import Shown
    from ...protocol.produce_frames import TopicKey
    from ...topics.topic import Partition
    from ..api import RequestContext
    from .fetch import Fetch

    _Found: TypeAlias = tuple[Partition, Shown, int]
    """A partition, its offsets, and up to which of them (exclusive) the client may read."""

MOST_PARTITIONS: Final = 9
READ_COMMITTED: Final = 1
_FEW_BYTES: Final = 64 * 1024
"""Of records: on a busy broker the response waits for a moment, and has more."""


def readable(context: RequestContext, key: TopicKey) -> tuple[Sequence[Partition], ErrorCode]:
    """Return a topic's partitions, and an error if the client may not read them."""
    topics = context.services.topics
    topic = topics.by_id(key) if isinstance(key, UUID) else topics.get(key)
    name = key if topic is None else topic.name
    if isinstance(name, UUID):
        return (), ErrorCode.unknown_topic_id
    if context.services.authorizer is not None and not context.allows(
        Operation.READ, Resource.TOPIC, name
    ):
        return (), ErrorCode.topic_authorization_failed
    return () if topic is None else topic.partitions, ErrorCode.none


class PlainFetch:
    """One fetch on its way to a response.

    Attributes:
        buffers: where its response is from.
        deadline: when to respond with what there is (monotonic seconds, the loop's time).
        out_of_time: whether that time has come.
    """

    __slots__ = (
        *("_context", "_in_full", "_is_new", "_request"),
        *("buffers", "deadline", "out_of_time"),
    )

    def __init__(
        self, context: RequestContext, request: FetchFrame, in_full: Callable[[], Fetch]
    ) -> None:
        """`in_full`: makes the fetch that answers if this one cannot."""
        self._context = context
        self._request = request
        self._in_full = in_full
        self._is_new = True
        self.buffers = context.services.response_buffers
        self.deadline = monotonic() + request.max_wait_ms / 1000
        self.out_of_time = request.max_wait_ms <= 0

    def answer_now(self, buffer: memoryview | None = None) -> Reply | Lacking:
        """Return the response, or what it lacks. `buffer`, if it was lacking, belongs to the fetch now."""
        topics, least = self._request.topics, self._request.min_bytes
        services = self._context.services
        if self.out_of_time or least <= 0 or services.topics.stopping:
            return self._answer_in_full(buffer)
        may_wait, self._is_new = self._is_new and services.group_commit.is_busy, False
        committed = self._request.isolation_level == READ_COMMITTED
        found: list[_Found] = []
        wanted_bytes = 0
        for key, wanted in topics:
            existing, refusal = readable(self._context, key)
            count = 0 if refusal else len(existing)
            for index, epoch, offset, most in wanted:
                if not 0 <= index < count:
                    return self._answer_in_full(buffer)
                partition = existing[index]
                shown = end, stable, start = partition.offsets()
                limit = stable if committed else end
                if not start <= offset <= limit or epoch > LEADER_EPOCH or partition.closed:
                    return self._answer_in_full(buffer)
                if offset < limit:
                    wanted_bytes += most or 1
                    may_wait = may_wait and partition.log.are_few(offset, limit, _FEW_BYTES)
                found.append((partition, shown, limit))
        if not wanted_bytes:
            if buffer is not None:
                self.buffers.put(buffer)
            return Lacking([each[0] for each in found], least)
        if may_wait:
            return Lacking()
        most_bytes = min(self._request.max_bytes, services.node.settings.fetch_max_bytes)
        overhead = fetch_response_overhead(topics, len(found))
        room = max(most_bytes - overhead, 0)
        buffer = buffer or self.buffers.take(overhead + min(wanted_bytes, room))
        if buffer is None:
            return self._answer_in_full(None)
        return self._read(buffer, found, min(room, len(buffer) - overhead))

    def _read(self, buffer: memoryview, found: Sequence[_Found], room: int) -> Reply | Lacking:
        """Read up to `room` bytes of records into the response."""
        request = self._request
        committed = request.isolation_level == READ_COMMITTED
        writer = FetchResponseWriter(buffer, self._context.api_version, len(request.topics))
        size, has_more, following = 0, False, iter(found)
        fetched: list[tuple[Partition, int, int]] = []
        for key, wanted in request.topics:
            writer.topic(key, len(wanted))
            for index, _, offset, most in wanted:
                partition, shown, limit = next(following)
                if offset == limit:
                    writer.empty_partition(index, shown, read_committed=committed)
                    continue
                writer.partition(index, shown, read_committed=committed)
                records = writer.begin_records(max(min(most, room - size), 0))
                try:
                    added, _, after, _ = partition.log.read_into(offset, records, limit)
                except (LogError, OSError):
                    return self._answer_in_full(buffer)
                size += added
                if not size or (
                    committed and partition.log.producers.aborted.between(offset, after)
                ):
                    return self._answer_in_full(buffer)
                writer.end_records(added)
                if added:
                    fetched.append((partition, added, after - offset))
                if not added or after < limit:
                    has_more = True
            writer.end_topic()
        if size < request.min_bytes and not has_more:
            self.buffers.put(buffer)
            return Lacking([each[0] for each in found], request.min_bytes - size)
        for partition, added, offsets in fetched:
            partition.fetched_bytes += added
            partition.fetched_records += offsets
        return Reply(writer.end(), partial(self.buffers.put, buffer))

    def _answer_in_full(self, buffer: memoryview | None) -> Reply | Lacking:
        fetch = self._in_full()
        fetch.out_of_time = self.out_of_time
        return fetch.answer_now(buffer)
