"""What a checkpoint knows: its newest micro-batch, and the generation of its offsets."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from kmr.errors import SettingsError
from kmr.record import TopicPartition
from kmr.spark.engine.checkpoint import (
    CheckpointGeneration,
    keep_group,
    newest_logged,
    read_generation,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


def test_the_newest_micro_batch_is_the_highest_number_among_the_offset_logs(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert newest_logged(spark, str(tmp_path)) == -1
    (tmp_path / "offsets").mkdir()
    assert newest_logged(spark, str(tmp_path)) == -1
    for name in ("9", "10", ".10.crc", ".11.0a1b.tmp"):
        (tmp_path / "offsets" / name).touch()
    assert newest_logged(spark, str(tmp_path)) == 10


def test_a_checkpoint_keeps_the_generation_that_it_began(
    spark: SparkSession, tmp_path: Path
) -> None:
    generation = read_generation(spark, str(tmp_path / "new"))
    assert generation > 0
    (tmp_path / "new" / "offsets").mkdir()
    (tmp_path / "new" / "offsets" / "0").touch()
    assert read_generation(spark, str(tmp_path / "new")) == generation


def test_a_checkpoint_of_an_earlier_version_has_generation_0(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").touch()
    assert read_generation(spark, str(tmp_path)) == 0


def test_a_checkpoint_begins_the_generation_that_is_wanted_and_refuses_another(
    spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint = str(tmp_path / "new")
    assert read_generation(spark, checkpoint, 7) == 7
    assert read_generation(spark, checkpoint, 7) == 7
    with pytest.raises(SettingsError, match=r"belongs to another query \(generation 7, not 8\)"):
        read_generation(spark, checkpoint, 8)
    (tmp_path / "old" / "offsets").mkdir(parents=True)
    (tmp_path / "old" / "offsets" / "0").touch()
    with pytest.raises(SettingsError, match="generation 0, not 8"):
        read_generation(spark, str(tmp_path / "old"), 8)


def test_every_partition_has_the_generation_of_the_checkpoint_also_in_a_task() -> None:
    generations = CheckpointGeneration()
    generations.value = 7
    copy = pickle.loads(pickle.dumps(generations))
    assert copy.get(TopicPartition("t", 3), 0) == 7


def test_the_newest_micro_batch_that_has_begun_is_that_of_the_highest_number(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert newest_logged(spark, str(tmp_path)) == -1
    (tmp_path / "offsets").mkdir()
    for number in (9, 10):
        (tmp_path / "offsets" / str(number)).write_text("v1")
    assert newest_logged(spark, str(tmp_path)) == 10


def test_the_group_of_a_checkpoint_changes_only_when_its_micro_batches_are_complete(
    spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint = str(tmp_path)
    keep_group(spark, checkpoint, "one")
    for log in ("offsets", "commits"):
        (tmp_path / log).mkdir()
    (tmp_path / "offsets" / "0").touch()
    keep_group(spark, checkpoint, "one")
    with pytest.raises(
        SettingsError, match=r"micro-batch 0 of .* belongs to group one: with group two"
    ):
        keep_group(spark, checkpoint, "two")
    (tmp_path / "commits" / "0").touch()
    keep_group(spark, checkpoint, "two")
    (tmp_path / "offsets" / "1").touch()
    with pytest.raises(SettingsError, match="belongs to group two"):
        keep_group(spark, checkpoint, "one")


def test_a_checkpoint_of_an_earlier_version_takes_any_group(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").touch()
    keep_group(spark, str(tmp_path), "one")
    assert (tmp_path / "kmr-group").read_text() == "one"
