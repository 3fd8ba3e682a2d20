"""kcat, as a person uses it at a terminal."""

from __future__ import annotations

import asyncio
import json
import shutil
from asyncio.subprocess import PIPE
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kmr.broker import Broker
    from kmr.testing import StartBroker

pytestmark = pytest.mark.skipif(
    shutil.which("kcat") is None, reason="kcat is not installed (apt-get install kcat)"
)


async def kcat(broker: Broker, *arguments: str, stdin: bytes = b"") -> bytes:
    """What kcat writes; fails unless it ends well."""
    process = await asyncio.create_subprocess_exec(
        "kcat", "-b", broker.bootstrap_servers, *arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    out, errors = await asyncio.wait_for(process.communicate(stdin), 120)
    assert process.returncode == 0, errors
    return out


async def test_lines_go_in_and_come_out(broker: Broker) -> None:
    await kcat(broker, "-P", "-t", "t", "-K", ":", stdin=b"a:first\nb:second\nthird\n")
    out = await kcat(broker, "-C", "-t", "t", "-e", "-q", "-Z", "-f", "%o %k=%s\n")
    assert out == b"0 a=first\n1 b=second\n2 NULL=third\n"


async def test_the_cluster_is_listed(start_broker: StartBroker) -> None:
    broker = await start_broker()
    await broker.topics.create("one")
    await broker.topics.create("two", 2)
    found = json.loads(await kcat(broker, "-L", "-J"))
    assert found["controllerid"] == 0
    assert found["brokers"] == [{"id": 0, "name": broker.bootstrap_servers}]
    partitions = {topic["topic"]: topic["partitions"] for topic in found["topics"]}
    assert {name: len(each) for name, each in partitions.items()} == {"one": 1, "two": 2}
    assert partitions["two"][1] == {
        "partition": 1,
        "leader": 0,
        "replicas": [{"id": 0}],
        "isrs": [{"id": 0}],
    }


async def test_a_topic_that_does_not_exist_is_said_to_be_unknown(
    start_broker: StartBroker,
) -> None:
    broker = await start_broker(auto_create_topics=False)
    found = json.loads(await kcat(broker, "-L", "-J", "-t", "unknown"))
    (topic,) = found["topics"]
    assert topic["error"] == "Broker: Unknown topic or partition"


async def test_offsets_are_queried_by_time(broker: Broker) -> None:
    await kcat(broker, "-P", "-t", "t", stdin=b"one\ntwo\n")
    for timestamp, offset in ((-2, 0), (-1, 2), (0, 0)):
        out = await kcat(broker, "-Q", "-t", f"t:0:{timestamp}")
        assert out.decode().split() == ["t", "[0]", "offset", str(offset)]


async def test_the_last_records_are_shown_from_the_end(broker: Broker) -> None:
    await kcat(broker, "-P", "-t", "t", stdin=b"one\ntwo\nthree\n")
    assert await kcat(broker, "-C", "-t", "t", "-o", "-2", "-e", "-q") == b"two\nthree\n"
