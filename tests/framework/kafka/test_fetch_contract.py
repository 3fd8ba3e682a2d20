"""What we use of aiokafka that it does not promise: when one of these fails, aiokafka has changed.

Look at what changed, mend `framework.kafka.fetch` (or `framework.kafka.offsets`), then move the pin
in pyproject. Until then a worker reads by `framework.kafka.fallback`, slowly.
"""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING, Any

import aiokafka.consumer.fetcher
import aiokafka.consumer.group_coordinator
import anyio
import pytest
import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.protocol.fetch import FetchRequest

from framework.errors import ConsumerError
from framework.kafka.connection import ConsumerConfig
from framework.kafka.consumer import KafkaConsumer
from framework.kafka.contract import coordinator_mismatch, fetcher_mismatch
from framework.kafka.fallback import RecordFetcher
from framework.kafka.fetch import BatchFetcher

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from broker import Broker

    Produce = Callable[..., Awaitable[int]]


class Silent:
    """A listener that agrees to everything."""

    async def revoked(self, partitions: Any) -> None: ...

    async def assigned(self, partitions: Any) -> None: ...


@pytest.fixture
def consumer(broker: Broker) -> KafkaConsumer:
    return KafkaConsumer(
        ConsumerConfig(bootstrap_servers=broker.bootstrap_servers, group="g", topics=("t",))
    )


def test_the_version_is_the_one_that_this_was_written_for() -> None:
    assert importlib.metadata.version("aiokafka").startswith("0.14.")


async def test_everything_that_is_used_is_there(broker: Broker) -> None:
    async with AIOKafkaConsumer(bootstrap_servers=broker.bootstrap_servers, group_id="g") as theirs:
        assert fetcher_mismatch(theirs) is None
        assert coordinator_mismatch(theirs) is None


async def test_a_response_goes_all_the_way_as_raw_bytes(
    consumer: KafkaConsumer, produce: Produce
) -> None:
    await produce("t", [b"%d" % n for n in range(1000)])
    await consumer.start(Silent())
    assert isinstance(consumer._fetcher, BatchFetcher)
    (batch,) = await consumer.poll()
    assert (batch.first, batch.last, len(batch)) == (0, 999, 1000)
    theirs: Any = consumer._consumer
    assert await theirs.position(TopicPartition("t", 0)) == 1000
    assert theirs._fetcher is consumer._fetcher
    await consumer.stop()
    assert consumer._fetcher.error_future.done()


@pytest.mark.parametrize("version", range(4, 12))
def test_the_fields_of_a_response_are_where_we_look_for_them(version: int) -> None:
    response = getattr(aiokafka.protocol.fetch, f"FetchResponse_v{version}").SCHEMA
    (topics,) = (
        kind for name, kind in zip(response.names, response.fields, strict=True) if name == "topics"
    )
    partitions = topics.array_of.fields[1].array_of
    assert partitions.names[:4] == (
        "partition",
        "error_code",
        "highwater_offset",
        "last_stable_offset",
    )
    rest = partitions.names[3:]
    assert rest[-1] == "message_set"
    assert (rest[1] == "log_start_offset") == (len(rest) > 3)
    assert rest[1 if len(rest) == 3 else 2] == "aborted_transactions"


def test_a_request_says_what_was_asked_for() -> None:
    request = FetchRequest(1, 2, 3, 0, [("t", [(0, 17, 4)])])
    assert list(request.topics) == [("t", [(0, 17, 4)])]


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (aiokafka.consumer.fetcher.Fetcher, "_create_fetch_waiter"),
        (aiokafka.consumer.fetcher.Fetcher, "_set_error"),
        (aiokafka.consumer.subscription_state.TopicPartitionState, "consumed_to"),
    ],
)
async def test_when_the_fetcher_has_changed_the_public_way_is_taken_with_one_warning(
    consumer: KafkaConsumer,
    produce: Produce,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
) -> None:
    await produce("t", [b"a", b"b"])

    def mismatch(theirs: Any) -> str | None:
        with monkeypatch.context() as moved:
            moved.delattr(owner, name)
            return fetcher_mismatch(theirs)

    monkeypatch.setattr("framework.kafka.consumer.fetcher_mismatch", mismatch)
    with structlog.testing.capture_logs() as logs:
        await consumer.start(Silent())
    warnings = [entry for entry in logs if entry["log_level"] == "warning"]
    assert len(warnings) == 1
    assert name in warnings[0]["missing"]
    assert isinstance(consumer._fetcher, RecordFetcher)
    with anyio.fail_after(30):
        (batch,) = await consumer.poll()
    assert batch.records["value"].to_pylist() == [b"a", b"b"]
    await consumer.stop()


async def test_when_group_membership_has_changed_nothing_is_started(
    consumer: KafkaConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def _send_req(self: Any, request: Any, timeout: float) -> None: ...

    monkeypatch.setattr(
        aiokafka.consumer.group_coordinator.GroupCoordinator,
        "_send_req",
        _send_req,
    )
    with pytest.raises(
        ConsumerError,
        match=r"aiokafka 0\.14\.\d+ does not fit .*_send_req.*install aiokafka 0\.14",
    ):
        await consumer.start(Silent())
