"""Committing and reading offsets as one certain generation of a group.

aiokafka's own `commit` sends whatever generation it has at that moment. After a rebalance in between,
that would be the new one, and offsets of partitions that now belong to somebody else would pass.
"""
# ruff: noqa: SLF001  aiokafka's internals; framework.kafka.contract checks them

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import aiokafka.errors
import anyio
from aiokafka.errors import KafkaError
from aiokafka.protocol.commit import OffsetCommitRequest

from framework.errors import CommitFenced, ConsumerError
from framework.kafka.offset_fetch import OffsetFetch, committed_offsets
from framework.record import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from framework.consumer import CommitOffset

__all__ = ["Membership", "commit_offsets", "fetch_offsets"]

T = TypeVar("T")

_RETRY_AFTER = 0.1  # seconds
_ILLEGAL_GENERATION, _UNKNOWN_MEMBER, _REBALANCING, _FENCED_INSTANCE = 22, 25, 27, 82
_FENCED = (_ILLEGAL_GENERATION, _UNKNOWN_MEMBER, _REBALANCING, _FENCED_INSTANCE)
_COORDINATOR_GONE = (7, 15, 16)  # timed out, not available, moved
_UNKNOWN_TOPIC = 3  # deleted: no reason to hold up a rebalance with repeating it


class Membership(NamedTuple):
    """Who commits; generation -1 is nobody."""

    generation: int = -1
    member_id: str = ""


async def commit_offsets(
    coordinator: Any,
    membership: Membership,
    offsets: Mapping[TopicPartition, CommitOffset],
    timeout: float,
) -> None:
    """Commit in one request, again and again while the coordinator is not there.

    Args:
        coordinator: aiokafka's group coordinator.
        membership: as whom; any other generation of the group refuses it.
        offsets: what to commit.
        timeout: seconds.

    Raises:
        CommitFenced: the group is in another generation. Nothing is committed.
        ConsumerError: refused for another reason, or not acknowledged in time. After the latter it
            may still have been committed.
    """
    if not offsets:
        return
    if membership.generation < 0:
        # The broker would take this for a client that belongs to no group, and let it pass.
        raise CommitFenced(
            f"group {coordinator.group_id}: not a member now, nothing can be committed"
        )
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
        await _ask(coordinator, request, partial(_judge, coordinator), timeout)
    except KafkaError as error:
        raise _refused(coordinator, error) from error
    except TimeoutError as error:
        raise ConsumerError(
            f"group {coordinator.group_id}: commit not acknowledged in {timeout:g} s: {error}"
        ) from None


def _judge(coordinator: Any, response: Any) -> None:
    """Raises CommitFenced, ConsumerError, or KafkaError for what should be tried again."""
    again: KafkaError | None = None
    for topic, partitions in response.topics:
        for partition, code in partitions:
            if code == 0:
                continue
            error = aiokafka.errors.for_code(code)
            where = f"{TopicPartition(topic, partition)}: {error.__name__}"
            if code in _FENCED:
                raise CommitFenced(
                    f"group {coordinator.group_id}: the group has moved on to a new generation,"
                    f" the commit was refused ({where})"
                )
            if code == _UNKNOWN_TOPIC or not error.retriable:
                raise _refused(coordinator, where)
            if again is None or code in _COORDINATOR_GONE:
                again = error(where)
    if again is not None:
        raise again


def _refused(coordinator: Any, reason: object) -> ConsumerError:
    return ConsumerError(f"group {coordinator.group_id}: the broker refused a commit: {reason}")


async def fetch_offsets(
    coordinator: Any, partitions: Iterable[TopicPartition], timeout: float
) -> dict[TopicPartition, CommitOffset | None]:
    """What the group has committed, from the broker; None where it has committed nothing.

    Raises `ConsumerError` when the broker refuses or has not answered within `timeout` seconds.
    """
    found: dict[TopicPartition, CommitOffset | None] = dict.fromkeys(partitions)
    if not found:
        return found
    # Not aiokafka's own method, which takes a coordinator that is loading for one without offsets.
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


async def _ask(coordinator: Any, request: Any, judge: Callable[[Any], T], timeout: float) -> T:
    """What the judge makes of the coordinator's answer, who is asked again while that may help.

    Raises what the judge raises, but KafkaErrors only if they are not retriable, and TimeoutError with the
    reason why there is no answer.
    """
    reason = "the coordinator was not found"
    with anyio.move_on_after(timeout):
        while True:
            try:
                await coordinator.ensure_coordinator_known()
                return judge(await coordinator._send_req(request))
            except KafkaError as error:
                if not error.retriable:
                    raise
                if getattr(error, "errno", None) in _COORDINATOR_GONE:
                    coordinator.coordinator_dead()
                reason = str(error)
            await anyio.sleep(_RETRY_AFTER)
    raise TimeoutError(reason)
