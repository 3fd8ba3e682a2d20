"""Fetches of one partition without a session that repeat the connection's last one at another offset.

Most consumers fetch like this. `Fetch` answers all others, and every fetch that fails.
"""

from __future__ import annotations

from functools import partial
from struct import Struct
from time import monotonic
from typing import TYPE_CHECKING
from uuid import UUID

from ...authorization.rules import Operation, Resource
from ...log.results import LogError
from ...protocol.fetch_response import FetchResponseWriter, fetch_response_overhead
from ..api import LEADER_EPOCH, Reply
from .long_poll import Lacking

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...protocol.fetch_request import FetchFrame
    from ...topics.topic import Partition
    from ..api import RequestContext
    from .fetch import Fetch

_OFFSET = Struct(">q")
_READ_COMMITTED = 1


class FetchTemplate:
    """What such fetches of a connection have in common."""

    def __init__(
        self,
        context: RequestContext,
        request: FetchFrame,
        body: memoryview,
        offset_at: int,
        in_full: Callable[[FetchFrame], Fetch],
    ) -> None:
        """Args:
        request, body: a request of one partition, as it is and as it came.
        offset_at: where the offset of the partition is in the body.
        in_full: makes the fetch of a request that is not answered here.
        """
        services = context.services
        ((self.key, (wanted,)),) = request.topics
        topics, key = services.topics, self.key
        topic = topics.by_id(key) if isinstance(key, UUID) else topics.get(key)
        index = wanted.partition_index
        most = min(request.max_bytes, services.node.settings.fetch_max_bytes)
        self.context = context
        self.request = request
        self.in_full = in_full
        self.wanted = wanted
        self.partition: Partition | None = None
        if topic is not None and 0 <= index < len(topic.partitions):
            self.partition = topic.partitions[index]
        self.read_committed = request.isolation_level == _READ_COMMITTED
        self.wait_seconds = request.max_wait_ms / 1000
        self.overhead = fetch_response_overhead(request.topics, 1)
        self.record_bytes = min(wanted.max_bytes, most)
        self.size = self.overhead + min(max(wanted.max_bytes, 1), max(most - self.overhead, 0))
        self._before = bytes(body[:offset_at])
        self._after = bytes(body[offset_at + _OFFSET.size :])

    def repeated(self, body: memoryview) -> RepeatedFetch | None:
        """Return the fetch, or None if the request differs in more than the offset."""
        data, at = bytes(body), len(self._before)
        if (
            self.partition is not None
            and len(data) == at + _OFFSET.size + len(self._after)
            and data.startswith(self._before)
            and data.endswith(self._after)
        ):
            return RepeatedFetch(self, self.partition, _OFFSET.unpack_from(data, at)[0])
        return None


class RepeatedFetch:
    """One fetch on its way to a response.

    Attributes:
        buffers: where its response is from.
        deadline: when to respond with what there is (monotonic seconds, the loop's time).
        out_of_time: whether that time has come.
    """

    __slots__ = ("_offset", "_partition", "_template", "buffers", "deadline", "out_of_time")

    def __init__(self, template: FetchTemplate, partition: Partition, offset: int) -> None:
        self._template = template
        self._partition = partition
        self._offset = offset
        self.buffers = template.context.services.response_buffers
        self.deadline = monotonic() + template.wait_seconds
        self.out_of_time = template.wait_seconds <= 0

    def answer_now(self, buffer: memoryview | None = None) -> Reply | Lacking:
        """Return the response, or what it lacks. `buffer`, if it was lacking, belongs to the fetch now."""
        template, offset = self._template, self._offset
        partition, services = self._partition, template.context.services
        shown = end, stable, start = partition.offsets()
        limit = stable if template.read_committed else end
        min_bytes = template.request.min_bytes
        if (
            not start <= offset <= limit
            or template.wanted.leader_epoch > LEADER_EPOCH
            or partition.closed
            or self.out_of_time
            or min_bytes <= 0
            or services.topics.stopping
            or (
                services.authorizer is not None
                and not template.context.allows(Operation.READ, Resource.TOPIC, partition.topic)
            )
        ):
            return self._in_full(buffer)
        if offset == limit:
            if buffer is not None:
                self.buffers.put(buffer)
            return Lacking((partition,), min_bytes)
        buffer = buffer or self.buffers.take(template.size)
        if buffer is None:
            return self._in_full(None)
        writer = FetchResponseWriter(buffer, template.context.api_version, 1)
        writer.topic(template.key, 1)
        index = template.wanted.partition_index
        writer.partition(index, shown, read_committed=template.read_committed)
        records = writer.begin_records(min(template.record_bytes, len(buffer) - template.overhead))
        try:
            added, _, after, _ = partition.log.read_into(offset, records, limit)
        except (LogError, OSError):
            return self._in_full(buffer)
        if not added or (
            template.read_committed and partition.log.producers.aborted.between(offset, after)
        ):
            return self._in_full(buffer)
        if added < min_bytes and after >= limit:
            self.buffers.put(buffer)
            return Lacking((partition,), min_bytes - added)
        writer.end_records(added)
        writer.end_topic()
        partition.fetched_bytes += added
        partition.fetched_records += after - offset
        return Reply(writer.end(), partial(self.buffers.put, buffer))

    def _in_full(self, buffer: memoryview | None) -> Reply | Lacking:
        """Answer by `Fetch`, which knows every error."""
        template = self._template
        wanted = template.wanted._replace(offset=self._offset)
        fetch = template.in_full(template.request._replace(topics=[(template.key, [wanted])]))
        fetch.out_of_time = self.out_of_time
        return fetch.answer_now(buffer)
