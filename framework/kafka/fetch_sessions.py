"""Fetch sessions (KIP-227) of a consumer: a node is told of each partition once, and answers with news only.

Without them each fetch names all partitions, twice a second also while none has records: half of what 2,000
idle partitions cost. aiokafka has none; its request is the base of ours.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from aiokafka.protocol.fetch import FetchRequest

from ..record import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

UNKNOWN_SESSION: Final = 70
INVALID_EPOCH: Final = 71
_FULL: Final = 0  # the epoch of a request that names all partitions, and asks for a session
_LAST_EPOCH: Final = 2**31 - 1


class FetchSession:
    """What one node was asked for last, and the session in which it remembers that, if it does.

    Args:
        replaces: the id of a session of an earlier assignment, which this one ends.

    Attributes:
        session_id: 0 without one.
        positions: the offsets to fetch from, by partition.
    """

    def __init__(self, replaces: int = 0) -> None:
        self.positions: dict[TopicPartition, int] = {}
        self._answered = 0.0
        self._new: set[TopicPartition] = set()  # partitions that the request under way names first
        self._left: dict[TopicPartition, float] = {}  # last answers of partitions that left
        self._request: FetchRequest | None = None
        self.session_id = replaces
        self._epoch = _FULL

    def answered_at(self, partition: TopicPartition) -> float | None:
        """Return when the node last answered a request for a partition (event loop's clock); None: never."""
        if partition not in self.positions or partition in self._new:
            return self._left.get(partition)
        return self._answered

    def ask(self, request: FetchRequest) -> SessionRequest:
        """Return the request of the session for the records that a request without one asks for.

        The same request again says that nothing has changed.
        """
        if request is self._request and self._epoch != _FULL:
            return SessionRequest(request, (), (), self.session_id, self._epoch)
        self._request = request
        before, self.positions = self.positions, _positions(request)
        gone = before.keys() - self.positions.keys()
        self._left.update(dict.fromkeys(gone - self._new, self._answered))
        self._new = self.positions.keys() - before.keys()
        if self._epoch == _FULL:
            return SessionRequest(request, request.topics, (), self.session_id, _FULL)
        changed = {name for name, _ in self.positions.items() - before.items()}
        topics = [
            (topic, [each for each in partitions if (topic, each[0]) in changed])
            for topic, partitions in request.topics
        ]
        named = [(topic, partitions) for topic, partitions in topics if partitions]
        return SessionRequest(request, named, gone, self.session_id, self._epoch)

    def accept(self, response: Any, now: float) -> bool:
        """Note a response; return False if the node refuses the session: the next request begins anew."""
        code = getattr(response, "error_code", 0)
        if code in (UNKNOWN_SESSION, INVALID_EPOCH):
            self.session_id, self._epoch = 0, _FULL
            return False
        self._answered, self._new = now, set()
        self.session_id = getattr(response, "session_id", 0)
        self._epoch = _next(self._epoch) if self.session_id else _FULL
        return True

    def lose(self) -> None:
        """Begin anew with the next request: the last one or its answer may be lost."""
        self._epoch = _FULL


def _next(epoch: int) -> int:
    return 1 if epoch == _LAST_EPOCH else epoch + 1


def _positions(request: FetchRequest) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, partition): offset
        for topic, partitions in request.topics
        for partition, offset, _ in partitions
    }


class SessionRequest(FetchRequest):  # type: ignore[misc]
    """A fetch in a session. A broker before version 7 knows none; it is sent all partitions.

    Args:
        request: gives the limits.
        topics: partitions that are new in the session, or whose offsets are.
        forgotten: partitions that leave it.
    """

    def __init__(
        self,
        request: FetchRequest,
        topics: Any,
        forgotten: Iterable[TopicPartition],
        session_id: int,
        epoch: int,
    ) -> None:
        super().__init__(
            request._max_wait_ms,  # noqa: SLF001  aiokafka's
            request._min_bytes,  # noqa: SLF001
            request._max_bytes,  # noqa: SLF001
            request._isolation_level,  # noqa: SLF001
            topics,
            rack_id=request._rack_id,  # noqa: SLF001
        )
        self._forgotten = forgotten
        self._session = session_id, epoch

    def build(self, request_struct_class: Any) -> Any:
        """Return the request in a version of the protocol."""
        built = super().build(request_struct_class)
        if request_struct_class.API_VERSION >= 7:
            built.session_id, built.session_epoch = self._session
            by_topic: dict[str, list[int]] = defaultdict(list)
            for topic, partition in self._forgotten:
                by_topic[topic].append(partition)
            built.forgotten_topics_data = list(by_topic.items())
        return built
