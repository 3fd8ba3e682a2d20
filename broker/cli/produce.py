"""`kmr broker produce`: lines of stdin become records."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Literal

import anyio
import anyio.lowlevel
from cyclopts import Parameter

from broker.cli.admin import open_admin
from broker.cli.connection import Connection
from broker.cli.errors import CommandError, runs
from broker.cli.text import pairs
from broker.client.producer import BatchProducer, Compression

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["produce", "read_lines"]

_CHUNK_BYTES = 1024 * 1024
_MAX_LINE_BYTES = 64 * 1024 * 1024


@runs
async def produce(
    topic: str,
    /,
    *,
    key_separator: str | None = None,
    header: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
    partition: int | None = None,
    compression: Compression = "none",
    acks: Literal["all", "0", "1"] = "all",
    connection: Connection | None = None,
) -> None:
    """Send each line of stdin as a record; any bytes but the line's end are kept as they are.

    Keys decide about partitions as in Kafka's own clients. The exit code is 0 when every record was
    acknowledged.

    Parameters
    ----------
    topic
        Where to; created if the broker creates topics by itself.
    key_separator
        What divides a line into key and value; a line without it is a value without a key.
    header
        A header of every record as name=value; may be repeated.
    partition
        Send all records there.
    compression
        Codec of the batches.
    acks
        Whose acknowledgement to wait for: all replicas, only the leader (1), nobody (0).
    """
    headers = [(name, value.encode()) for name, value in pairs(header, "--header").items()]
    separator = (key_separator or "").encode()
    settings = (connection or Connection()).client_settings()
    async with open_admin(settings) as admin:
        partitions = await admin.need_topic(topic)
    if partition is not None and not 0 <= partition < partitions:
        raise CommandError(f"topic {topic} has no partition {partition}: it has {partitions}")
    servers = settings.pop("bootstrap_servers")
    async with BatchProducer(
        servers, topic, compression=compression, acks=_ACKS[acks], **settings
    ) as producer:
        async for lines in read_lines(sys.stdin.fileno()):
            values: list[bytes | None] = list(lines)
            keys: list[bytes | None] | None = None
            if separator:
                divided = [line.partition(separator) for line in lines]
                keys = [key if found else None for key, found, _ in divided]
                values = [value if found else key for key, found, value in divided]
            await producer.send(values, keys, headers=headers, partition=partition)
    sys.stderr.write(f"{producer.acknowledged} records sent to {topic}\n")


_ACKS: dict[str, Literal["all", 0, 1]] = {"all": "all", "0": 0, "1": 1}


async def read_lines(fd: int) -> AsyncIterator[list[bytes]]:
    """The lines of a file, pipe or terminal as they arrive, many at a time, without their ends.

    Raises CommandError for a line of more than 64 MiB.
    """
    parts: list[bytes] = []  # of a line whose end has not arrived
    size = 0
    while chunk := await _read(fd):
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = b"".join([*parts, lines[0]])
            parts, size = [], 0
            yield lines
        if rest:
            parts.append(rest)
            size += len(rest)
        if size > _MAX_LINE_BYTES:
            raise CommandError(f"a line of stdin is longer than {_MAX_LINE_BYTES} bytes")
    if parts:
        yield [b"".join(parts)]


async def _read(fd: int) -> bytes:
    try:
        await anyio.wait_readable(fd)
    except PermissionError:
        # An ordinary file is always readable; let heartbeats and acknowledgements through all the same.
        await anyio.lowlevel.checkpoint()
    return os.read(fd, _CHUNK_BYTES)
