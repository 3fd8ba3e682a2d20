"""The metrics of a running broker, as Prometheus reads them."""

from __future__ import annotations

import time
from datetime import timedelta
from struct import pack
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from kmr.broker import Broker, BrokerSettings
from kmr.broker.apis.meters import LATENCY_BOUNDS, RequestMeter, RequestMeters
from kmr.broker.log.disk_work import do_now
from kmr.broker.operations.maintenance import compact, retain

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    Connect = Callable[[Broker], Awaitable[Any]]
    Until = Callable[[Callable[[], bool]], Awaitable[None]]


PRODUCE, FETCH, METADATA, HEARTBEAT, OFFSET_FETCH = 0, 1, 3, 12, 9


LATER_MS = int(time.time() * 1000) + 10**12


def value(broker: Broker, name: str, **labels: str | int) -> float | None:
    """The newest value of a series; None if there is none."""
    return broker.metrics.registry.get_sample_value(
        f"kmr_broker_{name}", {key: str(each) for key, each in labels.items()}
    )


def series(broker: Broker, **labels: str) -> set[str]:
    """Names of all samples that have these labels."""
    return {
        sample.name
        for family in broker.metrics.registry.collect()
        for sample in family.samples
        if labels.items() <= sample.labels.items()
    }


NAMES = {
    "kmr_broker",
    "kmr_broker_authentication_failures",
    "kmr_broker_buffer_bytes",
    "kmr_broker_buffer_idle_bytes",
    "kmr_broker_buffer_limit_bytes",
    "kmr_broker_connections_aborted",
    "kmr_broker_connections_accepted",
    "kmr_broker_connections_open",
    "kmr_broker_connections_rejected",
    "kmr_broker_connections_unauthenticated",
    "kmr_broker_disk_free_bytes",
    "kmr_broker_event_loop_tasks",
    "kmr_broker_fetched_bytes",
    "kmr_broker_fetched_records",
    "kmr_broker_fetch_session_evictions",
    "kmr_broker_fetch_session_partitions",
    "kmr_broker_fetch_sessions",
    "kmr_broker_fetches_waiting",
    "kmr_broker_group_committed_offset",
    "kmr_broker_group_generation",
    "kmr_broker_group_lag_records",
    "kmr_broker_group_members",
    "kmr_broker_group_state",
    "kmr_broker_log_cleaned_bytes",
    "kmr_broker_log_cleanings",
    "kmr_broker_log_end_offset",
    "kmr_broker_log_segments",
    "kmr_broker_log_size_bytes",
    "kmr_broker_log_stable_offset",
    "kmr_broker_log_start_offset",
    "kmr_broker_log_sync_seconds",
    "kmr_broker_log_syncs",
    "kmr_broker_logs_failed",
    "kmr_broker_produced_bytes",
    "kmr_broker_produced_records",
    "kmr_broker_producers",
    "kmr_broker_request_errors",
    "kmr_broker_request_seconds",
    "kmr_broker_requests_in_flight",
    "kmr_broker_transaction_oldest_seconds",
    "kmr_broker_transactions",
    "kmr_broker_work_failures",
}


async def test_every_metric_has_a_name_with_its_unit_and_a_meaning(broker: Broker) -> None:
    families = [
        each for each in broker.metrics.registry.collect() if not each.name.startswith("process_")
    ]
    names = [each.name for each in families]
    assert len(names) == len(set(names))
    for each in families:
        assert each.name.startswith("kmr_broker")
        assert each.documentation.endswith(".")
        assert each.name.endswith("_seconds") or each.type != "histogram"


async def test_the_metrics_of_a_broker_that_is_used(broker: Broker) -> None:
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        await producer.send_and_wait("t", b"value")
    names = {family.name for family in broker.metrics.registry.collect()}
    assert {name for name in names if not name.startswith("process_")} == NAMES


