"""`kmr check --spark` on tables and files with gaps and doubles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framework.cli.check import app, check_spark
from framework.errors import SettingsError, SinkError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

GAPS_AND_DOUBLES: dict[str, Any] = {
    "topic": ["a", "a", "a", "a", "a", "b"],
    "partition": [0, 0, 0, 0, 1, 0],
    "offset": [3, 4, 4, 7, 0, 4],
}


def files_of(directory: Path, **columns: Any) -> str:
    """Every row in a file of its own, as many flushes leave them."""
    directory.mkdir()
    table = pa.table(columns)
    for row in range(table.num_rows):
        pq.write_table(table.slice(row, 1), directory / f"{row}.parquet")
    return str(directory)


def test_missing_and_doubled_messages_are_counted_per_topic_and_partition(
    spark: SparkSession, tmp_path: Path
) -> None:
    result = check_spark(files_of(tmp_path / "t", **GAPS_AND_DOUBLES))
    assert not result.clean
    assert (result.deliveries, result.messages, result.missing, result.doubled) == (6, 5, 2, 1)
    first = result.partitions[0]
    assert (first.topic, first.partition, first.first, first.last) == ("a", 0, 3, 7)
    assert (first.missing, first.doubled, first.surplus, first.example) == (2, 1, 1, 4)


def test_a_table_with_other_column_names_is_checked_by_them(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE others (p INT, `o}f` BIGINT) USING parquet")
    try:
        spark.sql("INSERT INTO others VALUES (0, 1), (0, 2), (1, 0)")
        result = check_spark("others", partition_column="p", offset_column="o}f", expected=4)
        assert (result.messages, result.missing, result.doubled) == (3, 1, 0)
        with pytest.raises(SinkError, match="others has no column partition, offset, but p, o}f"):
            check_spark("others")
    finally:
        spark.sql("DROP TABLE others")


def test_what_is_not_there_is_one_clear_error(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=r"Spark cannot read nowhere: .*TABLE_OR_VIEW_NOT_FOUND"):
        check_spark("nowhere")
    with pytest.raises(SinkError, match=r"Spark cannot read .*PATH_NOT_FOUND"):
        check_spark(str(tmp_path / "nowhere"))


def test_the_command_prints_a_verdict_and_its_exit_code_says_whether_all_is_well(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = files_of(tmp_path / "bad", **GAPS_AND_DOUBLES)
    good = files_of(tmp_path / "good", partition=[0, 0], offset=[5, 6])
    arguments: dict[str, Any] = {"exit_on_error": False, "result_action": "return_value"}
    assert app(["--spark", bad], **arguments) == 1
    assert "5 messages: 2 missing, 1 doubled" in capsys.readouterr().out
    assert app(["--spark", good, "--expected", "2"], **arguments) == 0
    assert "2 messages of 2 expected: 0 missing, 0 doubled" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["--table", "t", "--spark", "t"]])
def test_it_must_be_said_what_to_check(arguments: list[str]) -> None:
    with pytest.raises(SettingsError, match="either --table, or --spark"):
        app(arguments, exit_on_error=False, result_action="return_value")
