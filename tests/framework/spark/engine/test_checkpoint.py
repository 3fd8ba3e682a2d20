"""The newest micro-batch in a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from kmr.spark.engine.checkpoint import newest_logged

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
