"""The source in a real session, on a real broker, through restarts, new partitions, and lost records."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
from pyspark.errors import StreamingQueryException
from pyspark.sql.datasource import DataSource

from kmr.kafka.subscription import Subscription
from kmr.spark.source_settings import ClientConfig, SourceSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.framework.spark.conftest import Kafka

pytestmark = pytest.mark.slow

FORMAT = "kmr-test-records"


def records_source(settings: SourceSettings) -> type[DataSource]:
    """Make a source whose rows are the records; pickled by value."""

    class Records(DataSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def schema(self) -> str:
            return "topic string, partition int, offset long"

        def streamReader(self, schema: Any) -> Any:  # noqa: N802
            from pyspark.sql.pandas.types import to_arrow_schema

            from kmr.spark.reader import KafkaStreamReader

            def rows(_wanted: Any, batches: Any, expected: Any) -> Iterator[Any]:
                for batch in batches:
                    yield batch.records.select(expected.names).cast(expected)

            return KafkaStreamReader(settings, to_arrow_schema(schema), process=rows)

    return Records


class Reader:
    """Reads one topic, as a stream into memory."""

    def __init__(self, spark: SparkSession, kafka: Kafka, topic: str) -> None:
        self._spark = spark
        self.client = ClientConfig(bootstrap_servers=kafka.servers)
        self._topic = topic
        self.group = f"{topic}-group"
        self.progress: list[Any] = []

    def stream(
        self, checkpoint: Path, *, topic: str = "", pattern: str | None = None, **settings: Any
    ) -> list[tuple[str, int, int]]:
        """Return topic, partition and offset of the records that a query with AvailableNow reads."""
        topics = () if pattern is not None else (topic or self._topic,)
        subscription = Subscription(topics, pattern)
        made = SourceSettings(
            subscription=subscription, client=self.client, group=self.group, **settings
        )
        self._spark.dataSource.register(records_source(made))
        found: list[tuple[str, int, int]] = []

        def keep(frame: Any, _number: int) -> None:
            found.extend(tuple(row) for row in frame.collect())

        query = (
            self._spark.readStream.format(FORMAT)
            .load()
            .writeStream.foreachBatch(keep)
            .trigger(availableNow=True)
            .option("checkpointLocation", str(checkpoint))
            .start()
        )
        query.awaitTermination()
        self.progress = query.recentProgress
        return sorted(found)


@pytest.fixture
def reader(spark: SparkSession, kafka: Kafka, topic: str) -> Reader:
    return Reader(spark, kafka, topic)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read(
    reader: Reader, kafka: Kafka, topic: str, codec: str, tmp_path: Path
) -> None:
    kafka.create(topic)
    kafka.produce(topic, numbers(100), compression=codec)
    assert reader.stream(tmp_path) == [(topic, 0, n) for n in range(100)]


def test_a_topic_that_does_not_exist_is_named(reader: Reader, topic: str, tmp_path: Path) -> None:
    with pytest.raises(StreamingQueryException, match=f"{topic} does not exist at 127.0.0.1"):
        reader.stream(tmp_path)


def test_min_partitions_divides_a_partition_into_several_tasks(
    reader: Reader, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    kafka.create(topic)
    kafka.produce(topic, numbers(1000))
    assert reader.stream(tmp_path, min_partitions=4) == [(topic, 0, n) for n in range(1000)]


def test_a_stream_continues_at_its_checkpoint_and_commits_to_a_group_for_lag_tools(
    reader: Reader, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    kafka.create(topic)
    kafka.produce(topic, numbers(10))
    assert reader.stream(tmp_path) == [(topic, 0, n) for n in range(10)]
    assert kafka.committed(reader.group, topic) == 10
    assert reader.stream(tmp_path) == []
    kafka.produce(topic, numbers(5))
    assert reader.stream(tmp_path) == [(topic, 0, n) for n in range(10, 15)]
    assert kafka.committed(reader.group, topic) == 15


def test_a_stream_begins_at_the_end_if_told_so(
    reader: Reader, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    kafka.create(topic)
    kafka.produce(topic, numbers(10))
    assert reader.stream(tmp_path, from_end=True) == []
    kafka.produce(topic, numbers(2))
    assert reader.stream(tmp_path, from_end=True) == [(topic, 0, 10), (topic, 0, 11)]


def test_micro_batches_have_at_most_as_many_offsets_as_allowed(
    reader: Reader, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    kafka.create(topic, 2)
    kafka.produce(topic, numbers(100))
    found = reader.stream(tmp_path, max_offsets_per_trigger=30)
    assert len(found) == len(set(found)) == 100
    sizes = [progress.numInputRows for progress in reader.progress]
    assert max(sizes) <= 30
    assert sum(sizes) == 100


def test_the_checkpoint_has_the_offsets_as_sparks_own_source_writes_them(
    reader: Reader, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    kafka.create(topic, 2)
    kafka.produce(topic, numbers(10))
    reader.stream(tmp_path)
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
    assert reader.stream(tmp_path, from_end=True) == []
    for log in ("commits/0", "commits/.0.crc"):
        (tmp_path / log).unlink(missing_ok=True)
    kafka.produce(topic, numbers(3))
    assert reader.stream(tmp_path, from_end=True) == [
        (topic, 0, 10),
        (topic, 0, 11),
        (topic, 0, 12),
    ]


def test_a_new_topic_that_matches_the_pattern_is_read_from_its_first_record(
    reader: Reader, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    kafka.create(f"{topic}-1")
    kafka.produce(f"{topic}-1", numbers(3))
    options: dict[str, Any] = {"pattern": f"{topic}-.*", "from_end": True}
    assert reader.stream(tmp_path, **options) == []
    kafka.create(f"{topic}-2")
    kafka.produce(f"{topic}-2", numbers(4))
    assert reader.stream(tmp_path, **options) == [(f"{topic}-2", 0, n) for n in range(4)]


def test_a_deleted_topic_stops_a_stream_unless_loss_is_accepted(
    reader: Reader, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    # The offsets of the deleted topic cannot be committed; the client tries for so long.
    reader.client = replace(reader.client, request_timeout=3.0)
    options: dict[str, Any] = {"pattern": f"{topic}-.*"}
    for name in ("kept", "gone"):
        kafka.create(f"{topic}-{name}")
        kafka.produce(f"{topic}-{name}", numbers(2))
    assert len(reader.stream(tmp_path, **options)) == 4
    kafka.delete(f"{topic}-gone")
    kafka.produce(f"{topic}-kept", numbers(1))
    with pytest.raises(
        StreamingQueryException, match=r"partitions are gone: .*--no-fail-on-data-loss"
    ):
        reader.stream(tmp_path, **options)
    found = reader.stream(tmp_path, **options, fail_on_data_loss=False)
    assert found == [(f"{topic}-kept", 0, 2)]


def test_a_checkpoint_of_another_topic_stops_a_stream(
    reader: Reader, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    for name in ("old", "new"):
        kafka.create(f"{topic}-{name}")
        kafka.produce(f"{topic}-{name}", numbers(2))
    assert len(reader.stream(tmp_path, topic=f"{topic}-old")) == 2
    for _ in ("its last micro-batch is complete", "its last micro-batch is repeated"):
        with pytest.raises(
            StreamingQueryException, match=r"belongs to another topic: .*-old, and .*-new"
        ):
            reader.stream(tmp_path, topic=f"{topic}-new")
        (tmp_path / "commits" / "1").unlink(missing_ok=True)


def test_a_topic_that_was_created_again_stops_a_stream(
    reader: Reader, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    kafka.create(topic)
    kafka.produce(topic, numbers(10))
    reader.stream(tmp_path)
    kafka.delete(topic)
    kafka.create(topic)
    kafka.produce(topic, numbers(4))
    with pytest.raises(StreamingQueryException, match=r"ends at 4, before 10"):
        reader.stream(tmp_path)
    assert reader.stream(tmp_path, fail_on_data_loss=False) == []


def test_records_that_were_deleted_stop_a_stream_unless_loss_is_accepted(
    reader: Reader, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    kafka.create(topic)
    kafka.produce(topic, [b"x"])
    assert reader.stream(tmp_path) == [(topic, 0, 0)]
    kafka.produce(topic, [b"x"] * 80)
    kafka.delete_records(topic, before=57)
    with pytest.raises(StreamingQueryException, match="begins at 57, after 1, which is next"):
        reader.stream(tmp_path)
    found = reader.stream(tmp_path, fail_on_data_loss=False)
    assert found == [(topic, 0, offset) for offset in range(57, 81)]
