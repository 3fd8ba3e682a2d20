"""The time for which partitions have no record, in a query's offsets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from kmr.kafka.subscription import Subscription
from kmr.record import Range, TopicPartition
from kmr.spark.idle import IdleClock, read_idle
from kmr.spark.offsets import read_offsets, show_offsets
from kmr.spark.reader import KafkaStreamReader
from kmr.spark.source_settings import ClientConfig, SourceSettings

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def reader_of(topic: str) -> KafkaStreamReader:
    client = ClientConfig(bootstrap_servers="k:9092")
    settings = SourceSettings(subscription=Subscription((topic,)), client=client, group="g")
    return KafkaStreamReader(settings, pa.schema([]), process=lambda *_: iter(()), idle=(10, 20))


@dataclass
class Clock:
    seconds: float = 100.0

    def __call__(self) -> float:
        return self.seconds


def clock(now: Clock, idle: int = 10, longest: int = 25) -> IdleClock:
    return IdleClock(idle * 1_000_000, longest * 1_000_000, now)


def test_times_are_shown_beside_their_offsets() -> None:
    shown = show_offsets({P1: 7, P0: 5}, {P0: 30})
    assert shown == {"t": {"0": [5, 30], "1": 7}}
    assert read_offsets(shown) == {P0: 5, P1: 7}
    assert read_idle(shown) == {P0: 30}


def test_the_time_grows_in_steps_and_ends_when_nothing_is_open() -> None:
    now = Clock()
    idle, at = clock(now), {P0: 5}
    before = idle.passed({P0: 0}, {}, at)
    found = []
    for _ in range(60):
        now.seconds += 1
        before = idle.passed(at, before, at)
        found.append(before.get(P0, 0) // 1_000_000)
    assert sorted(set(found)) == [0, 10, 20, 30]
    assert found[8:10] == [0, 10]


def test_a_record_begins_it_anew_for_its_partition() -> None:
    now = Clock()
    idle = clock(now)
    at = {P0: 5, P1: 5}
    assert idle.passed(at, {}, at) == {}
    now.seconds += 12
    before = idle.passed(at, {}, at)
    assert before == {P0: 10_000_000, P1: 10_000_000}
    assert idle.passed(at, before, {P0: 6, P1: 5}) == {P1: 10_000_000}


def test_a_query_that_starts_goes_on_with_the_time_of_its_checkpoint() -> None:
    now = Clock()
    idle, at, before = clock(now), {P0: 5}, {P0: 10_000_000}
    assert idle.passed(at, before, at) == before
    now.seconds += 10
    assert idle.passed(at, before, at) == {P0: 20_000_000}


def test_a_step_is_at_least_a_twentieth_of_what_a_window_holds() -> None:
    now = Clock()
    idle, at = clock(now, idle=1, longest=3600), {P0: 5}
    assert idle.passed(at, {}, at) == {}
    now.seconds += 179
    assert idle.passed(at, {}, at) == {}
    now.seconds += 1
    assert idle.passed(at, {}, at) == {P0: 180_000_000}


def test_an_idle_partition_has_a_task_without_offsets_and_a_record_ends_its_time() -> None:
    reader = reader_of("t")
    tasks: list[Any] = reader.partitions(
        {"t": {"0": [5, 10], "1": [7, 10]}}, {"t": {"0": 9, "1": [7, 20]}}
    )
    assert [(task.range, task.idle) for task in tasks] == [
        (Range("t", 0, 5, 8), (10, 0)),
        (Range("t", 1, 7, 6), (10, 20)),
    ]
    again = reader.partitions({"t": {"0": [9, 10]}}, {"t": {"0": [9, 10]}})
    assert not again


def test_a_query_that_ends_keeps_the_times_that_it_found() -> None:
    reader = reader_of("t")
    reader._target = {P0: 5, P1: 9}
    assert reader._idle_at({P0: 5, P1: 7}, {P0: 10, P1: 10}, {P0: 5, P1: 9}) == {P0: 10}
