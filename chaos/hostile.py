"""A client that means harm, beside the normal load: no request of its may keep another client's answer."""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, ClassVar, Final

import anyio
from aiokafka.admin import NewTopic
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from chaos.proxies import BROKEN
from chaos.site import Site
from kmr.chaos.faults import StormFault

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from anyio.abc import SocketStream


_TOPIC: Final = "chaos-hostile"
_PRODUCE, _FETCH, _METADATA = 0, 1, 3
_ANSWER: Final = 5.0  # seconds to wait for an answer that may never come
_TRICKLE: Final = 0.2  # seconds between two bytes
_RECORDS: Final = 10_000
_LONGEST: Final = 30.0  # seconds for as many records to be acknowledged meanwhile


@dataclass
class _Tally:
    """What the client has done, and what it got."""

    requests: int = 0
    answered: int = 0
    closed: int = 0
    kinds: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kinds.items()))
        return (
            f"{self.requests} requests ({kinds}): {self.answered} answered, "
            f"{self.closed} connections closed by the broker"
        )


class HostileClient(StormFault[Site]):
    """Requests that are oversized, false, endless or cut short, on many connections, under a normal load."""

    name = "hostile-client"
    needs = frozenset({"broker"})
    connections: ClassVar[int] = 9  # one for each kind of request

    async def strike(self, site: Site, random: Random) -> str:
        """Raise TimeoutError if the load does not go on meanwhile."""
        tally = _Tally()
        kinds = list(_REQUESTS.items())
        random.shuffle(kinds)
        async with site.admin() as admin:
            await admin.create_topics(
                [NewTopic(_TOPIC, 1, 1)]
            )  # or it is there from the last round
        began = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            for _, (name, request) in zip(range(self.connections), cycle(kinds), strict=False):
                tasks.start_soon(_attack, site.bootstrap_servers, name, request, tally)
            tasks.start_soon(_trickle, site.bootstrap_servers, tally)
            tasks.start_soon(_trickle, site.bootstrap_servers, tally)
            with anyio.move_on_after(_LONGEST) as patience:
                await site.load.until_more(_RECORDS)
            tasks.cancel_scope.cancel()
        if patience.cancelled_caught:
            raise TimeoutError(
                f"{self.name}: not {_RECORDS:,} records in {_LONGEST:g} s beside {tally}"
            )
        seconds = anyio.current_time() - began
        return f"{tally}; {_RECORDS:,} records acknowledged meanwhile, in {seconds:.1f} s"


async def _attack(address: str, kind: str, request: Callable[[], bytes], tally: _Tally) -> None:
    """Send a request again and again, each time when the last one was answered or given up."""
    while True:
        with suppress(*BROKEN):
            stream = await _connect(address)
            async with stream:
                while True:
                    await stream.send(request())
                    tally.requests += 1
                    tally.kinds[kind] = tally.kinds.get(kind, 0) + 1
                    with anyio.move_on_after(_ANSWER) as patience:
                        try:
                            await _read_answer(stream)
                        except BROKEN:
                            tally.closed += 1
                            raise
                    if patience.cancelled_caught:
                        break
                    tally.answered += 1
        await anyio.sleep(0.05)


async def _trickle(address: str, tally: _Tally) -> None:
    """Announce a request of 100 MiB, and send it byte by byte."""
    while True:
        with suppress(*BROKEN):
            async with await _connect(address) as stream:
                await stream.send(struct.pack(">i", 100 * 1024 * 1024))
                tally.requests += 1
                tally.kinds["trickled"] = tally.kinds.get("trickled", 0) + 1
                try:
                    while True:
                        await stream.send(b"\0")
                        await anyio.sleep(_TRICKLE)
                except BROKEN:
                    tally.closed += 1
        await anyio.sleep(0.05)


async def _connect(address: str) -> SocketStream:
    host, _, port = address.rpartition(":")
    return await anyio.connect_tcp(host, int(port))


async def _read_answer(stream: SocketStream) -> None:
    left = 4
    head = b""
    while len(head) < 4:
        head += await stream.receive(4 - len(head))
    (left,) = struct.unpack(">i", head)
    while left > 0:
        left -= len(await stream.receive(min(left, 65_536)))


def _frame(api: int, version: int, body: bytes) -> bytes:
    header = struct.pack(">hhi", api, version, 7) + _string("chaos-hostile")
    return struct.pack(">i", len(header + body)) + header + body


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">h", len(raw)) + raw


def _batch() -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 16,
    )
    builder.append(0, 1_700_000_000_000, b"key", b"value", [])
    return bytes(builder.build())


def _produced(*topics: str) -> bytes:
    """Produce, version 3: one batch for partition 0 of each topic."""
    batch = _batch()
    body = struct.pack(">hhii", -1, -1, 1_000, len(topics))
    for topic in topics:
        body += _string(topic) + struct.pack(">iii", 1, 0, len(batch)) + batch
    return _frame(_PRODUCE, 3, body)


def _one_good_one_endless_name() -> bytes:
    return _produced(_TOPIC, "x" * 32_000)


def _many_topics(count: int) -> bytes:
    """Metadata, version 1, of topics that do not exist."""
    return _frame(_METADATA, 1, struct.pack(">i", count) + _string("x") * count)


def _false_count() -> bytes:
    return _frame(_METADATA, 1, struct.pack(">i", 2**31 - 1) + _string("x"))


def _cut_short() -> bytes:
    whole = _produced(_TOPIC)
    return struct.pack(">i", len(whole) - 40) + whole[4:-36]


def _endless_fetch() -> bytes:
    """Fetch, version 4: 2 GiB of each of 10,000 partitions that do not exist."""
    partitions = b"".join(struct.pack(">iqi", n, 0, 2**31 - 1) for n in range(10_000))
    body = struct.pack(">iiiibi", -1, 2**31 - 1, 1, 2**31 - 1, 0, 1)
    return _frame(_FETCH, 4, body + _string(_TOPIC) + struct.pack(">i", 10_000) + partitions)


def _no_such_api() -> bytes:
    return _frame(9_999, 99, b"\xff" * 64)


def _negative_size() -> bytes:
    return struct.pack(">i", -1)


_REQUESTS: Final[dict[str, Callable[[], bytes]]] = {
    "one good, one endless name": _one_good_one_endless_name,
    "5,000 topics": partial(_many_topics, 5_000),
    "100,000 topics": partial(_many_topics, 100_000),
    "false count": _false_count,
    "cut short": _cut_short,
    "endless fetch": _endless_fetch,
    "no such API": _no_such_api,
    "negative size": _negative_size,
}
