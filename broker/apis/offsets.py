"""OffsetCommit and OffsetFetch: what groups have consumed."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Protocol

import kio.schema.offset_fetch.v7 as fetch_one
import structlog
from kio.schema.errors import ErrorCode
from kio.schema.offset_commit.v8 import OffsetCommitRequest, OffsetCommitResponse
from kio.schema.offset_commit.v8.response import (
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kio.schema.offset_fetch.v7.response import (
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from kio.schema.offset_fetch.v8 import OffsetFetchRequest, OffsetFetchResponse
from kio.schema.offset_fetch.v8.response import (
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from kio.schema.types import TopicName
from kio.static.primitive import i32, i64

from broker.api import Api
from broker.apis.common import NO_THROTTLE
from broker.apis.membership import error_code
from broker.groups.offsets import CommittedOffset
from broker.log.errors import LogError
from broker.membership.types import MemberIdentity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kio.schema.txn_offset_commit.v4 import TxnOffsetCommitRequest

    from broker.api import RequestContext
    from broker.groups.offsets import Partition

__all__ = ["APIS", "sort_offsets"]

_NOTHING_COMMITTED = CommittedOffset(offset=-1, leader_epoch=-1, metadata="", timestamp=-1)

logger = structlog.get_logger()


async def offset_commit(
    context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse:
    """Answers when the offsets are stored as durably as the fsync setting asks for."""
    accepted, refused = sort_offsets(context, request)
    outcome = await _commit(context, request, accepted)
    return OffsetCommitResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            OffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    OffsetCommitResponsePartition(
                        partition_index=each.partition_index,
                        error_code=refused.get((topic.name, each.partition_index), outcome),
                    )
                    for each in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


def sort_offsets(
    context: RequestContext, request: OffsetCommitRequest | TxnOffsetCommitRequest
) -> tuple[dict[Partition, tuple[int, int, str]], dict[Partition, ErrorCode]]:
    """The offsets that may be committed (offset, leader epoch, metadata), and why the others may not."""
    accepted: dict[Partition, tuple[int, int, str]] = {}
    refused: dict[Partition, ErrorCode] = {}
    for topic in request.topics:
        for each in topic.partitions:
            partition = (topic.name, each.partition_index)
            metadata = each.committed_metadata or ""
            error = _check_offset(context, partition, metadata)
            if error is not None:
                refused[partition] = error
            else:
                accepted[partition] = (
                    each.committed_offset,
                    each.committed_leader_epoch,
                    metadata,
                )
    return accepted, refused


def _check_offset(context: RequestContext, partition: Partition, metadata: str) -> ErrorCode | None:
    """Why an offset must not be committed, whoever asks for it."""
    services = context.services
    if services.topics.partition(*partition) is None:
        return ErrorCode.unknown_topic_or_partition
    if not services.groups.accepts_metadata(metadata):
        return ErrorCode.offset_metadata_too_large
    return None


async def _commit(
    context: RequestContext,
    request: OffsetCommitRequest,
    offsets: Mapping[Partition, tuple[int, int, str]],
) -> ErrorCode:
    identity = MemberIdentity(request.member_id, request.group_instance_id)
    generation = request.generation_id_or_member_epoch
    try:
        error = await context.services.groups.commit(
            request.group_id, identity, generation, offsets
        )
    except LogError as failure:
        logger.error("offsets could not be stored", group=request.group_id, error=str(failure))
        return ErrorCode.coordinator_not_available  # the client tries again
    return error_code(error)


async def offset_fetch(context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    """From version 8 on a request is for several groups.

    Offsets of open transactions are never shown; `require_stable` asks to be told where there are
    some (KIP-447).
    """
    groups = []
    for group in request.groups:
        unstable = _unstable(context, group.group_id, required=request.require_stable)
        error, committed = await _fetch(context, group.group_id, _partitions(group.topics))
        groups.append(
            OffsetFetchResponseGroup(
                group_id=group.group_id,
                topics=tuple(
                    OffsetFetchResponseTopics(
                        name=TopicName(topic),
                        partitions=tuple(
                            OffsetFetchResponsePartitions(
                                partition_index=i32(index),
                                committed_offset=i64(each.offset),
                                committed_leader_epoch=i32(each.leader_epoch),
                                metadata=each.metadata,
                                error_code=code,
                            )
                            for index, each, code in _stable(topic, partitions, unstable)
                        ),
                    )
                    for topic, partitions in committed.items()
                ),
                error_code=error,
            )
        )
    return OffsetFetchResponse(throttle_time=NO_THROTTLE, groups=tuple(groups))


async def offset_fetch_one(
    context: RequestContext, request: fetch_one.OffsetFetchRequest
) -> fetch_one.OffsetFetchResponse:
    """Up to version 7 a request is for one group, and version 1 has no place for its error."""
    unstable = _unstable(context, request.group_id, required=request.require_stable)
    error, committed = await _fetch(context, request.group_id, _partitions(request.topics))
    return fetch_one.OffsetFetchResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            OffsetFetchResponseTopic(
                name=TopicName(topic),
                partitions=tuple(
                    OffsetFetchResponsePartition(
                        partition_index=i32(index),
                        committed_offset=i64(each.offset),
                        committed_leader_epoch=i32(each.leader_epoch),
                        metadata=each.metadata,
                        error_code=error if error is not ErrorCode.none else code,
                    )
                    for index, each, code in _stable(topic, partitions, unstable)
                ),
            )
            for topic, partitions in committed.items()
        ),
        error_code=error,
    )


class _WantedTopic(Protocol):
    """A topic in a request, of whichever version."""

    @property
    def name(self) -> TopicName: ...

    @property
    def partition_indexes(self) -> tuple[i32, ...]: ...


def _partitions(topics: Iterable[_WantedTopic] | None) -> list[Partition] | None:
    if topics is None:
        return None
    return [(topic.name, index) for topic in topics for index in topic.partition_indexes]


async def _fetch(
    context: RequestContext, group_id: str, partitions: list[Partition] | None
) -> tuple[ErrorCode, dict[str, dict[int, CommittedOffset]]]:
    """What was committed, by topic and partition; also where nothing was, if it was asked for."""
    error = ErrorCode.none
    committed: Mapping[Partition, CommittedOffset] = {}
    try:
        committed = await context.services.groups.fetch_offsets(group_id, partitions)
    except LogError as failure:
        logger.error("offsets could not be read", group=group_id, error=str(failure))
        error = ErrorCode.coordinator_not_available
    by_topic: defaultdict[str, dict[int, CommittedOffset]] = defaultdict(dict)
    for topic, index in committed if partitions is None else partitions:
        by_topic[topic][index] = committed.get((topic, index), _NOTHING_COMMITTED)
    return error, by_topic


def _unstable(context: RequestContext, group_id: str, *, required: bool) -> set[Partition]:
    """To be asked before what is committed: a transaction may commit meanwhile."""
    return context.services.groups.pending_offsets(group_id) if required else set()


def _stable(
    topic: str, partitions: Mapping[int, CommittedOffset], unstable: set[Partition]
) -> Iterator[tuple[int, CommittedOffset, ErrorCode]]:
    """The client has to ask again where a transaction has yet to decide."""
    for index, committed in partitions.items():
        if (topic, index) in unstable:
            yield index, _NOTHING_COMMITTED, ErrorCode.unstable_offset_commit
        else:
            yield index, committed, ErrorCode.none


APIS = (
    Api(offset_commit, OffsetCommitRequest, OffsetCommitResponse, min_version=2),
    Api(offset_fetch, OffsetFetchRequest, OffsetFetchResponse, min_version=8),
    Api(
        offset_fetch_one,
        fetch_one.OffsetFetchRequest,
        fetch_one.OffsetFetchResponse,
        min_version=1,
    ),
)
