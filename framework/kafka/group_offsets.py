"""Read and commit a group's offsets, as one certain generation of the group.

aiokafka's own `commit` sends the generation of the moment. After a rebalance in between, that is the new
one, and the broker would accept offsets of partitions that another member owns by then.
"""
# ruff: noqa: SLF001  aiokafka's internals, see kmr.kafka.fetching

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import aiokafka.errors
import anyio
from aiokafka.errors import KafkaError
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest_v3
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

from ..errors import CommitFenced, CommitRefused, ConsumerError
from ..record import TopicPartition
from .consumer import CommitOffset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

T = TypeVar("T")

_RETRY_AFTER = 0.1  # seconds
# Deleted, with its offsets. aiokafka would retry, but no rebalance should wait for a deleted topic.
_UNKNOWN_TOPIC = 3
COORDINATOR_GONE = (7, 15, 16)  # timed out, not available, moved
_ILLEGAL_GENERATION, _UNKNOWN_MEMBER, _REBALANCING, _FENCED_INSTANCE = 22, 25, 27, 82
FENCED = (_ILLEGAL_GENERATION, _UNKNOWN_MEMBER, _REBALANCING, _FENCED_INSTANCE)
_UNSTABLE_OFFSET_COMMIT = 88
_NOT_SENT = (aiokafka.errors.NodeNotReadyError, aiokafka.errors.GroupCoordinatorNotAvailableError)
"""What aiokafka raises instead of sending a request."""


class Membership(NamedTuple):
    """The generation and member to commit with; generation -1 is no member."""

    generation: int = -1
    member_id: str = ""
    group_instance_id: str | None = None

    def require(self, group: str) -> None:
        """Raise CommitFenced for no member, whose commit the broker would accept as an outside client's."""
        if self.generation < 0:
            raise CommitFenced(f"group {group}: not a member now, nothing can be committed")


class UnstableOffsetCommit(aiokafka.errors.BrokerResponseError):  # type: ignore[misc]
    """An open transaction commits an offset; aiokafka does not know this error."""

    errno = _UNSTABLE_OFFSET_COMMIT
    message = "UNSTABLE_OFFSET_COMMIT"
    retriable = True


def fenced(group: str, refused: str, where: str) -> str:
    """Return the message for a commit or transaction of an older generation."""
    reason = f"the {refused} was refused ({where})"
    return f"group {group}: the group has moved on to a new generation, {reason}"


def check_code(code: int, subject: object) -> None:
    """Raise the KafkaError of an error code, with `subject` as its text; 0 is no error."""
    if code == _UNSTABLE_OFFSET_COMMIT:
        raise UnstableOffsetCommit(str(subject))
    if code != 0:
        raise aiokafka.errors.for_code(code)(str(subject))


class _OffsetFetchResponse7(Response):  # type: ignore[misc]
    API_KEY = 9
    API_VERSION = 7
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("metadata", CompactString("utf-8")),
                        ("error_code", Int16),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("error_code", Int16),
        ("tags", TaggedFields),
    )


class _OffsetFetchRequest7(RequestStruct):  # type: ignore[misc]
    API_KEY = 9
    API_VERSION = 7
    RESPONSE_TYPE = _OffsetFetchResponse7
    FLEXIBLE_VERSION = True
    SCHEMA = Schema(
        ("consumer_group", CompactString("utf-8")),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                ("partitions", CompactArray(Int32)),
                ("tags", TaggedFields),
            ),
        ),
        ("require_stable", Boolean),
        ("tags", TaggedFields),
    )


class OffsetFetch(Request[OffsetFetchRequest_v3 | _OffsetFetchRequest7]):  # type: ignore[misc]
    """Ask for the committed offsets of these partitions; None: of all partitions.

    Version 7 (KIP-447) waits for open transactions. Brokers before Kafka 2.5 get version 3, which does not.
    """

    API_KEY = 9

    def __init__(self, group: str, partitions: Iterable[TopicPartition] | None) -> None:
        self._group = group
        self._topics: dict[str, list[int]] | None = None
        if partitions is not None:
            self._topics = defaultdict(list)
            for topic, partition in partitions:
                self._topics[topic].append(partition)

    def build(self, request_struct_class: Any) -> Any:
        """Build the request in the version that the broker has; called by aiokafka."""
        topics = None if self._topics is None else list(self._topics.items())
        if request_struct_class is _OffsetFetchRequest7:
            tags: dict[int, bytes] = {}
            tagged = None if topics is None else [(*topic, tags) for topic in topics]
            return _OffsetFetchRequest7(self._group, tagged, True, tags)  # noqa: FBT003
        return request_struct_class(self._group, topics)


def committed_offsets(response: Any) -> dict[TopicPartition, CommitOffset]:
    """Read an OffsetFetch response; partitions without a committed offset are left out.

    Raises KafkaError for an error of the group or of a partition.
    """
    answer = response.to_object()
    check_code(answer["error_code"], "the group")
    found = {}
    for topic in answer["topics"]:
        for entry in topic["partitions"]:
            partition = TopicPartition(topic["topic"], entry["partition"])
            if entry["error_code"] == _UNKNOWN_TOPIC:
                continue
            check_code(entry["error_code"], partition)
            if entry["offset"] >= 0:
                found[partition] = CommitOffset(entry["offset"], entry["metadata"] or "")
    return found


