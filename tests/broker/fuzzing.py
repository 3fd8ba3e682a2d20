"""A storm of random and mutated requests and record batches, with honest clients beside it.

`tests/broker/test_fuzz.py` sends a few thousand. `python -m tests.broker.fuzzing --requests 1000000 --seed 1`
sends as many as it is told, damages files and lets disks fail, and says what it has found.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import io
import os
import random
import re
import shutil
import struct
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, Self, get_args
from uuid import UUID

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from crc32c import crc32c

from kmr.broker import Broker, BrokerError, BrokerSettings
from kmr.broker.apis.catalogue import SERVED
from kmr.broker.log.records import (
    CODECS,
    CRC_START,
    HEADER_BYTES,
    NewRecord,
    _compress,
    build_batch,
    parse_header,
    read_body,
)
from kmr.broker.log.results import LogError
from tests.broker.raw_client import RawClient, request_type

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from dataclasses import Field

HONEST: Final = "honest"
PRODUCE, LIST_OFFSETS = 0, 2
TOPICS: Final = {
    "plain": {},
    "compacted": {
        "cleanup.policy": "compact",
        "internal.segment.bytes": "2000",
        "min.cleanable.dirty.ratio": "0",
        "delete.retention.ms": "1",
    },
    "gzipped": {"compression.type": "gzip"},
    "stamped": {"message.timestamp.type": "LogAppendTime", "internal.segment.bytes": "2000"},
    "dated": {"message.timestamp.before.max.ms": "100000000", "compression.type": "zstd"},
}
_NAMES: Final = (
    *TOPICS,
    "group",
    "",
    "consumer",
    "range",
    "retention.ms",
    "1000",
    "x" * 300,
    "é",
    "a b",
)
_BIG: Final = 200_000
_FIELDS: Final = {
    "attributes": (21, ">h"),
    "last_offset_delta": (23, ">i"),
    "base_timestamp": (27, ">q"),
} | {
    "max_timestamp": (35, ">q"),
    "producer_id": (43, ">q"),
    "producer_epoch": (51, ">h"),
    "base_sequence": (53, ">i"),
    "record_count": (57, ">i"),
    "length": (8, ">i"),
    "magic": (16, ">b"),
    "base_offset": (0, ">q"),
}


class Fuzzer:
    """Random requests and batches; the same seed makes the same."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._versions = [
            (api.key, version)
            for api in SERVED
            for version in range(api.min_version, api.max_version + 1)
            if (api.key, version) not in {(PRODUCE, 0), (PRODUCE, 1), (PRODUCE, 2)}
        ]

    # -- requests ----------------------------------------------------------------------------------

    def request(self) -> bytes:
        """The frame of a request, sound or damaged."""
        key, version = self.random.choice(self._versions)
        frame = RawClient.frame(None, self._entity(request_type(key, version)), 7)  # type: ignore[arg-type]
        return frame if self.random.random() < 0.5 else self._damaged(frame)

    def _entity(self, schema: Any) -> Any:
        return schema(**{each.name: self._field(each) for each in fields(schema)})

    def _field(self, field: Field[Any]) -> Any:
        if type(None) in get_args(field.type) and self.random.random() < 0.2:
            return None
        entity = next((each for each in _leaves(field.type) if is_dataclass(each)), None)
        make: Callable[[], Any] = (
            (lambda: self._entity(entity)) if entity else self._makers[field.metadata["kafka_type"]]
        )
        if any(each is Ellipsis for each in _all_arguments(field.type)):
            return tuple(make() for _ in range(self.random.choice((0, 1, 1, 2, 30))))
        return make()

    @property
    def _makers(self) -> dict[str, Callable[[], Any]]:
        chosen = self.random
        times = lambda: timedelta(milliseconds=chosen.choice((-1, 0, 1, 20)))  # noqa: E731
        return {
            "bool": lambda: chosen.random() < 0.5,
            "bytes": lambda: chosen.randbytes(chosen.choice((0, 1, 30, 300))),
            "int8": lambda: self._integer(8),
            "int16": lambda: self._integer(16),
            "int32": lambda: self._integer(32),
            "int64": lambda: self._integer(64),
            "float64": chosen.random,
            "records": self.batch,
            "string": lambda: chosen.choice(_NAMES),
            "timedelta_i32": times,
            "timedelta_i64": times,
            "uuid": lambda: UUID(bytes=chosen.randbytes(16)),
        }

    def _integer(self, bits: int) -> int:
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        return self.random.choice(
            (0, 0, 0, 1, 1, 2, 3, 4, -1, -2, low, high, self.random.randint(low, high))
        )

    def _damaged(self, frame: bytes) -> bytes:
        chosen = self.random
        body = bytearray(frame[4:])
        for _ in range(chosen.randint(1, 3)):
            at = chosen.randrange(len(body) + 1)
            match chosen.randrange(5):
                case 0:
                    del body[at:]
                case 1:
                    body[at : at + 1] = chosen.randbytes(1)
                case 2:
                    body[at : at + 4] = chosen.choice(
                        (
                            b"\xff" * 4,
                            b"\x7f\xff\xff\xff",
                            b"\x80\0\0\0",
                            b"\0\0\x7f\xff",
                            b"\xff\xff\xff\xff\x0f",
                        )
                    )
                case 3:
                    body[at:at] = chosen.randbytes(chosen.randint(1, 8))
                case 4:
                    body[at : at + 8] = body[:8]
        size = len(body) if chosen.random() < 0.95 else self._integer(32)
        return struct.pack(">i", size) + body

    # -- batches -----------------------------------------------------------------------------------

    def batch(self) -> bytes:
        """A record batch, sound or with wrong fields; most have the right checksum."""
        chosen = self.random
        count = chosen.choice((1, 1, 2, 2, 3, 10, 600))
        codec = chosen.choice(tuple(CODECS))
        batch = build_batch([self._record() for _ in range(count)], codec=codec)
        for _ in range(chosen.choice((0, 0, 1, 1, 2, 3))):
            if len(batch) <= HEADER_BYTES:
                break
            match chosen.randrange(6):
                case 0 | 1:
                    at, layout = _FIELDS[chosen.choice(tuple(_FIELDS))]
                    struct.pack_into(layout, batch, at, self._integer(8 * struct.calcsize(layout)))
                case 2:
                    batch[chosen.randrange(HEADER_BYTES, len(batch))] ^= 1 << chosen.randrange(8)
                case 3:
                    del batch[chosen.randrange(HEADER_BYTES, len(batch)) :]
                case 4:
                    batch = self._recompressed(batch)
                case 5:
                    struct.pack_into(">h", batch, 21, chosen.randrange(5))  # another codec
        if chosen.random() < 0.95 and len(batch) >= HEADER_BYTES:
            if chosen.random() < 0.9:
                struct.pack_into(">i", batch, 8, len(batch) - 12)
            struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[CRC_START:]))
        return bytes(batch)

    def _recompressed(self, batch: bytearray) -> bytearray:
        """Damage the records before they are compressed, or compress them twice."""
        chosen = self.random
        try:
            header = parse_header(batch)
            body = bytearray(batch[HEADER_BYTES:])
            if chosen.random() < 0.5:
                body = bytearray(read_body(batch, header, 1_000_000))
                for _ in range(chosen.randint(1, 4)):
                    body[chosen.randrange(len(body))] = chosen.randrange(256)
                if chosen.random() < 0.2:
                    body *= chosen.randint(1, _BIG // len(body) + 1)
            if header.compression in (1, 2, 3, 4):
                return batch[:HEADER_BYTES] + _compress(header.compression, bytes(body))
        except Exception:  # noqa: BLE001  what is damaged already stays as it is
            return batch
        return batch[:HEADER_BYTES] + body

    def _record(self) -> NewRecord:
        chosen, now = self.random, int(time.time() * 1000)
        moments = (now, now, now, -1, 0, now + 3_000_000, now - 2**63 + 1, now - 10**9, 2**62)
        return NewRecord(
            chosen.choice((None, b"", b"a", b"b", b"c", b"c")),
            chosen.choice((None, b"", b"value", b"v" * 500)),
            chosen.choice(((), (("h", None),), (("", b"x"), ("h", b"")))),
            chosen.choice(moments),
        )


def _leaves(field_type: Any) -> list[Any]:
    return [leaf for each in get_args(field_type) for leaf in _leaves(each)] or [field_type]


def _all_arguments(field_type: Any) -> list[Any]:
    found = list(get_args(field_type))
    return found + [each for argument in found for each in _all_arguments(argument)]


class Storm:
    """Sends what a fuzzer makes to a broker, while an honest client produces.

    Attributes:
        acknowledged: numbers of the honest records that the broker has acknowledged.
    """

    def __init__(self, broker: Broker, fuzzer: Fuzzer) -> None:
        self.broker = broker
        self.fuzzer = fuzzer
        self.acknowledged: list[int] = []

    async def create_topics(self) -> None:
        for name, settings in TOPICS.items():
            await self.broker.topics.create(name, 2, settings)
        await self.broker.topics.create(HONEST, 1, {"retention.ms": "-1", "retention.bytes": "-1"})

    async def run(self, requests: int) -> None:
        """Send so many requests."""
        honest = asyncio.create_task(self._produce_honestly())
        try:
            sent = 0
            while sent < requests:
                some = min(requests - sent, 400)
                await asyncio.gather(*(self._attack(some // 16 + 1) for _ in range(16)))
                sent += 16 * (some // 16 + 1)
                if honest.done():
                    break
        finally:
            honest.cancel()
            with suppress(asyncio.CancelledError):
                await honest

    async def _attack(self, requests: int) -> None:
        """Send requests over one connection after the other; a broker may close each."""
        left = requests
        while left > 0:
            client = await RawClient.connect(self.broker.bootstrap_servers)
            try:
                for _ in range(self.fuzzer.random.randint(1, 5)):
                    left -= 1
                    await client.send_bytes(self._frame())
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.02):
                        while await client.reader.read(2**16):
                            pass
            except ConnectionError:
                pass
            finally:
                await client.close()

    def _frame(self) -> bytes:
        chosen = self.fuzzer.random
        topic = chosen.choice(tuple(TOPICS))
        kind = chosen.random()
        if kind < 0.4:
            part = {"index": chosen.randrange(2), "records": self.fuzzer.batch()}
            topics = [{"name": topic, "partition_data": [part]}]
            return self._sound(PRODUCE, 8, acks=chosen.choice((-1, 1, 0)), topic_data=topics)
        if kind < 0.5:
            times = (-3, -1, 0, int(time.time() * 1000), 2**62, -(2**62))
            part = {"partition_index": chosen.randrange(2), "timestamp": chosen.choice(times)}
            return self._sound(LIST_OFFSETS, 7, topics=[{"name": topic, "partitions": [part]}])
        return self.fuzzer.request()

    def _sound(self, key: int, version: int, **values: Any) -> bytes:
        client = RawClient(None, None)  # type: ignore[arg-type]
        return client.frame(client.message(key, version, **values), 7)

    async def _produce_honestly(self) -> None:
        servers = self.broker.bootstrap_servers
        async with AIOKafkaProducer(bootstrap_servers=servers, acks="all") as producer:
            for number in range(sys.maxsize):
                await producer.send_and_wait(HONEST, b"%d" % number, partition=0)
                self.acknowledged.append(number)
                await asyncio.sleep(0)


async def consumed(broker: Broker, topic: str = HONEST) -> list[bytes]:
    """The values of all records of the first partition of a topic."""
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap_servers)
    async with consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        end = (await consumer.end_offsets([partition]))[partition]
        values: list[bytes] = []
        while await consumer.position(partition) < end:
            found = await consumer.getmany(partition, timeout_ms=1000)
            values += [record.value for record in found.get(partition, ())]
        return values


def readable(broker: Broker) -> None:
    """Read the logs of all topics from their start to their end. Raises LogError."""
    for topic in broker.topics:
        for partition in topic.partitions:
            for _ in partition.log.batches():
                pass


async def storm(directory: Path, seed: int, requests: int) -> list[str]:
    """One storm, and a restart after it; return what is wrong."""
    settings = BrokerSettings(
        data_dir=directory,
        port=0,
        max_partitions=200,
        compaction_check_interval=0.05,
        retention_check_interval=0.2,
        group_min_session_timeout=0.02,
        group_max_session_timeout=0.1,
        request_memory_bytes=128 * 1024 * 1024,
    )
    findings: list[str] = []
    with structlog.testing.capture_logs() as logs:
        async with Broker(settings) as broker:
            storm = Storm(broker, Fuzzer(seed))
            await storm.create_topics()
            await storm.run(requests)
            if broker.health.live() or broker.health.warnings():
                findings.append(f"health: {broker.health.live()} {broker.health.warnings()}")
            findings += _missing(storm.acknowledged, await consumed(broker))
        async with Broker(settings) as broker:
            readable(broker)
            findings += _missing(storm.acknowledged, await consumed(broker))
    unexpected = [each for each in logs if each["log_level"] == "error" or each.get("exc_info")]
    return findings + [f"log: {each}" for each in unexpected]


# -- files -----------------------------------------------------------------------------------------


def _flip(path: Path, chosen: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(chosen.choice((1, 1, 20))):
        if data:
            data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
    path.write_bytes(data)


def _cut(path: Path, chosen: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: chosen.randrange(path.stat().st_size + 1)])


def _fill(path: Path, chosen: random.Random) -> None:
    path.write_bytes(
        chosen.choice((b"", b"\0" * 5000, b"{}", b"null", chosen.randbytes(500), b"\xff" * 100))
    )


def _remove(path: Path, _: random.Random) -> None:
    path.unlink()


def _become_a_directory(path: Path, _: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _link_to_itself(path: Path, _: random.Random) -> None:
    path.unlink()
    path.symlink_to(path)


def _hide_its_directory(path: Path, chosen: random.Random) -> None:
    parent = path.parent
    shutil.rmtree(parent)
    if chosen.random() < 0.5:
        parent.write_bytes(b"not a directory")


def _forbid(path: Path, chosen: random.Random) -> None:
    path.chmod(0)
    if os.getuid() == 0:
        os.chown(path, chosen.randrange(1000, 60_000), -1)


def _add_strangers(path: Path, chosen: random.Random) -> None:
    for name in ("stranger", "00000000000000000007.log", "x.swap", "1.deleted", "topic.json.tmp"):
        (path.parent / name).write_bytes(chosen.randbytes(chosen.choice((0, 100))))


def _exchange(path: Path, chosen: random.Random) -> None:
    other = chosen.choice([each for each in path.parent.iterdir() if each.is_file()])
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)


def _double(path: Path, _: random.Random) -> None:
    path.write_bytes(path.read_bytes() * 2)


def _change_numbers(path: Path, chosen: random.Random) -> None:
    """Also to a version of the future."""
    numbers = (b"-1", b"99", b"99999999999999999999", b"NaN", b"1e400", b"null", b'"x"')
    content = re.sub(rb"\d+", lambda _: chosen.choice(numbers), path.read_bytes())
    path.write_bytes(content)


def _rename(path: Path, chosen: random.Random) -> None:
    names = ("99999999999999999999.log", "-1.log", "0.log", "x" * 200, "00000000000000000000.index")
    path.rename(path.with_name(chosen.choice(names)))


DAMAGES: Final = (
    *(_flip, _cut, _fill, _remove, _become_a_directory, _link_to_itself, _hide_its_directory),
    *(_forbid, _add_strangers, _exchange, _double, _change_numbers, _rename),
)


async def damage(intact: Path, scratch: Path, seed: int) -> list[str]:
    """Start a broker on a damaged copy of its files; return what is wrong."""
    chosen = random.Random(seed)
    directory = scratch / f"damaged-{seed}"
    shutil.copytree(intact, directory)
    done = []
    for _ in range(chosen.choice((1, 1, 2, 5))):
        paths = [each for each in sorted(directory.rglob("*")) if each.is_file()]
        if paths:
            path, how = chosen.choice(paths), chosen.choice(DAMAGES)
            done.append(f"{how.__name__} {path.relative_to(directory)}")
            how(path, chosen)
    settings = BrokerSettings(data_dir=directory, port=0, compaction_check_interval=0.02)
    try:
        async with asyncio.timeout(60):
            async with Broker(settings) as broker:
                with suppress(LogError, OSError):
                    readable(broker)
                client = await RawClient.connect(broker.bootstrap_servers)
                await produce(client, b"x", topic="plain")
                await client.close()
    except BrokerError:
        pass
    except Exception as error:  # noqa: BLE001  this is what it looks for
        return [f"seed {seed}, {done}: {''.join(traceback.format_exception(error))[-1500:]}"]
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return []


async def produce(client: RawClient, value: bytes, topic: str = HONEST) -> bool:
    """Produce one record; whether it was acknowledged."""
    batch = bytes(build_batch([NewRecord(b"k", value, (), int(time.time() * 1000))]))
    part = {"index": 0, "records": batch}
    topics = [{"name": topic, "partition_data": [part]}]
    async with asyncio.timeout(60):
        answer = await client.call(PRODUCE, 8, acks=-1, topic_data=topics)
    return bool(answer.responses[0].partition_responses[0].error_code == 0)


# -- disks -----------------------------------------------------------------------------------------

CALLS: Final = (
    *("pwrite", "pwritev", "preadv", "fsync", "fdatasync", "open", "rename", "replace", "unlink"),
    *("remove", "rmdir", "mkdir", "ftruncate", "truncate", "listdir", "scandir", "stat", "close"),
)


class FailingDisk:
    """Lets calls of the operating system fail by chance, while it is entered."""

    def __init__(self, seed: int, root: Path) -> None:
        self.random = random.Random(seed)
        self.chance = 0.0
        self.failures = 0
        self._root = str(root)
        self._real: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Self:
        for module, name in (*((os, each) for each in CALLS), (io, "open")):
            real = getattr(module, name)
            self._real.append((module, name, real))
            setattr(module, name, self._failing(name, real))
        return self

    def __exit__(self, *_: object) -> None:
        for module, name, real in self._real:
            setattr(module, name, real)

    def _failing(self, name: str, real: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            ours = arguments and (
                isinstance(arguments[0], int) or str(arguments[0]).startswith(self._root)
            )
            if ours and self.random.random() < self.chance:
                self.failures += 1
                if name == "close":
                    real(*arguments, **named)
                number = self.random.choice((errno.EIO, errno.ENOSPC, errno.EMFILE))
                raise OSError(number, os.strerror(number))
            return real(*arguments, **named)

        return call


async def failing_disk(directory: Path, seed: int, steps: int) -> list[str]:
    """Produce, commit, create and delete on a disk that fails by chance; return what is wrong."""
    settings = BrokerSettings(
        data_dir=directory,
        port=0,
        compaction_check_interval=0.01,
        retention_check_interval=0.02,
        fsync="interval",
        fsync_interval=0.05,
        segment_bytes=5_000,
        message_max_bytes=2_000,
    )
    acknowledged: list[int] = []
    findings: list[str] = []
    try:
        with FailingDisk(seed, directory) as disk:
            async with Broker(settings) as broker:
                storm = Storm(broker, Fuzzer(seed))
                await storm.create_topics()
                disk.chance = 0.05
                client = await RawClient.connect(broker.bootstrap_servers)
                for number in range(steps):
                    if await produce(client, b"%d" % number):
                        acknowledged.append(number)
                    await produce(client, b"x", "compacted")
                    await storm._attack(2)
                await client.close()
                disk.chance = 0.0
        async with Broker(settings) as broker:
            found = [int(each) for each in await consumed(broker)]
            if [each for each in found if each in set(acknowledged)] != acknowledged:
                findings.append(
                    f"seed {seed}: {len(acknowledged)} acknowledged, {len(found)} there"
                )
    except BrokerError as error:
        findings.append(f"seed {seed}: {error}")
    except Exception as error:  # noqa: BLE001  this is what it looks for
        findings.append(f"seed {seed}: {''.join(traceback.format_exception(error))[-1500:]}")
    return findings


def _missing(acknowledged: Sequence[int], values: Sequence[bytes]) -> list[str]:
    found = [int(each) for each in values]
    if not acknowledged:
        return ["the honest client could produce nothing"]
    if found[: len(acknowledged)] != list(acknowledged):
        return [
            f"of {len(acknowledged)} honest records {len(found)} are there, or in another order"
        ]
    return []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    began, step, wrong = time.monotonic(), 20_000, 0
    for at in range(0, options.requests, step):
        seed = options.seed + at // step
        with TemporaryDirectory() as directory:
            intact = Path(directory, "intact")
            findings = asyncio.run(storm(intact, seed, min(step, options.requests - at)))
            for each in range(20):
                findings += asyncio.run(damage(intact, Path(directory), seed * 20 + each))
            findings += asyncio.run(failing_disk(Path(directory, "disk"), seed, 100))
        wrong += len(findings)
        done, seconds = at + step, time.monotonic() - began
        lines = [f"seed {seed}: {done} requests, {seconds:.0f} s, {len(findings)} findings"]
        sys.stdout.write("\n   ".join((*lines, *(each[:600] for each in findings[:20]))) + "\n")
        sys.stdout.flush()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
