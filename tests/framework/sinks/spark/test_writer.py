"""SparkWriter without Spark: Parquet files that appear whole, under the same name for the same offsets."""

from __future__ import annotations

import copy
import pickle
from itertools import chain
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kmr.errors import StrategyError
from kmr.record import Range, Rows
from kmr.reducers.reducer import Retry
from kmr.sinks.parquet.files import open_directory
from kmr.sinks.spark.writer import SparkWriter

from ...flushes import Flushed, outcome_now

if TYPE_CHECKING:
    from pathlib import Path

    from kmr.reducers.reducer import Context


def rows_of(first: int, last: int, partition: int = 0, **columns: Any) -> Rows:
    offsets = np.arange(first, last + 1)
    table = pa.table({"partition": [partition] * len(offsets), "offset": offsets, **columns})
    return Rows(table, (Range("t", partition, first, last),), offsets)


async def opened(context: Context, path: Path, **options: Any) -> SparkWriter:
    writer = copy.deepcopy(SparkWriter(path=path, **options))
    await writer.open(context)
    return writer


def flush(writer: SparkWriter, *rows: Rows) -> Flushed:
    for each in rows:
        writer.add(each)
    result = outcome_now(writer)
    assert isinstance(result, Flushed)
    writer.reset()
    return result


def names_in(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def offsets_in(path: Path) -> list[Any]:
    files = [file for file in path.rglob("*.parquet") if not file.name.startswith("_")]
    return sorted(chain.from_iterable(pq.read_table(file)["offset"].to_pylist() for file in files))


async def test_a_flush_is_one_file_per_partition_named_after_its_offsets(
    context: Context, tmp_path: Path
) -> None:
    writer = await opened(context, tmp_path / "out")
    assert writer.at_least_once is None
    flush(writer, rows_of(0, 4), rows_of(0, 2, partition=1), rows_of(5, 9))
    assert names_in(tmp_path / "out") == [
        f"g~t~0~{0:019d}-{9:019d}.parquet",
        f"g~t~1~{0:019d}-{2:019d}.parquet",
    ]


async def test_the_same_range_from_another_worker_replaces_the_file(
    context: Context, tmp_path: Path
) -> None:
    for _ in range(2):
        writer = await opened(context, tmp_path)
        flush(writer, rows_of(0, 9))
        flush(writer, rows_of(10, 19))
        await writer.close()
    assert offsets_in(tmp_path) == list(range(20))


async def test_a_crash_before_the_rename_leaves_nothing_visible(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await opened(context, tmp_path)
    with monkeypatch.context() as patched:
        # Simulates a crash: nothing after it runs, the hidden file stays.
        patched.setattr("kmr.sinks.parquet.files.Directory.rename", _crash)
        patched.setattr("kmr.sinks.parquet.files.Directory.remove", lambda *_: None)
        writer.add(rows_of(0, 9))
        with pytest.raises(KeyboardInterrupt):
            writer.flush()
    assert [name[:3] for name in names_in(tmp_path)] == ["_g~"]
    assert offsets_in(tmp_path) == []
    assert open_directory(str(tmp_path)).schema() is None
    flush(await opened(context, tmp_path), rows_of(0, 9))
    assert offsets_in(tmp_path) == list(range(10))


def _crash(*_: object) -> None:
    raise KeyboardInterrupt


async def test_after_a_disk_error_only_the_missing_parts_are_written(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await opened(context, tmp_path)
    writer.add(rows_of(0, 9))
    writer.add(rows_of(0, 9, partition=1))
    renamed: list[str] = []
    rename = type(open_directory(str(tmp_path))).rename

    def fail_second(directory: Any, old: str, new: str) -> None:
        renamed.append(new)
        if len(renamed) == 2:
            raise OSError(28, "No space left on device")
        rename(directory, old, new)

    monkeypatch.setattr("kmr.sinks.parquet.files.Directory.rename", fail_second)
    result = outcome_now(writer)
    assert isinstance(result, Retry)
    assert "No space left" in result.reason
    assert not result.may_double
    assert len(names_in(tmp_path)) == 1, "the hidden file is removed"
    assert outcome_now(writer) == Flushed()
    assert [name.rpartition("/")[2][:6] for name in renamed] == ["g~t~0~", "g~t~1~", "g~t~1~"]
    assert offsets_in(tmp_path) == sorted([*range(10)] * 2)


@pytest.mark.parametrize(
    ("format_", "aggregated", "doubles"),
    [
        ("delta", False, False),
        ("delta", True, True),
        ("iceberg", False, True),
        ("orc", True, False),
    ],
)
async def test_a_retry_says_that_rows_may_be_doubled_where_spark_appends_without_a_transaction_id(
    context: Context, format_: str, aggregated: bool, doubles: bool
) -> None:
    session = MagicMock()
    session.createDataFrame.side_effect = OSError("the connection is lost")
    writer = SparkWriter(path="hdfs://h/x", format=format_)
    await writer.open(context.with_sinks(session=session))
    rows = rows_of(0, 4)
    if aggregated:
        rows = Rows(rows.table, (*rows.ranges, Range("t", 1, 0, 4)), None)
    writer.add(rows)
    result = outcome_now(writer)
    assert isinstance(result, Retry)
    assert result.may_double is doubles


async def test_partition_by_makes_directories_and_leaves_the_columns_out_of_the_files(
    context: Context, tmp_path: Path
) -> None:
    writer = await opened(context, tmp_path, partition_by="carrier")
    carriers = ["AA", "UA", None, "", "a/b"]
    flush(writer, rows_of(0, 4, carrier=carriers))
    name = f"g~t~0~{0:019d}-{4:019d}.parquet"
    directories = ("AA", "UA", "__HIVE_DEFAULT_PARTITION__", "a%2Fb")
    assert names_in(tmp_path) == sorted(f"carrier={value}/{name}" for value in directories)
    assert offsets_in(tmp_path) == list(range(5))
    assert pq.read_schema(tmp_path / "carrier=AA" / name).names == ["partition", "offset"]


async def test_values_that_do_not_fit_existing_columns_are_poisoned_with_their_offsets(
    context: Context, tmp_path: Path
) -> None:
    flush(await opened(context, tmp_path), rows_of(0, 1, delay=[1, 2]))
    writer = await opened(context, tmp_path)  # learns the types from the file
    result = flush(writer, rows_of(2, 4, delay=[3.0, 3.5, 4.0]))
    (poisoned,) = result.refusals
    assert poisoned.rows.offsets is not None
    assert poisoned.rows.offsets.tolist() == [3]
    assert poisoned.reason == "column delay (int64) cannot hold 3.5"
    assert offsets_in(tmp_path) == [0, 1, 2, 4]


async def test_a_schema_sets_the_types_from_the_first_row_on(
    context: Context, tmp_path: Path
) -> None:
    schema = pa.schema({"delay": pa.float64()})
    writer = await opened(context, tmp_path, schema=schema)
    assert not flush(writer, rows_of(0, 1, delay=[1, 2])).refusals
    assert not flush(writer, rows_of(2, 3, delay=[1.5, None])).refusals


async def test_copies_of_a_writer_have_their_own_rows_and_can_be_pickled(
    context: Context, tmp_path: Path
) -> None:
    template = pickle.loads(pickle.dumps(SparkWriter(path=tmp_path)))
    one, other = copy.deepcopy(template), copy.deepcopy(template)
    for writer in (one, other):
        await writer.open(context)
    one.add(rows_of(0, 4))
    flush(other, rows_of(5, 9))
    assert offsets_in(tmp_path) == list(range(5, 10))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs a table, a path, or a transform"),
        ({"table": "t", "path": "p"}, "either table or path"),
        ({"table": "t", "partition_by": "a"}, "are for a path"),
        ({"path": "p", "compression": "zip"}, "compression must be one of"),
        ({"path": "p", "max_rows": 0}, "max_rows must be above 0"),
        ({"path": "p", "schema": pa.schema({"d": pa.duration("s")})}, "column d of Spark"),
    ],
)
def test_invalid_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        SparkWriter(**options)


@pytest.mark.parametrize(
    ("column", "message"),
    [("nowhere", "no column nowhere"), ("price", "cannot partition by column price")],
)
async def test_an_invalid_partition_column_is_an_error(
    context: Context, tmp_path: Path, column: str, message: str
) -> None:
    writer = await opened(context, tmp_path, partition_by=column)
    writer.add(rows_of(0, 0, price=[1.5]))
    with pytest.raises(StrategyError, match=message):
        writer.flush()
