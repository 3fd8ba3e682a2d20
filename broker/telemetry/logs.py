"""Topics and their logs, as metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.telemetry.metrics import Counts, Gauges

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from broker.log.partition import PartitionLog
    from broker.topics.topics import Topics

__all__ = ["log_families", "topic_families"]


def topic_families(topics: Topics, internal: Mapping[str, PartitionLog]) -> Iterator[Metric]:
    """What is told of a topic as a whole."""
    produced_bytes, produced_records = (
        Counts.PRODUCED_BYTES.family(),
        Counts.PRODUCED_RECORDS.family(),
    )
    fetched_bytes, fetched_records = Counts.FETCHED_BYTES.family(), Counts.FETCHED_RECORDS.family()
    for topic in topics:
        label, partitions = (topic.name,), topic.partitions
        produced_bytes.add_metric(label, sum(each.produced_bytes for each in partitions))
        produced_records.add_metric(label, sum(each.produced_records for each in partitions))
        fetched_bytes.add_metric(label, sum(each.fetched_bytes for each in partitions))
        fetched_records.add_metric(label, sum(each.fetched_records for each in partitions))
    yield from (produced_bytes, produced_records, fetched_bytes, fetched_records)
    yield from _files(
        {topic.name: [each.log for each in topic.partitions] for topic in topics}
        | {name: [log] for name, log in internal.items()}
    )


def log_families(topics: Topics, internal: Mapping[str, PartitionLog]) -> Iterator[Metric]:
    """What is told of each partition's log."""
    size, segments = Gauges.LOG_BYTES.family(), Gauges.LOG_SEGMENTS.family()
    start, end, stable = (
        each.family() for each in (Gauges.LOG_START, Gauges.LOG_END, Gauges.LOG_STABLE)
    )
    for topic, partition, log in _logs(topics, internal):
        label = (topic, str(partition))
        size.add_metric(label, log.size_bytes)
        segments.add_metric(label, log.segment_count)
        start.add_metric(label, log.log_start_offset)
        end.add_metric(label, log.next_offset)
        stable.add_metric(label, log.last_stable_offset)
    failed = Gauges.LOGS_FAILED.family()
    failed.add_metric((), sum(bool(log.failure) for _, _, log in _logs(topics, internal)))
    yield from (size, segments, start, end, stable, failed)


def _files(logs: Mapping[str, list[PartitionLog]]) -> Iterator[Metric]:
    """What the logs of a topic are in sum."""
    syncs, seconds = Counts.SYNCS.family(), Counts.SYNC_SECONDS.family()
    producers = Gauges.PRODUCERS.family()
    cleanings, freed = Counts.CLEANINGS.family(), Counts.CLEANED_BYTES.family()
    for topic, some in logs.items():
        syncs.add_metric((topic,), sum(log.syncs.number for log in some))
        seconds.add_metric((topic,), sum(log.syncs.seconds for log in some))
        producers.add_metric((topic,), sum(len(log.producers) for log in some))
        for policy, done in (
            ("retention", [log.retained for log in some]),
            ("compaction", [log.compacted for log in some]),
        ):
            cleanings.add_metric((topic, policy), sum(each.number for each in done))
            freed.add_metric((topic, policy), sum(each.freed_bytes for each in done))
    yield from (syncs, seconds, producers, cleanings, freed)


def _logs(
    topics: Topics, internal: Mapping[str, PartitionLog]
) -> Iterator[tuple[str, int, PartitionLog]]:
    for partition in topics.partitions:
        yield partition.topic, partition.index, partition.log
    for name, log in internal.items():
        yield name, 0, log