async def test_bytes_and_records_of_a_topic_in_and_out(
    broker: Broker, connect: Connect, batch: Callable[..., bytes]
) -> None:
    await broker.topics.create("t", 2)
    client = await connect(broker)
    sent = [batch(b"a", b"b", b"c"), batch(b"d")]
    for index, data in enumerate(sent):
        partition = {"index": index, "records": data}
        await client.call(
            PRODUCE,
            9,
            acks=-1,
            topic_data=[{"name": "t", "partition_data": [partition]}],
        )
    assert value(broker, "produced_bytes_total", topic="t") == sum(map(len, sent))
    assert value(broker, "produced_records_total", topic="t") == 4
    assert value(broker, "fetched_bytes_total", topic="t") == 0

    wanted = [
        {"partition": 0, "fetch_offset": 1, "partition_max_bytes": 1000},
        {"partition": 1, "fetch_offset": 0, "partition_max_bytes": 1000},
    ]
    fetch = {"max_bytes": 10_000, "topics": [{"topic": "t", "partitions": wanted}]}
    await client.call(FETCH, 11, **fetch)
    assert value(broker, "fetched_bytes_total", topic="t") == sum(map(len, sent))
    assert value(broker, "fetched_records_total", topic="t") == 3, "the first was not asked for"


async def test_batches_that_a_long_poll_read_but_did_not_send_are_not_counted(
    broker: Broker, connect: Connect, batch: Callable[..., bytes], until: Any
) -> None:
    await broker.topics.create("t", 1)
    reader, writer = await connect(broker), await connect(broker)
    produce = {
        "acks": -1,
        "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": batch(b"a")}]}],
    }
    size = len(batch(b"a"))
    await writer.call(PRODUCE, 9, **produce)
    wanted = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}]
    fetch = reader.message(
        FETCH,
        11,
        max_wait=timedelta(minutes=1),
        min_bytes=size + 1,
        max_bytes=10_000,
        topics=[{"topic": "t", "partitions": wanted}],
    )
    asked = await reader.send(fetch)
    await until(lambda: value(broker, "fetches_waiting") == 1)
    assert value(broker, "requests_in_flight", api="Fetch") == 1
    assert value(broker, "fetched_bytes_total", topic="t") == 0
    await writer.call(PRODUCE, 9, **produce)
    await reader.receive(fetch, asked)
    assert value(broker, "fetched_bytes_total", topic="t") == 2 * size
    assert value(broker, "fetches_waiting") == 0
    assert value(broker, "requests_in_flight", api="Fetch") == 0


async def test_latencies_and_errors_of_requests(
    broker: Broker, connect: Connect, batch: Callable[..., bytes]
) -> None:
    client = await connect(broker)
    data = [{"index": each, "records": batch(b"a")} for each in range(3)]
    await broker.topics.create("t", 1)
    answer = await client.call(
        PRODUCE, 9, acks=1, topic_data=[{"name": "t", "partition_data": data}]
    )
    assert len(answer.responses[0].partition_responses) == 3
    await client.call(HEARTBEAT, 4, group_id="none", generation_id=1, member_id="x")
    wanted = [{"partition": 7, "fetch_offset": 0, "partition_max_bytes": 1000}]
    await client.call(FETCH, 11, max_bytes=1, topics=[{"topic": "t", "partitions": wanted}])

    unknown = "UNKNOWN_TOPIC_OR_PARTITION"
    assert value(broker, "request_errors_total", api="Produce", error=unknown) == 2
    assert value(broker, "request_errors_total", api="Fetch", error=unknown) == 1
    assert value(broker, "request_errors_total", api="Heartbeat", error="UNKNOWN_MEMBER_ID") == 1
    assert series(broker, error="NONE") == set()
    for api in ("Produce", "Fetch", "Heartbeat"):
        assert value(broker, "request_seconds_count", api=api) == 1
        assert value(broker, "request_seconds_bucket", api=api, le="+Inf") == 1
        assert value(broker, "request_seconds_bucket", api=api, le="60.0") == 1
    assert value(broker, "request_seconds_count", api="Metadata") is None, "no such request"


