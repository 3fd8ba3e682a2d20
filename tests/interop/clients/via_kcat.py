"""kcat, a program on top of librdkafka, as Debian packages it."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
from asyncio.subprocess import PIPE, Process
from contextlib import asynccontextmanager
from itertools import groupby
from typing import TYPE_CHECKING

import anyio

from .base import HEARTBEAT_MS, SESSION_MS, TIMEOUT, At, Member, Message, Record, TooLarge

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from .base import Acks, Codec, Headers, Journal, Start

KEY_ENDS = "<key>"
MESSAGE_ENDS = "<end>"
FORMAT = r"%p %o %T %K %S %h\n%k%s"
RECONNECT = ["-E", "-X", "reconnect.backoff.ms=20", "-X", "reconnect.backoff.max.ms=200"]


class Kcat:
    name = "kcat"

    @property
    def missing(self) -> str | None:
        return None if shutil.which("kcat") else "kcat is not installed (apt-get install kcat)"

    def has(self, codec: Codec) -> bool:
        return True

    def can_send(self, message: Message) -> bool:
        value, key, headers = message
        no_notation = (value, key) in {(None, b""), (b"", None)}
        return not no_notation and all(name for name, _ in headers)

    @asynccontextmanager
    async def producer(
        self, servers: str, *, codec: Codec = "none", acks: Acks = "all", idempotent: bool = False
    ) -> AsyncIterator[_Producer]:
        settings = ["-z", codec, "-X", f"acks={acks}", "-X", "message.max.bytes=10000000"]
        settings += ["-X", f"enable.idempotence={str(idempotent).lower()}", *RECONNECT]
        yield _Producer(servers, settings)

    @asynccontextmanager
    async def reader(
        self, servers: str, topic: str, start: Start = "beginning", *, partition: int = 0
    ) -> AsyncIterator[_Reader]:
        where = f"s@{start.timestamp}" if isinstance(start, At) else str(start)
        arguments = ["-C", "-u", "-t", topic, "-p", str(partition), "-o", where, "-f", FORMAT]
        async with _running(servers, *arguments, *RECONNECT) as process:
            # Between finding no record of a time and asking for the end, kcat would miss a new record.
            if start == "end" or isinstance(start, At):
                await _line(process, "Reached end of topic")
            yield _Reader(process)

    @asynccontextmanager
    async def member(
        self, servers: str, group: str, topic: str, journal: Journal
    ) -> AsyncIterator[Member]:
        settings = [f"heartbeat.interval.ms={HEARTBEAT_MS}", f"session.timeout.ms={SESSION_MS}"]
        settings += ["auto.offset.reset=earliest", "auto.commit.interval.ms=100"]
        arguments = [each for setting in settings for each in ("-X", setting)]
        arguments += ["-G", group, "-u", "-f", FORMAT, *RECONNECT, topic]
        member = Member(journal)
        async with _running(servers, *arguments) as process:
            tasks = [
                asyncio.create_task(_follow_assignments(process, member)),
                asyncio.create_task(_follow_records(process, member)),
            ]
            member.lives_in(asyncio.gather(*tasks))
            try:
                yield member
            finally:
                if process.returncode is None:
                    process.send_signal(signal.SIGINT)
                with anyio.CancelScope(shield=True):
                    await asyncio.gather(*tasks)
                member.left()


class _Producer:
    def __init__(self, servers: str, settings: list[str]) -> None:
        self._servers = servers
        self._settings = settings

    async def send(self, topic: str, messages: Sequence[Message], *, partition: int = 0) -> None:
        """One kcat for each run of messages that it can take in one stream."""
        arguments = ["-P", "-t", topic, "-p", str(partition), "-D", MESSAGE_ENDS, *self._settings]
        for form, run in groupby(messages, _form):
            flags, headers = form
            stream = b"".join(_streamed(message, keyed="-K" in flags) for message in run)
            for name, value in headers:
                shown = name.encode() if value is None else name.encode() + b"=" + value
                flags = (*flags, "-H", shown)
            async with _running(self._servers, *arguments, *flags) as process:
                _, errors = await asyncio.wait_for(process.communicate(stream), TIMEOUT)
            if b"Message size too large" in errors:
                raise TooLarge
            assert process.returncode == 0, errors


def _form(message: Message) -> tuple[tuple[str | bytes, ...], Headers]:
    """The flags with which kcat takes such a message, and its headers.

    -Z makes null of empty values and of empty keys; nothing at all between two delimiters is no message.
    """
    value, key, headers = message
    flags = () if key is None and value else ("-K", KEY_ENDS)
    return (*flags, "-Z") if value is None else flags, headers


def _streamed(message: Message, *, keyed: bool) -> bytes:
    key = (message.key or b"") + KEY_ENDS.encode() if keyed else b""
    return key + (message.value or b"") + MESSAGE_ENDS.encode()


class _Reader:
    def __init__(self, process: Process) -> None:
        self._process = process

    async def read(self, count: int) -> list[Record]:
        async with asyncio.timeout(TIMEOUT):
            return [await _record(self._process) for _ in range(count)]


async def _record(process: Process) -> Record:
    """The next record of the output; raises IncompleteReadError at its end."""
    assert process.stdout is not None
    line = (await process.stdout.readuntil(b"\n"))[:-1]
    partition, offset, timestamp, key_size, value_size, headers = line.split(b" ", 5)
    key, value = [
        None if size < 0 else await process.stdout.readexactly(size)
        for size in (int(key_size), int(value_size))
    ]
    message = Message(value, key, _headers(headers))
    return Record(int(partition), int(offset), int(timestamp), message)


def _headers(shown: bytes) -> Headers:
    if not shown:
        return ()
    pairs = [each.split(b"=", 1) for each in shown.split(b",")]
    return tuple((name.decode(), None if value == b"NULL" else value) for name, value in pairs)


async def _follow_records(process: Process, member: Member) -> None:
    while True:
        try:
            record = await _record(process)
        except asyncio.IncompleteReadError:
            return
        member.read([record])


async def _follow_assignments(process: Process, member: Member) -> None:
    assert process.stderr is not None
    while line := (await process.stderr.readline()).decode():
        if " rebalanced " in line:
            _, _, partitions = line.partition(" assigned: ")
            member.assigned(int(index) for index in re.findall(r"\[(\d+)\]", partitions))


async def _line(process: Process, text: str) -> None:
    """Wait until kcat says so."""
    assert process.stderr is not None
    async with asyncio.timeout(TIMEOUT):
        while text not in (line := (await process.stderr.readline()).decode()):
            assert line, "kcat ended"


@asynccontextmanager
async def _running(servers: str, *arguments: str | bytes) -> AsyncIterator[Process]:
    """A kcat that is killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        "kcat", "-b", servers, *arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=2**26
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        with anyio.CancelScope(shield=True):
            await process.communicate()
