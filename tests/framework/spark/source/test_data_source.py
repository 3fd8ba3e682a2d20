"""The Kafka source in a real session, on a real broker: option by option."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.framework.spark.conftest import Kafka

pytestmark = pytest.mark.slow


class Reader:
    """Reads one topic, as a batch or as a stream into memory."""

    def __init__(self, spark: SparkSession, source: str, kafka: Kafka, topic: str) -> None:
        self._spark = spark
        self._source = source
        self._options = {"kafka.bootstrap.servers": kafka.servers, "subscribe": topic}
        self.progress: list[Any] = []

    def _all(self, options: dict[str, Any]) -> dict[str, str]:
        if {"assign", "subscribePattern"} & set(options):
            self._options.pop("subscribe", None)
        return self._options | {name: str(value) for name, value in options.items()}

    def batch(self, **options: Any) -> DataFrame:
        return self._spark.read.format(self._source).options(**self._all(options)).load()

    def offsets(self, **options: Any) -> list[tuple[int, int]]:
        rows = self.batch(**options).select("partition", "offset").collect()
        return sorted((row.partition, row.offset) for row in rows)

    def stream(self, checkpoint: Path, **options: Any) -> list[tuple[str, int, int]]:
        """Return topic, partition and offset of the records that a query with AvailableNow reads."""
        found: list[tuple[str, int, int]] = []

        def keep(frame: DataFrame, _number: int) -> None:
            found.extend(
                tuple(row) for row in frame.select("topic", "partition", "offset").collect()
            )

        stream = self._spark.readStream.format(self._source).options(**self._all(options)).load()
        query = (
            stream.writeStream.foreachBatch(keep)
            .trigger(availableNow=True)
            .option("checkpointLocation", str(checkpoint))
            .start()
        )
        query.awaitTermination()
        self.progress = query.recentProgress
        return sorted(found)


@pytest.fixture
def reader(spark: SparkSession, source: str, kafka: Kafka, topic: str) -> Reader:
    return Reader(spark, source, kafka, topic)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_every_column_is_as_the_producer_wrote_it(reader: Reader, kafka: Kafka, topic: str) -> None:
    kafka.create(topic, config={"retention.ms": "-1"})  # the first record is years old
    headers = [("a", b"1"), ("b", b""), ("a", b"2")]
    kafka.produce_one(topic, b"v", key=b"k", headers=headers, timestamp_ms=1_700_000_000_123)
    kafka.produce_one(topic, None, key=b"gone")
    first, second = reader.batch(includeHeaders="true").orderBy("offset").collect()
    assert (bytes(first.key), bytes(first.value), first.topic) == (b"k", b"v", topic)
    assert (first.partition, first.offset, first.timestampType) == (0, 0, 0)
    assert first.timestamp.timestamp() == 1_700_000_000.123
    assert [(h.key, bytes(h.value)) for h in first.headers] == headers
    assert (bytes(second.key), second.value, second.headers) == (b"gone", None, None)


def test_headers_are_a_column_only_when_asked_for(reader: Reader, kafka: Kafka, topic: str) -> None:
    kafka.create(topic)
    expected = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert reader.batch().columns == expected
    assert reader.batch(includeHeaders="true").columns == [*expected, "headers"]


def test_a_batch_reads_from_the_first_to_the_last_offset(
    reader: Reader, kafka: Kafka, topic: str
) -> None:
    kafka.create(topic, 2)
    kafka.produce(topic, numbers(50))
    ends = kafka.ends(topic)
    assert reader.offsets() == [(p, offset) for p in ends for offset in range(ends[p])]


def test_starting_and_ending_offsets_are_taken_as_json(
    reader: Reader, kafka: Kafka, topic: str
) -> None:
    kafka.create(topic)
    kafka.produce(topic, numbers(20))
    start, end = ({topic: {"0": offset}} for offset in (5, 9))
    found = reader.offsets(startingOffsets=json.dumps(start), endingOffsets=json.dumps(end))
    assert found == [(0, 5), (0, 6), (0, 7), (0, 8)]
    words = reader.offsets(
        startingOffsets=json.dumps({topic: {"0": -2}}), endingOffsets=json.dumps({topic: {"0": -1}})
    )
    assert words == [(0, offset) for offset in range(20)]


def test_assign_reads_only_the_partitions_that_it_names(
    reader: Reader, kafka: Kafka, topic: str
) -> None:
    kafka.create(topic, 3)
    for partition in (0, 1, 1, 2):
        kafka.produce_one(topic, b"x", partition=partition)
    found = reader.offsets(assign=json.dumps({topic: [1]}))
    assert found == [(1, 0), (1, 1)]


def test_reading_begins_at_a_time(reader: Reader, kafka: Kafka, topic: str) -> None:
    kafka.create(topic)
    begun = int(time.time()) * 1000 - 60_000
    for second in range(5):
        kafka.produce_one(topic, b"x", timestamp_ms=begun + second * 1000)
    assert reader.offsets(startingTimestamp=begun + 2500) == [(0, 3), (0, 4)]
    by_partition = json.dumps({topic: {"0": begun + 4000}})
    assert reader.offsets(startingOffsetsByTimestamp=by_partition) == [(0, 4)]
    assert reader.offsets(endingTimestamp=begun + 2000) == [(0, 0), (0, 1)]
    beyond = begun + 10_000
    with pytest.raises(AnalysisException, match=f"has no record at or after {beyond}"):
        reader.offsets(startingTimestamp=beyond)
    latest = {"startingTimestamp": beyond, "startingOffsetsByTimestampStrategy": "latest"}
    assert reader.offsets(**latest) == []


def test_min_partitions_divides_a_partition_into_several_tasks(
    reader: Reader, kafka: Kafka, topic: str
) -> None:
    kafka.create(topic)
    kafka.produce(topic, numbers(1000))
    frame = reader.batch(minPartitions=4)
    assert frame.rdd.getNumPartitions() == 4
    assert reader.offsets(minPartitions=4) == [(0, offset) for offset in range(1000)]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read(reader: Reader, kafka: Kafka, topic: str, codec: str) -> None:
    kafka.create(topic)
    kafka.produce(topic, numbers(100), compression=codec)
    assert [bytes(row.value) for row in reader.batch().orderBy("offset").collect()] == numbers(100)


def test_a_topic_that_does_not_exist_is_named(reader: Reader, topic: str) -> None:
    with pytest.raises(AnalysisException, match=f"{topic} does not exist at 127.0.0.1"):
        reader.offsets()


def test_a_wrong_option_is_named(reader: Reader, kafka: Kafka, topic: str) -> None:
    kafka.create(topic)
    with pytest.raises(AnalysisException, match="the Kafka source has no option startingoffset;"):
        reader.offsets(startingOffset="earliest")


def test_a_stream_continues_at_its_checkpoint_and_commits_to_a_group_for_lag_tools(
    reader: Reader, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    kafka.create(topic)
    kafka.produce(topic, numbers(10))
    options = {"startingOffsets": "earliest", "kafka.group.id": f"{topic}-group"}
    assert reader.stream(tmp_path, **options) == [(topic, 0, n) for n in range(10)]
    assert kafka.committed(f"{topic}-group", topic) == 10
    assert reader.stream(tmp_path, **options) == []
    kafka.produce(topic, numbers(5))
    del options["kafka.group.id"]
    found = reader.stream(tmp_path, **options, groupIdPrefix="spark")
    assert found == [(topic, 0, n) for n in range(10, 15)]
    assert kafka.committed(f"spark-{topic}", topic) == 15


def test_a_stream_begins_at_the_end_by_default(
    reader: Reader, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    kafka.create(topic)
    kafka.produce(topic, numbers(10))
    assert reader.stream(tmp_path) == []
    kafka.produce(topic, numbers(2))
    assert reader.stream(tmp_path) == [(topic, 0, 10), (topic, 0, 11)]


def test_micro_batches_have_at_most_as_many_offsets_as_allowed(
    reader: Reader, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    kafka.create(topic, 2)
    kafka.produce(topic, numbers(100))
    found = reader.stream(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger=30)
    assert len(found) == len(set(found)) == 100
    sizes = [progress.numInputRows for progress in reader.progress]
    assert max(sizes) <= 30
    assert sum(sizes) == 100


def test_the_checkpoint_has_the_offsets_as_sparks_own_source_writes_them(
    reader: Reader, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    kafka.create(topic, 2)
    kafka.produce(topic, numbers(10))
    reader.stream(tmp_path, startingOffsets="earliest")
    logged = [(tmp_path / "offsets" / number).read_text().splitlines() for number in "01"]
    first, second = (json.loads(lines[-1]) for lines in logged)
    assert first == {topic: {"0": 0, "1": 0}}
    assert second == {topic: {str(p): end for p, end in sorted(kafka.ends(topic).items())}}
    # The same JSON without spaces, as Spark's own source writes it, in an incomplete micro-batch.
    compact = json.dumps(second, separators=(",", ":"))
    (tmp_path / "offsets" / "1").write_text("\n".join([*logged[1][:-1], compact]))
    (tmp_path / "commits" / "1").unlink()
    for checksum in ("commits/.1.crc", "offsets/.1.crc"):
        (tmp_path / checksum).unlink(missing_ok=True)
    assert len(reader.stream(tmp_path)) == 10


def test_a_query_that_begins_at_the_end_loses_nothing_when_its_first_micro_batch_is_repeated(
    reader: Reader, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    kafka.create(topic)
    kafka.produce(topic, numbers(10))
    assert reader.stream(tmp_path) == []
    for log in ("commits/0", "commits/.0.crc"):
        (tmp_path / log).unlink(missing_ok=True)
    kafka.produce(topic, numbers(3))
    assert reader.stream(tmp_path) == [(topic, 0, 10), (topic, 0, 11), (topic, 0, 12)]


def test_a_new_topic_that_matches_the_pattern_is_read_from_its_first_record(
    reader: Reader, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    kafka.create(f"{topic}-1")
    kafka.produce(f"{topic}-1", numbers(3))
    options = {"subscribePattern": f"{topic}-.*", "startingOffsets": "latest"}
    assert reader.stream(tmp_path, **options) == []
    kafka.create(f"{topic}-2")
    kafka.produce(f"{topic}-2", numbers(4))
    assert reader.stream(tmp_path, **options) == [(f"{topic}-2", 0, n) for n in range(4)]


def test_a_deleted_topic_stops_a_stream_unless_loss_is_accepted(
    reader: Reader, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    options = {"subscribePattern": f"{topic}-.*", "startingOffsets": "earliest"}
    for name in ("kept", "gone"):
        kafka.create(f"{topic}-{name}")
        kafka.produce(f"{topic}-{name}", numbers(2))
    assert len(reader.stream(tmp_path, **options)) == 4
    kafka.delete(f"{topic}-gone")
    kafka.produce(f"{topic}-kept", numbers(1))
    with pytest.raises(StreamingQueryException, match=r"partitions are gone: .*failOnDataLoss"):
        reader.stream(tmp_path, **options)
    found = reader.stream(tmp_path, **options, failOnDataLoss="false")
    assert found == [(f"{topic}-kept", 0, 2)]


def test_a_checkpoint_of_another_topic_stops_a_stream(
    reader: Reader, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    for name in ("old", "new"):
        kafka.create(f"{topic}-{name}")
        kafka.produce(f"{topic}-{name}", numbers(2))
    assert len(reader.stream(tmp_path, subscribe=f"{topic}-old", startingOffsets="earliest")) == 2
    for _ in ("its last micro-batch is complete", "its last micro-batch is repeated"):
        with pytest.raises(
            StreamingQueryException, match=r"belongs to another topic: .*-old, and .*-new"
        ):
            reader.stream(tmp_path, subscribe=f"{topic}-new", startingOffsets="earliest")
        (tmp_path / "commits" / "1").unlink(missing_ok=True)


def test_a_topic_that_was_created_again_stops_a_stream(
    reader: Reader, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    kafka.create(topic)
    kafka.produce(topic, numbers(10))
    reader.stream(tmp_path, startingOffsets="earliest")
    kafka.delete(topic)
    kafka.create(topic)
    kafka.produce(topic, numbers(4))
    with pytest.raises(StreamingQueryException, match=r"ends at 4, before 10"):
        reader.stream(tmp_path)
    assert reader.stream(tmp_path, failOnDataLoss="false") == []


def test_records_that_were_deleted_stop_a_stream_unless_loss_is_accepted(
    reader: Reader, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    kafka.create(topic)
    kafka.produce(topic, [b"x"])
    assert reader.stream(tmp_path, startingOffsets="earliest") == [(topic, 0, 0)]
    kafka.produce(topic, [b"x"] * 80)
    kafka.delete_records(topic, before=57)
    with pytest.raises(StreamingQueryException, match="begins at 57, after 1, which is next"):
        reader.stream(tmp_path)
    found = reader.stream(tmp_path, failOnDataLoss="false")
    assert found == [(topic, 0, offset) for offset in range(57, 81)]


def test_without_a_broker_the_error_has_its_address(reader: Reader) -> None:
    with pytest.raises(PySparkException, match=r"no Kafka broker answers .*127\.0\.0\.1:1: "):
        reader.offsets(**{"kafka.bootstrap.servers": "127.0.0.1:1"})
