"""`kmr broker produce`: send the lines of stdin as records."""

from __future__ import annotations

import os
import sys
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Literal, NamedTuple

import anyio
import anyio.lowlevel

from ..client import BatchProducer, Compression, ProduceError
from .client_command import ClientFlags, client_command, client_settings
from .cluster_admin import check_partition, open_admin
from .terminal import CommandError, Texts, pairs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from ..client import Header

_CHUNK_BYTES = 1024 * 1024
_MAX_LINE_BYTES = 64 * 1024 * 1024


@client_command
async def produce(
    topic: str,
    /,
    *,
    key_separator: str | None = None,
    null: str | None = None,
    header: Texts = (),
    header_separator: str | None = None,
    partition: int | None = None,
    compression: Compression = "none",
    acks: Literal["all", "0", "1"] = "all",
    client: ClientFlags | None = None,
) -> None:
    """Send each line of stdin as a record, as raw bytes without the line end.

    The key chooses the partition, as in Kafka's Java client. The exit code is 0 when every record was
    acknowledged.

    For example:

        kmr broker produce orders < lines.txt
        kmr broker produce orders --key-separator : --compression zstd < keyed.txt
        echo "7:NULL" | kmr broker produce customers --key-separator : --null NULL

    Parameters
    ----------
    topic
        Topic to send to; created if the cluster creates topics automatically.
    key_separator
        Text between key and value in a line; a line without it is a value without a key.
    null
        A value that is this text is null: with a key, a tombstone.
    header
        A header of every record as name=value; may be repeated.
    header_separator
        Text between a line's own headers, as name=value,name=value, and its key and value; a line without it
        has none.
    partition
        Send all records to this partition.
    compression
        Compression codec of the batches.
    acks
        Acknowledgement to wait for: all replicas, only the leader (1), or none (0).
    """
    headers = [(name, value.encode()) for name, value in pairs(header, "--header").items()]
    line_format = _LineFormat(
        (header_separator or "").encode(),
        (key_separator or "").encode(),
        None if null is None else null.encode(),
    )
    settings = client_settings(client)
    async with open_admin(settings) as admin:
        partitions = await admin.ensure_topic(topic)
    if partition is not None:
        check_partition(topic, partition, partitions)
    servers = settings.pop("bootstrap_servers")
    producer = BatchProducer(servers, topic, compression=compression, acks=_ACKS[acks], **settings)
    try:
        async with producer:
            async for lines in read_lines(sys.stdin.fileno()):
                for own, values, keys in line_format.records(lines):
                    await producer.send(values, keys, headers=[*headers, *own], partition=partition)
    except ProduceError as error:
        raise CommandError(str(error)) from error
    sys.stderr.write(f"{producer.acknowledged} records sent to {topic}\n")


class _LineFormat(NamedTuple):
    """The texts between headers, key and value of a line. If one is empty, lines do not have that part."""

    header_separator: bytes
    key_separator: bytes
    null: bytes | None

    def records(
        self, lines: Sequence[bytes]
    ) -> Iterator[tuple[list[Header], list[bytes | None], list[bytes | None] | None]]:
        """Yield headers with the values and keys of the lines in a row that have these headers."""
        if not self.header_separator:
            yield [], *self._values_and_keys(lines)
            return
        divided = [line.partition(self.header_separator) for line in lines]
        with_headers = [
            (before if found else b"", rest if found else before) for before, found, rest in divided
        ]
        for text, same in groupby(with_headers, key=itemgetter(0)):
            yield _headers(text), *self._values_and_keys([rest for _, rest in same])

    def _values_and_keys(
        self, lines: Sequence[bytes]
    ) -> tuple[list[bytes | None], list[bytes | None] | None]:
        values: list[bytes | None] = list(lines)
        keys: list[bytes | None] | None = None
        if self.key_separator:
            divided = [line.partition(self.key_separator) for line in lines]
            keys = [key if found else None for key, found, _ in divided]
            values = [value if found else key for key, found, value in divided]
        if self.null is not None:
            values = [None if value == self.null else value for value in values]
        return values, keys


def _headers(text: bytes) -> list[Header]:
    found = [pair.partition(b"=") for pair in text.split(b",") if pair]
    for name, equals, _ in found:
        if not (name and equals):
            raise CommandError(
                f"stdin: headers of a line must be name=value,name=value, not {text!r}"
            )
    return [(name.decode(errors="replace"), value) for name, _, value in found]


_ACKS: dict[str, Literal["all", 0, 1]] = {"all": "all", "0": 0, "1": 1}


async def read_lines(fd: int) -> AsyncIterator[list[bytes]]:
    """Yield the lines of a file, pipe or terminal in lists as they arrive, without line ends.

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
            raise CommandError(f"stdin: a line has more than {_MAX_LINE_BYTES} bytes")
    if parts:
        yield [b"".join(parts)]


async def _read(fd: int) -> bytes:
    try:
        await anyio.wait_readable(fd)
    except PermissionError:
        # A regular file is always readable; let heartbeats and acknowledgements run all the same.
        await anyio.lowlevel.checkpoint()
    return os.read(fd, _CHUNK_BYTES)