async def test_how_far_a_group_is_behind(broker: Broker) -> None:
    servers = broker.bootstrap_servers
    await broker.topics.create("t", 1)
    async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
        for _ in range(5):
            await producer.send_and_wait("t", b"value")
    where = TopicPartition("t", 0)
    async with AIOKafkaConsumer(
        "t", bootstrap_servers=servers, group_id="g", enable_auto_commit=False
    ) as consumer:
        await consumer.commit({where: 2})
        lag: dict[str, Any] = {"group": "g", "topic": "t", "partition": 0}
        assert value(broker, "group_committed_offset", **lag) == 2
        assert value(broker, "group_lag_records", **lag) == 3
        assert value(broker, "group_members", group="g") == 1
        assert value(broker, "group_generation", group="g") == 1
        assert value(broker, "group_state", group="g", state="Stable") == 1
        do_now(broker.topics.get("t").partitions[0].log.truncation(4))  # type: ignore[union-attr]
        assert value(broker, "group_lag_records", **lag) == 1, "deleted records cannot be read"
    assert value(broker, "group_state", group="g", state="Empty") == 1
    assert value(broker, "group_state", group="g", state="Stable") is None


async def test_series_go_with_their_topic_and_their_group(broker: Broker, connect: Connect) -> None:
    servers = broker.bootstrap_servers
    await broker.topics.create("t", 2)
    async with AIOKafkaConsumer(
        "t", bootstrap_servers=servers, group_id="g", enable_auto_commit=False
    ) as consumer:
        await consumer.commit({TopicPartition("t", 1): 0})
    assert {"kmr_broker_log_size_bytes", "kmr_broker_group_lag_records"} <= series(
        broker, topic="t"
    )
    await broker.topics.delete("t")
    assert series(broker, topic="t") == set()
    assert "kmr_broker_group_members" in series(broker, group="g")
    client = await connect(broker)
    await client.call(42, 2, groups_names=["g"])
    assert series(broker, group="g") == set()


async def test_logs_and_their_maintenance(broker: Broker) -> None:
    settings = {"cleanup.policy": "compact,delete", "retention.ms": "1000"}
    topic = await broker.topics.create("t", 1, settings)
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for _ in range(3):
            await producer.send_and_wait("t", b"value", key=b"key")
    log = topic.partitions[0].log
    size = log.size_bytes
    where: dict[str, Any] = {"topic": "t", "partition": 0}
    assert value(broker, "log_size_bytes", **where) == size
    assert value(broker, "log_segments", **where) == 1
    assert value(broker, "log_end_offset", **where) == 3
    assert value(broker, "log_stable_offset", **where) == 3
    assert value(broker, "logs_failed") == 0
    synced = log.fsync()
    assert synced == 3
    assert (value(broker, "log_syncs_total", topic="t") or 0) >= 1
    assert (value(broker, "log_sync_seconds_total", topic="t") or 0) > 0

    log.roll()
    assert await compact(topic.partitions[0], broker.topics, now_ms=int(time.time() * 1000))
    freed = size - log.size_bytes
    assert freed > 0
    compaction = {"topic": "t", "policy": "compaction"}
    assert value(broker, "log_cleanings_total", **compaction) == 1
    assert value(broker, "log_cleaned_bytes_total", **compaction) == freed
    await retain(broker.topics, broker.health.supervisor, now_ms=LATER_MS)
    retention = {"topic": "t", "policy": "retention"}
    assert value(broker, "log_cleanings_total", **retention) == 1
    assert value(broker, "log_cleaned_bytes_total", **retention) == size - freed
    assert value(broker, "log_start_offset", **where) == 3


async def test_no_series_is_duplicated(broker: Broker) -> None:
    await broker.topics.create("t", 2)
    async with AIOKafkaConsumer(
        "t", bootstrap_servers=broker.bootstrap_servers, group_id="g", enable_auto_commit=False
    ) as consumer:
        await consumer.commit({TopicPartition("t", 1): 0})
    told = [
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in broker.metrics.registry.collect()
        for sample in family.samples
    ]
    assert len(told) == len(set(told))
    assert "kmr_broker_log_size_bytes" in series(broker, topic="__consumer_offsets")


