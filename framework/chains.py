"""Builds a chain of reduce stages: what one flushes is the input of the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import anyio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from framework.promises import Promise
    from framework.record import Cut, Rows, TopicPartition
    from framework.reduce import ReduceStage
    from framework.reducer import Reducer

__all__ = ["BuildStage", "build_chain"]


class BuildStage(Protocol):
    """Makes a reduce stage; the pipeline knows the rest of what it needs."""

    def __call__(
        self,
        name: str,
        reducer: Reducer,
        inbox: MemoryObjectReceiveStream[Rows | Cut],
        out: MemoryObjectSendStream[Rows | Cut] | None,
        promise: Promise | None = None,
        *,
        partition: TopicPartition | None = None,
        replaying: bool = False,
    ) -> ReduceStage:
        """`out` is the next stage's inbox, None for the last of a chain."""


def build_chain(
    reducers: Sequence[Reducer],
    build: BuildStage,
    queue: int,
    promise: Promise | None = None,
    *,
    partition: TopicPartition | None = None,
    replaying: bool = False,
) -> tuple[MemoryObjectSendStream[Rows | Cut], list[ReduceStage]]:
    """A chain from its end to its beginning, as each stage needs the inbox of the next.

    Args:
        queue: rows of so many batches wait in each inbox.
        promise: what is done before the last stage writes.
        partition: whose chain it is; None for that of all partitions.
        replaying: whether it begins with an announced range.

    Returns:
        The inbox of the first stage, and the stages in the order of the flow.
    """
    stages: list[ReduceStage] = []
    out: MemoryObjectSendStream[Rows | Cut] | None = None
    for number, reducer in reversed(list(enumerate(reducers, start=1))):
        send, receive = anyio.create_memory_object_stream["Rows | Cut"](queue)
        name = f"reduce-{number}"
        stage = build(
            name, reducer, receive, out, promise, partition=partition, replaying=replaying
        )
        stages.insert(0, stage)
        out, promise = send, None
    return send, stages