async def fetch_offsets(
    coordinator: Any, partitions: Iterable[TopicPartition], timeout: float
) -> dict[TopicPartition, CommitOffset | None]:
    """Return the group's committed offsets, from the broker; None where it has committed nothing.

    Raises `ConsumerError` when the broker refuses or has not answered within `timeout` seconds.
    """
    found: dict[TopicPartition, CommitOffset | None] = dict.fromkeys(partitions)
    if not found:
        return found
    # Not aiokafka's own method: it takes a coordinator that is loading for one without offsets.
    request = OffsetFetch(coordinator.group_id, found)
    try:
        found |= await _ask(coordinator, request, committed_offsets, timeout)
    except KafkaError as error:
        raise ConsumerError(
            f"group {coordinator.group_id}: cannot read committed offsets: {error}"
        ) from error
    except TimeoutError as error:
        raise ConsumerError(
            f"group {coordinator.group_id}: no answer about committed offsets in {timeout:g} s: {error}"
        ) from None
    return found


async def commit_offsets(
    coordinator: Any,
    membership: Membership,
    offsets: Mapping[TopicPartition, CommitOffset],
    timeout: float,
    on_unanswered: Callable[[], None] = lambda: None,
) -> None:
    """Commit in one request; retry it while the coordinator is unreachable.

    Args:
        coordinator: aiokafka's group coordinator.
        membership: the broker refuses the commit once the group is in another generation.
        offsets: the offset and metadata of each partition.
        timeout: seconds.
        on_unanswered: called when a request was sent whose answer is not awaited any more.

    Raises:
        CommitFenced: the group is in another generation. Nothing is committed.
        CommitRefused: refused for another reason, at least for one partition.
        ConsumerError: not acknowledged in time. It may still have been committed.
    """
    if not offsets:
        return
    membership.require(coordinator.group_id)
    topics = defaultdict(list)
    for partition, (offset, metadata) in offsets.items():
        topics[partition.topic].append((partition.partition, offset, metadata))
    request = OffsetCommitRequest(
        coordinator.group_id,
        membership.generation,
        membership.member_id,
        OffsetCommitRequest.DEFAULT_RETENTION_TIME,
        list(topics.items()),
    )
    try:
        await _ask(
            coordinator, request, partial(_check_commit, coordinator), timeout, on_unanswered
        )
    except KafkaError as error:
        raise _refused(coordinator, error) from error
    except TimeoutError as error:
        raise ConsumerError(
            f"group {coordinator.group_id}: commit not acknowledged in {timeout:g} s: {error}"
        ) from None


def _check_commit(coordinator: Any, response: Any) -> None:
    """Raise CommitFenced, CommitRefused, or a KafkaError that is worth a retry."""
    again: KafkaError | None = None
    acknowledged: set[TopicPartition] = set()
    refused: list[str] = []
    for_good = False
    for topic, partitions in response.topics:
        for number, code in partitions:
            partition = TopicPartition(topic, number)
            if code == 0:
                acknowledged.add(partition)
                continue
            error = aiokafka.errors.for_code(code)
            where = f"{partition}: {error.__name__}"
            if code in FENCED:
                raise CommitFenced(fenced(coordinator.group_id, "commit", where))
            if code == _UNKNOWN_TOPIC or not error.retriable:
                # Whether a topic is gone for good is decided by `KafkaConsumer`, from the metadata.
                for_good = for_good or code != _UNKNOWN_TOPIC
                refused.append(where)
            elif again is None or code in COORDINATOR_GONE:
                again = error(where)
    if refused:
        raise _refused(coordinator, ", ".join(refused), frozenset(acknowledged), for_good=for_good)
    if again is not None:
        raise again


def _refused(
    coordinator: Any,
    reason: object,
    acknowledged: frozenset[TopicPartition] = frozenset(),
    *,
    for_good: bool = True,
) -> CommitRefused:
    remedy = "; correct the cause, such as a permission, and start the worker again"
    return CommitRefused(
        f"group {coordinator.group_id}: the broker refuses to commit offsets: {reason}"
        + (remedy if for_good else ""),
        acknowledged,
        for_good=for_good,
    )


async def _ask(
    coordinator: Any,
    request: Any,
    read: Callable[[Any], T],
    timeout: float,
    on_unanswered: Callable[[], None] = lambda: None,
) -> T:
    """Send a request to the coordinator and `read` the response; retry after retriable KafkaErrors.

    Raises what `read` raises otherwise, and TimeoutError with the last reason after `timeout` seconds.
    """
    sent = False
    reason = "the coordinator was not found"
    with anyio.move_on_after(timeout):
        while True:
            try:
                await coordinator.ensure_coordinator_known()
                sent = True
                response = await coordinator._send_req(request)
                sent = False
                return read(response)
            except KafkaError as error:
                if sent and not isinstance(error, _NOT_SENT):
                    on_unanswered()
                sent = False
                if not error.retriable:
                    raise
                if getattr(error, "errno", None) in COORDINATOR_GONE:
                    coordinator.coordinator_dead()
                reason = str(error)
            await anyio.sleep(_RETRY_AFTER)
    if sent:
        on_unanswered()
    raise TimeoutError(reason)