async def test_transactions_and_stable_offsets(broker: Broker) -> None:
    await broker.topics.create("t", 1)
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id="x")
    async with producer:
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"value", partition=0)
        assert value(broker, "transactions", state="Ongoing") == 1
        assert (value(broker, "transaction_oldest_seconds") or 0) > 0
        assert value(broker, "log_stable_offset", topic="t", partition=0) == 0
        assert value(broker, "log_end_offset", topic="t", partition=0) == 1
        assert value(broker, "producers", topic="t") == 1
        await producer.commit_transaction()
    assert value(broker, "transactions", state="CompleteCommit") == 1
    assert value(broker, "transaction_oldest_seconds") == 0
    assert value(broker, "log_stable_offset", topic="t", partition=0) == 2


async def test_connections_that_were_let_in_refused_and_cut_off(
    start: Any, connect: Connect, until: Any
) -> None:
    broker: Broker = await start(max_connections=2)
    first, second = await connect(broker), await connect(broker)
    await first.call(METADATA, 12)
    await second.call(METADATA, 12)
    assert value(broker, "connections_open") == 2
    third = await connect(broker)
    assert await third.is_closed_by_broker()
    assert value(broker, "connections_rejected_total", reason="max_connections") == 1
    await first.send_bytes(bytes(8))
    assert await first.is_closed_by_broker()
    assert value(broker, "connections_aborted_total") == 1
    await until(lambda: value(broker, "connections_open") == 1)
    assert value(broker, "connections_accepted_total") == 2


async def test_memory_of_requests_and_responses(
    broker: Broker, connect: Connect, until: Until
) -> None:
    client = await connect(broker)
    assert (value(broker, "buffer_limit_bytes", pool="request") or 0) > 0
    await client.send_bytes(pack(">i", 10_000))  # the rest of the request does not come
    await until(lambda: (value(broker, "buffer_bytes", pool="request") or 0) > 0)
    await client.close()
    await until(lambda: value(broker, "buffer_bytes", pool="request") == 0)
    assert (value(broker, "buffer_idle_bytes", pool="request") or 0) > 0
    assert value(broker, "buffer_bytes", pool="response") == 0
    assert (value(broker, "disk_free_bytes") or 0) > 0


async def test_two_brokers_in_one_process_count_for_themselves(
    broker: Broker, tmp_path: Path
) -> None:
    other = Broker(BrokerSettings(data_dir=tmp_path / "other", port=0))
    async with other:
        await other.topics.create("t", 1)
        assert series(other, topic="t")
        assert series(broker, topic="t") == set()
    assert series(other, topic="__consumer_offsets") == set(), "its logs are closed"
    assert series(broker, topic="__consumer_offsets")


@given(st.lists(st.one_of(st.floats(0, 100), st.sampled_from(LATENCY_BOUNDS))))
def test_buckets_are_those_of_prometheus_own_histogram(latencies: list[float]) -> None:
    meter = RequestMeter("Produce")
    registry = CollectorRegistry()
    theirs = Histogram("latency", "", buckets=LATENCY_BOUNDS, registry=registry)
    for each in latencies:
        meter.answered(each)
        theirs.observe(each)
    counted = 0
    for bound, number in zip((*map(str, LATENCY_BOUNDS), "+Inf"), meter.buckets, strict=True):
        counted += number
        assert registry.get_sample_value("latency_bucket", {"le": bound}) == counted
    assert registry.get_sample_value("latency_sum") == meter.seconds


def test_an_api_has_one_meter_from_its_first_request_on() -> None:
    meters = RequestMeters({0: "Produce", 1: "Fetch"})
    assert list(meters) == []
    meter = meters.of(1)
    assert meters.of(1) is meter
    assert [each.api for each in meters] == ["Fetch"]
