"""`kmr broker consume`: records of topics to stdout."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import anyio.to_thread
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError
from cyclopts import Parameter

from broker.cli.admin import open_admin
from broker.cli.client_log import tell_client_errors
from broker.cli.connection import Connection
from broker.cli.errors import CommandError, UsageError, runs
from broker.cli.formats import formatter
from broker.cli.text import required

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

__all__ = ["consume"]

_POLL_MS = 200
_RECORDS_AT_ONCE = 5_000
_COMMIT_SECONDS = 10.0


@runs
async def consume(
    *topics: str,
    group: str | None = None,
    from_beginning: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    follow: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    max_records: int | None = None,
    partition: Annotated[tuple[int, ...], Parameter(negative=(), show_default=False)] = (),
    form: Annotated[str, Parameter("--format")] = "value",
    connection: Connection | None = None,
) -> None:
    """Write the records of topics to stdout.

    Without --group it reads all partitions: from their beginning to their present end with
    --from-beginning, otherwise only what is new, until Ctrl-C. As a member of a group it reads its share,
    from where the group has come to the present end, and commits what it has written.

    Parameters
    ----------
    topics
        What to read.
    group
        Read as a member of this consumer group.
    from_beginning
        Begin with the first record; in a group, where it has committed nothing yet.
    follow
        Do not stop at the end; wait for more until Ctrl-C.
    max_records
        Stop after so many records.
    partition
        Only this partition; may be repeated. Not for groups, which share the partitions themselves.
    form
        value, key-value, full, json, raw (no line ends), or a template such as
        '{topic} {partition} {offset} {timestamp} {key} {value} {headers}\\n'. Bytes are written as they are.
    """
    if group is not None and partition:
        raise UsageError("--partition is not for groups: the members share the partitions")
    if max_records is not None and max_records < 1:
        raise UsageError(f"--max-records {max_records}: must be at least 1")
    write = _Writer(formatter(form), max_records)
    settings = (connection or Connection()).client_settings()
    partitions = await _partitions(settings, required(topics, "topic"), partition)
    async with _reading(partitions, group, from_beginning, settings) as consumer:
        with anyio.CancelScope() as reading, _stopped_by_signals(reading), tell_client_errors():
            endless = follow or not (from_beginning or group)
            ends = None if endless else dict(await consumer.end_offsets(partitions))
            await _copy(consumer, write, ends, group)
    sys.stdout.flush()


class _Writer:
    """Writes records in a thread: a slow reader of stdout must not keep heartbeats from being sent."""

    def __init__(self, form: Callable[[Any], bytes], limit: int | None) -> None:
        self._form = form
        self._left = limit

    @property
    def is_full(self) -> bool:
        return self._left == 0

    async def write(self, records: Sequence[Any]) -> int:
        """Write as many records as the limit allows; returns how many."""
        if self._left is not None:
            records = records[: self._left]
            self._left -= len(records)
        await anyio.to_thread.run_sync(self._write, b"".join(map(self._form, records)))
        return len(records)

    @staticmethod
    def _write(data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


async def _copy(
    consumer: AIOKafkaConsumer[bytes, bytes],
    writer: _Writer,
    ends: dict[TopicPartition, int] | None,
    group: str | None,
) -> None:
    """Copy records until the limit, the ends (None: endless), or a cancellation."""
    committed: dict[TopicPartition, int] = {}
    while True:
        batches = await consumer.getmany(timeout_ms=_POLL_MS, max_records=_RECORDS_AT_ONCE)
        reached = await _positions(consumer)
        # What is written is also committed, whenever a signal comes.
        with anyio.CancelScope(shield=True):
            for tp, records in batches.items():
                count = await writer.write(records)
                if count < len(records):
                    reached[tp] = records[count].offset
            # Also where nothing was read yet: the next run goes on where this one began.
            if group is not None and reached != committed and await _commit(consumer, reached):
                committed = reached
        at_end = ends is not None and all(reached[tp] >= ends.get(tp, 0) for tp in reached)
        if at_end or writer.is_full:
            return


async def _positions(consumer: AIOKafkaConsumer[bytes, bytes]) -> dict[TopicPartition, int]:
    """The next offset of each partition that is ours, and stays so while we ask."""
    positions: dict[TopicPartition, int] = {}
    for tp in consumer.assignment():
        with suppress(IllegalStateError):
            positions[tp] = await consumer.position(tp)
    return positions


async def _commit(
    consumer: AIOKafkaConsumer[bytes, bytes], offsets: dict[TopicPartition, int]
) -> bool:
    """Commit; false when the group has rebalanced: what it gave to others, they will read again."""
    try:
        with anyio.fail_after(_COMMIT_SECONDS):
            await consumer.commit(offsets)
    except (CommitFailedError, IllegalStateError):
        return False
    except TimeoutError:
        raise CommandError(
            f"the offsets were not committed within {_COMMIT_SECONDS:g} seconds: does the broker"
            " still run? The last records will be read again"
        ) from None
    return True


async def _partitions(
    settings: dict[str, Any], topics: Sequence[str], only: Sequence[int]
) -> list[TopicPartition]:
    """The partitions that are wanted. Raises CommandError for one that does not exist."""
    async with open_admin(settings) as admin:
        existing = await admin.topics(internal=True)
    for topic in topics:
        if topic not in existing:
            raise CommandError(f"topic {topic}: does not exist")
        for index in only:
            if not 0 <= index < existing[topic]:
                raise CommandError(
                    f"topic {topic} has no partition {index}: it has {existing[topic]}"
                )
    return [
        TopicPartition(topic, index) for topic in topics for index in only or range(existing[topic])
    ]


@asynccontextmanager
async def _reading(
    partitions: Sequence[TopicPartition],
    group: str | None,
    from_beginning: bool,
    settings: dict[str, Any],
) -> AsyncIterator[AIOKafkaConsumer[bytes, bytes]]:
    """A consumer that reads, as a member of its group or everything; leaves the group at the end."""
    reset = "earliest" if from_beginning else "latest"
    consumer = AIOKafkaConsumer(
        group_id=group, auto_offset_reset=reset, enable_auto_commit=False, **settings
    )
    try:
        if group is not None:
            consumer.subscribe(sorted({tp.topic for tp in partitions}))
        await consumer.start()
        if group is None:
            consumer.assign(partitions)
        yield consumer
    finally:
        with anyio.CancelScope(shield=True):
            await consumer.stop()


@contextmanager
def _stopped_by_signals(scope: anyio.CancelScope) -> Iterator[None]:
    """Ctrl-C and SIGTERM are the ordinary end of reading: they cancel `scope`."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, scope.cancel)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
