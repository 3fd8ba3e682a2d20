"""`kmr broker consume`: write the records of topics to stdout."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

import anyio
import anyio.to_thread
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError
from cyclopts import Parameter

from .client_command import ClientFlags, client_command, client_settings, log_client_errors
from .cluster_admin import open_admin
from .formats import formatter
from .terminal import CommandError, Flag, UsageError, required

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

_POLL_MS = 200
_RECORDS_AT_ONCE = 5_000
_COMMIT_SECONDS = 10.0


@client_command
async def consume(
    *topics: str,
    group: str | None = None,
    from_beginning: Flag = False,
    follow: Flag = False,
    max_records: int | None = None,
    partition: Annotated[tuple[int, ...], Parameter(negative=(), show_default=False)] = (),
    isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted",
    form: Annotated[str, Parameter("--format")] = "value",
    client: ClientFlags | None = None,
) -> None:
    """Write the records of topics to stdout.

    Without --group it reads all partitions: with --from-beginning from the first record to the current
    end, otherwise new records until Ctrl-C. As a member of a group it reads its assigned partitions from
    the committed offsets to the current end, and commits the offsets of the records it has written.

    For example:

        kmr broker consume orders --from-beginning --format json
        kmr broker consume orders --follow --format '{partition} {offset} {value}\\n'

    Parameters
    ----------
    topics
        Topics to read.
    group
        Read as a member of this consumer group.
    from_beginning
        Begin with the first record; in a group, only for partitions without a committed offset.
    follow
        Do not stop at the end; wait for new records until Ctrl-C.
    max_records
        Stop after this many records.
    partition
        Read only this partition; may be repeated. Not with --group: the group assigns the partitions.
    isolation_level
        read_committed leaves out the records of transactions that were aborted, and ends before the first
        one that is open.
    form
        value, key-value, full, json, raw (no line ends), or a template such as
        '{topic} {partition} {offset} {timestamp} {key} {value} {headers}\\n'. Bytes are written unchanged.
    """
    if group is not None and partition:
        raise UsageError(
            "--partition cannot be used with --group: the group assigns the partitions"
        )
    if max_records is not None and max_records < 1:
        raise UsageError(f"--max-records {max_records}: must be at least 1")
    write = _RecordPrinter(formatter(form), max_records)
    settings = client_settings(client)
    async with open_admin(settings) as admin:
        partitions = await admin.partitions(required(topics, "topic"), partition)
    settings["isolation_level"] = isolation_level
    async with _reading(partitions, group, from_beginning, settings) as consumer:
        with anyio.CancelScope() as reading, _stopped_by_signals(reading), log_client_errors():
            endless = follow or not (from_beginning or group)
            ends = None if endless else dict(await consumer.end_offsets(partitions))
            await _copy(consumer, write, ends, group)
    sys.stdout.flush()


class _RecordPrinter:
    """Writes records in a thread, so that a slow reader of stdout does not delay heartbeats."""

    def __init__(self, form: Callable[[Any], bytes], limit: int | None) -> None:
        self._form = form
        self._left = limit

    @property
    def is_full(self) -> bool:
        return self._left == 0

    async def write(self, records: Sequence[Any]) -> int:
        """Write as many records as the limit allows; return their number."""
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
    writer: _RecordPrinter,
    ends: dict[TopicPartition, int] | None,
    group: str | None,
) -> None:
    """Copy records until the limit, the ends (None: endless), or a cancellation."""
    committed: dict[TopicPartition, int] = {}
    while True:
        try:
            batches = await consumer.getmany(timeout_ms=_POLL_MS, max_records=_RECORDS_AT_ONCE)
        except UnicodeDecodeError as error:  # aiokafka reads names of headers as UTF-8
            raise CommandError(
                f"a header of the next records has the name {error.object!r}, which is not UTF-8; "
                "kmr peek TOPIC shows them"
            ) from None
        reached = await _positions(consumer)
        # A signal must not come between writing records and committing their offsets.
        with anyio.CancelScope(shield=True):
            for tp, records in batches.items():
                count = await writer.write(records)
                if count < len(records):
                    reached[tp] = records[count].offset
            # Also for partitions without records: the next run begins where this one began.
            if group is not None and reached != committed and await _commit(consumer, reached):
                committed = reached
        at_end = ends is not None and all(reached[tp] >= ends.get(tp, 0) for tp in reached)
        if at_end or writer.is_full:
            return


async def _positions(consumer: AIOKafkaConsumer[bytes, bytes]) -> dict[TopicPartition, int]:
    """Return the next offset of each partition that stays assigned during the call."""
    positions: dict[TopicPartition, int] = {}
    for tp in consumer.assignment():
        with suppress(IllegalStateError):
            positions[tp] = await consumer.position(tp)
    return positions


async def _commit(
    consumer: AIOKafkaConsumer[bytes, bytes], offsets: dict[TopicPartition, int]
) -> bool:
    """Commit; return False if the group has rebalanced, so that others read the records again."""
    try:
        with anyio.fail_after(_COMMIT_SECONDS):
            await consumer.commit(offsets)
    except (CommitFailedError, IllegalStateError):
        return False
    except TimeoutError:
        raise CommandError(
            f"group offsets: not committed within {_COMMIT_SECONDS:g} seconds, check that the broker runs;"
            " the last records will be read again"
        ) from None
    return True


@asynccontextmanager
async def _reading(
    partitions: Sequence[TopicPartition],
    group: str | None,
    from_beginning: bool,
    settings: dict[str, Any],
) -> AsyncIterator[AIOKafkaConsumer[bytes, bytes]]:
    """Start a consumer as a member of the group, or of all partitions; leave the group at the end."""
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
    """Cancel `scope` at Ctrl-C and SIGTERM, which end the command normally."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, scope.cancel)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
