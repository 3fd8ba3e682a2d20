"""SparkWriter with Spark: Spark reads each written row once, also after repeated writes."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from kmr.delivery.failures import FAILED_SCHEMA
from kmr.errors import StrategyError
from kmr.record import Range, Rows
from kmr.reducers.reducer import Context
from kmr.sinks.spark.writer import SparkWriter
from kmr.spark.session import SparkUnavailable

from ...flushes import Flushed, outcome_now

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from kmr.reducers.sink import Refusal

pytestmark = pytest.mark.slow


@pytest.fixture
def context() -> Context:
    return Context(group="g", stage="reduce-1")


@pytest.fixture
def table(spark: SparkSession) -> Iterator[str]:
    """The name of a table that is dropped at the end."""
    yield "deliveries"
    spark.sql("DROP TABLE IF EXISTS deliveries")


def rows_of(first: int, last: int, partition: int = 0, **columns: Any) -> Rows:
    offsets = np.arange(first, last + 1)
    table = pa.table({"partition": [partition] * len(offsets), "offset": offsets, **columns})
    return Rows(table, (Range("t", partition, first, last),), offsets)


async def write(context: Context, *flushes: list[Rows], **options: Any) -> list[Refusal]:
    """Run a writer as a worker does: open, flush after flush, close."""
    writer = copy.deepcopy(SparkWriter(**options))
    poisoned: list[Refusal] = []
    try:
        await writer.open(context)
        for flush in flushes:
            for rows in flush:
                writer.add(rows)
            result = outcome_now(writer)
            assert isinstance(result, Flushed)
            poisoned += result.refusals
            writer.reset()
    finally:
        await writer.close()
    return poisoned


def rows_in(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


async def test_spark_reads_every_type_and_partition_as_it_was_written(
    context: Context, spark: SparkSession, tmp_path: Path
) -> None:
    columns: dict[str, Any] = {
        "carrier": ["AA", None, "a/b=ü %"],
        "small": pa.array([1, 2, 65535], pa.uint16()),
        "seen": pa.array([0, 1_500_000_000, None], pa.timestamp("ns", "UTC")),
        "tags": [["x"], [], None],
    }
    await write(
        context, [rows_of(0, 2, **columns)], path=tmp_path, format="orc", partition_by=["carrier"]
    )
    frame = spark.read.orc(str(tmp_path)).drop("kmr_range")
    assert dict(frame.dtypes) == {
        "partition": "bigint",
        "offset": "bigint",
        "small": "int",
        "seen": "timestamp",
        "tags": "array<string>",
        "carrier": "string",
    }
    selected = frame.selectExpr("offset", "small", "unix_micros(seen)", "tags", "carrier")
    assert rows_in(selected) == [
        (0, 1, 0, ["x"], "AA"),
        (1, 2, 1_500_000, [], None),
        (2, 65535, None, None, "a/b=ü %"),
    ]


@pytest.mark.parametrize("partitioned", [False, True])
async def test_a_table_has_rows_once_that_are_written_twice(
    context: Context, spark: SparkSession, table: str, partitioned: bool
) -> None:
    spark.sql(
        f"CREATE TABLE {table} (partition INT, offset BIGINT, carrier STRING) USING parquet"
        + (" PARTITIONED BY (carrier)" if partitioned else "")
    )
    assert spark.table(table).count() == 0  # Spark caches that there are no files
    for _ in range(2):
        await write(
            context,
            [rows_of(0, 1, carrier=["AA", "it's"]), rows_of(0, 0, partition=1, carrier=["AA"])],
            [rows_of(2, 3, carrier=[None, "b\\c"])],
            table=table,
        )
    found = rows_in(spark.table(table).selectExpr("partition", "offset", "coalesce(carrier, '')"))
    assert found == [(0, 0, "AA"), (0, 1, "it's"), (0, 2, ""), (0, 3, "b\\c"), (1, 0, "AA")]
    assert spark.table(table).where("carrier = 'AA'").count() == 2


async def test_rows_fit_the_types_of_the_table_or_are_poisoned(
    context: Context, spark: SparkSession, table: str
) -> None:
    spark.sql(f"CREATE TABLE {table} (offset INT, delay INT, note STRING) USING parquet")
    offsets = np.arange(2)
    rows = Rows(
        pa.table({"offset": offsets, "delay": ["7", "late"]}), (Range("t", 0, 0, 1),), offsets
    )
    (poisoned,) = await write(context, [rows], table=table)
    assert poisoned.reason == "column delay (int32) cannot hold 'late'"
    assert rows_in(spark.table(table)) == [(0, 7, None)]
    (poisoned,) = await write(context, [rows_of(2, 2)], table=table)
    assert "table deliveries has no column partition" in str(poisoned.reason)
    with pytest.raises(StrategyError, match=r"all of the last 100 rows .* has no column partition"):
        await write(context, [rows_of(2, 101)], table=table)
    spark.sql(f"ALTER TABLE {table} ADD COLUMNS (partition INT)")
    await write(context, [rows_of(2, 2)], table=table)
    assert spark.table(table).where("partition = 0").count() == 1


async def test_values_that_spark_refuses_are_refused_alone(
    context: Context, spark: SparkSession, table: str, tmp_path: Path
) -> None:
    spark.sql(f"CREATE TABLE {table} (offset INT, note VARCHAR(3)) USING parquet")
    values = pa.table({"offset": [0, 1, 2], "note": ["a", "four", "7"]})
    rows = Rows(values, (Range("t", 0, 0, 2),), np.arange(3))
    (poisoned,) = await write(context, [rows], table=table)
    assert poisoned.reason == "column note (varchar(3)) cannot hold 'four'"
    assert rows_in(spark.table(table)) == [(0, "a"), (2, "7")]

    def numbers(frame: DataFrame) -> DataFrame:
        return frame.selectExpr("offset", "cast(note AS INT) AS number")

    (poisoned,) = await write(context, [rows], path=tmp_path, transform=numbers, format="json")
    assert len(poisoned.rows) == 2
    assert "[CAST_INVALID_INPUT]" in poisoned.reason[0]
    assert rows_in(spark.read.json(str(tmp_path)).select("offset", "number")) == [(2, 7)]


async def test_a_failed_record_with_a_time_that_spark_cannot_convert_is_stored_without_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    letter = {"value": b"v", "topic": "t", "partition": 0, "stage": "map", "reason": "r"}
    times = [0, -(2**63) + 807, 2**63 - 1]
    made = [letter | {"offset": n, "timestamp": time} for n, time in enumerate(times)]
    table = pa.Table.from_pylist(made, schema=FAILED_SCHEMA)
    rows = Rows(table, (Range("t", 0, 0, 2),), np.arange(3))
    context = Context(group="g", stage="reduce-err")
    assert await write(context, [rows], path=tmp_path, format="orc") == []
    found = spark.read.orc(str(tmp_path)).select("offset", "value", "reason").orderBy("offset")
    assert [(row[0], bool(row[1]), "not stored" in row[2]) for row in found.collect()] == [
        (0, True, False),
        (1, True, True),
        (2, True, False),
    ]


async def test_of_the_first_times_those_that_orc_cannot_have_are_refused_by_name(
    context: Context, spark: SparkSession, tmp_path: Path
) -> None:
    first, first_day = -9_223_183_684_854_000_000, -(2**31) + 44_084
    at = pa.array([-(2**63), first - 1, first], pa.timestamp("us", "UTC"))
    days = pa.array([0, 0, first_day], pa.int32()).cast(pa.date32())
    (refused,) = await write(context, [rows_of(0, 2, at=at, day=days)], path=tmp_path, format="orc")
    assert [text.partition(" cannot hold")[0] for text in refused.reason] == [
        "column at (timestamp[us, tz=UTC])"
    ] * 2
    found = spark.read.orc(str(tmp_path)).selectExpr("unix_micros(at)", "unix_date(day)")
    assert rows_in(found) == [(first, first_day)]


async def test_a_table_that_is_made_anew_with_other_types_gets_files_of_these(
    context: Context, spark: SparkSession, table: str
) -> None:
    spark.sql(f"CREATE TABLE {table} (offset BIGINT, note STRING) USING parquet")
    writer = SparkWriter(table=table)
    await writer.open(context)
    try:
        for first in (0, 2):
            offsets = np.arange(first, first + 2)
            values = pa.table({"offset": offsets, "note": ["7", "x"]})
            writer.add(Rows(values, (Range("t", 0, first, first + 1),), offsets))
            result = outcome_now(writer)
            assert isinstance(result, Flushed)
            refusals = result.refusals
            writer.reset()
            if not first:
                spark.sql(f"DROP TABLE {table}")
                spark.sql(f"CREATE TABLE {table} (offset BIGINT, note INT) USING parquet")
    finally:
        await writer.close()
    assert [each.reason for each in refusals] == ["column note (int32) cannot hold 'x'"]
    assert rows_in(spark.table(table)) == [(2, 7)]


@pytest.mark.parametrize("format_", ["parquet", "orc"])
async def test_a_table_that_is_dropped_in_the_run_is_a_clear_error_and_not_made_again(
    context: Context, spark: SparkSession, table: str, format_: str
) -> None:
    spark.sql(f"CREATE TABLE {table} (partition BIGINT, offset BIGINT) USING {format_}")
    writer = SparkWriter(table=table)
    await writer.open(context)
    try:
        spark.sql(f"DROP TABLE {table}")
        writer.add(rows_of(0, 1))
        with pytest.raises(StrategyError, match="TABLE_OR_VIEW_NOT_FOUND"):
            writer.flush()
    finally:
        await writer.close()
    assert not spark.catalog.tableExists(table)


async def test_times_and_spaces_are_whole_in_files_of_text(
    context: Context, spark: SparkSession, tmp_path: Path
) -> None:
    whole = ("1970-01-01T00:00:01.500001Z", "0001-01-01T00:00:00.000000Z", " a ")
    at = pa.array([1_500_001, -62_135_596_800_000_000], pa.timestamp("us", "UTC"))
    rows = rows_of(0, 1, at=at, note=[" a ", "b"])
    for format_ in ("json", "csv"):
        await write(context, [rows], path=tmp_path / format_, format=format_)
        lines = spark.read.text(f"{tmp_path}/{format_}").collect()
        text = "\n".join(line.value for line in lines)
        assert [each for each in whole if each not in text] == []


async def test_a_missing_table_and_a_view_are_clear_errors(
    context: Context, spark: SparkSession
) -> None:
    with pytest.raises(
        StrategyError, match=r"Spark has no table nowhere .* CREATE TABLE `nowhere`"
    ):
        await write(context, table="nowhere")
    spark.range(1).createOrReplaceTempView("a_view")
    with pytest.raises(StrategyError, match="a_view is a view"):
        await write(context, table="a_view")


async def test_the_result_of_a_transform_is_in_the_files_once_when_it_is_written_twice(
    context: Context, spark: SparkSession, tmp_path: Path
) -> None:
    def per_carrier(frame: DataFrame) -> DataFrame:
        return frame.groupBy("carrier").count()

    flush = [rows_of(0, 2, carrier=["AA", "AA", "UA"])]
    for _ in range(2):
        await write(context, flush, path=tmp_path, transform=per_carrier)
    rows = spark.read.parquet(str(tmp_path)).drop("kmr_range")
    assert rows_in(rows) == [("AA", 2), ("UA", 1)]


async def test_a_transform_may_write_and_the_log_says_that_this_is_at_least_once(
    context: Context, spark: SparkSession, tmp_path: Path
) -> None:
    def append(frame: DataFrame) -> None:
        frame.write.mode("append").parquet(str(tmp_path))

    writer = SparkWriter(transform=append)
    with capture_logs() as logs:
        for each in (copy.deepcopy(writer), copy.deepcopy(writer)):
            await each.open(context)
            await each.close()
    reason = "the transform writes"
    assert [(line["event"], line["reason"]) for line in logs] == [
        ("delivers at least once", reason)
    ]
    await write(context, [rows_of(0, 9)], transform=append)
    assert spark.read.parquet(str(tmp_path)).count() == 10


@pytest.mark.parametrize(
    ("made", "options", "message"),
    [
        (None, {"path": "p"}, "returned None, but its result is written to p"),
        (7, {}, "returned int, and there is no table or path"),
    ],
)
async def test_a_wrong_result_of_a_transform_is_an_error(
    context: Context, spark: SparkSession, made: Any, options: dict[str, str], message: str
) -> None:
    with pytest.raises(StrategyError, match=message):
        await write(context, [rows_of(0, 0)], transform=lambda _: made, **options)


async def test_other_file_formats_are_directories_that_are_replaced(
    context: Context, spark: SparkSession, tmp_path: Path
) -> None:
    flushes = [[rows_of(0, 4, carrier=["AA"] * 5)], [rows_of(5, 9, carrier=["UA"] * 5)]]
    for _ in range(2):
        await write(context, *flushes, path=tmp_path, format="orc", partition_by="carrier")
    frame = spark.read.orc(str(tmp_path))
    assert sorted(row.offset for row in frame.select("offset").collect()) == list(range(10))
    assert frame.select("kmr_range").distinct().count() == 2


async def test_a_format_that_does_not_detect_repeated_writes_is_at_least_once(
    context: Context, spark: SparkSession, table: str
) -> None:
    spark.sql(f"CREATE TABLE {table} (partition INT, offset BIGINT) USING orc")
    writer = copy.deepcopy(SparkWriter(table=table))
    await writer.open(context)
    assert writer.at_least_once is not None
    assert "orc" in writer.at_least_once
    await writer.close()
    for _ in range(2):
        await write(context, [rows_of(0, 1)], table=table)
    assert rows_in(spark.table(table)) == [(0, 0), (0, 0), (0, 1), (0, 1)]


async def test_a_format_with_transactions_gets_partition_and_last_offset(
    context: Context, spark: SparkSession, tmp_path: Path
) -> None:
    """A fake of Delta, which is not on PyPI: it takes the same options, and skips as Delta does."""
    from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

    log = tmp_path / "log"

    class Writer(DataSourceArrowWriter):
        def __init__(self, options: dict[str, str]) -> None:
            self.application, self.version = options["txnappid"], int(options["txnversion"])

        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            message: Any = WriterCommitMessage()
            message.rows = sum(len(batch) for batch in iterator)
            return message  # type: ignore[no-any-return]

        def commit(self, messages: list[Any]) -> None:
            known = json.loads(log.read_text()) if log.exists() else []
            if any(key == self.application and at >= self.version for key, at, _ in known):
                return
            rows = sum(message.rows for message in messages if message is not None)
            log.write_text(json.dumps([*known, (self.application, self.version, rows)]))

    class Delta(DataSource):
        @classmethod
        def name(cls) -> str:
            return "delta"

        def writer(self, schema: Any, overwrite: bool) -> Writer:
            assert not overwrite
            return Writer({key.lower(): value for key, value in self.options.items()})

    spark.dataSource.register(Delta)
    for _ in range(2):
        await write(
            context,
            [rows_of(0, 4), rows_of(0, 2, partition=1)],
            [rows_of(5, 9)],
            path=tmp_path / "table",
            format="delta",
        )
    assert json.loads(log.read_text()) == [
        ["kmr:g:t:0", 4, 5],
        ["kmr:g:t:1", 2, 3],
        ["kmr:g:t:0", 9, 5],
    ]


async def test_writers_share_one_session_and_do_not_stop_a_foreign_one(
    context: Context, spark: SparkSession, tmp_path: Path
) -> None:
    writer = SparkWriter(transform=lambda frame: frame, path=tmp_path)
    copies = [copy.deepcopy(writer), copy.deepcopy(writer)]
    for each in copies:
        await each.open(context)
    assert {id(each.session.get()) for each in copies} == {id(spark)}
    for each in copies:
        await each.close()
    assert spark.range(3).count() == 3


async def test_a_session_on_another_master_is_refused_in_every_thread(
    context: Context, spark: SparkSession
) -> None:
    """Spark's own check sees only the session of the calling thread."""
    with pytest.raises(
        SparkUnavailable, match=r"runs on local\[2\] in this process, not on local\[3\]"
    ):
        await write(context, transform=print, master="local[3]")
    assert spark.range(3).count() == 3


async def test_writers_of_one_process_that_name_different_masters_are_refused(
    context: Context, spark: SparkSession
) -> None:
    writer = SparkWriter(transform=print, master="local[2]")
    await writer.open(context)
    try:
        with pytest.raises(
            StrategyError, match=r"uses local\[2\], so another one cannot use local"
        ):
            await write(context, transform=print, master="local[3]")
    finally:
        await writer.close()


async def test_a_row_for_which_a_function_raises_in_an_executor_is_refused_and_the_others_are_written(
    context: Context, spark: SparkSession, tmp_path: Path
) -> None:
    from pyspark.sql import functions

    @functions.udf("long", useArrow=False)
    def checked(offset: int) -> int:
        if offset == 5:
            raise ValueError(f"offset {offset} is odd")
        return offset

    def transform(frame: DataFrame) -> DataFrame:
        return frame.select(checked("offset").alias("offset"))

    (refusal,) = await write(
        context, [rows_of(0, 9)], path=tmp_path, transform=transform, format="json"
    )
    assert refusal.reason == "ValueError: offset 5 is odd"
    assert rows_in(spark.read.json(str(tmp_path)).select("offset")) == [
        (n,) for n in range(10) if n != 5
    ]


async def test_a_function_that_raises_the_same_for_all_rows_is_a_wrong_set_up(
    context: Context, spark: SparkSession, tmp_path: Path
) -> None:
    from pyspark.sql import functions

    @functions.udf("long", useArrow=False)
    def rated(_offset: int) -> int:
        raise KeyError("rate")

    with pytest.raises(StrategyError, match=r"all of the last 150 rows .* KeyError: 'rate'"):
        await write(
            context,
            [rows_of(0, 149)],
            path=tmp_path,
            transform=lambda frame: frame.select(rated("offset").alias("n")),
            format="json",
        )


@pytest.mark.parametrize(
    ("expression", "attempts", "words"),
    [
        ("if(offset = 5, raise_error('five'), offset)", 0, "[USER_RAISED_EXCEPTION] five"),
        ("size(sequence(0L, if(offset = 5, 1L << 40, 1L)))", 0, "COLLECTION_SIZE_LIMIT_EXCEEDED"),
        (
            "java_method('java.util.UUID', 'fromString', if(offset = 5, 'odd', '1-1-1-1-1'))",
            6,
            "Invalid UUID string: odd (each of 6 attempts; other rows are written)",
        ),
    ],
)
async def test_a_row_for_which_an_expression_raises_is_refused_and_the_others_are_written(
    context: Context,
    spark: SparkSession,
    tmp_path: Path,
    expression: str,
    attempts: int,
    words: str,
) -> None:
    def transform(frame: DataFrame) -> DataFrame:
        return frame.selectExpr("offset", f"{expression} AS made")

    writer = SparkWriter(path=tmp_path, transform=transform, format="json")
    await writer.open(context)
    try:
        writer.add(rows_of(0, 9))
        for _ in range(attempts):
            with pytest.raises(Exception, match="An error occurred while calling"):
                writer.flush()
        result = outcome_now(writer)
    finally:
        await writer.close()
    assert isinstance(result, Flushed)
    (refusal,) = result.refusals
    assert words in refusal.reason
    assert rows_in(spark.read.json(str(tmp_path)).select("offset")) == [
        (n,) for n in range(10) if n != 5
    ]


@pytest.mark.parametrize("format_", ["parquet", "orc"])
async def test_of_many_rows_that_do_not_fit_a_table_each_is_refused_and_the_others_are_written(
    context: Context, spark: SparkSession, table: str, format_: str
) -> None:
    spark.sql(f"CREATE TABLE {table} (offset BIGINT, number INT, note VARCHAR(3)) USING {format_}")
    notes = ["four" if n == 4 else "abc" for n in range(400)]

    def transform(frame: DataFrame) -> DataFrame:
        return frame.selectExpr(
            "offset", "offset * if(offset % 4 = 0, 1, 1L << 40) AS number", "note"
        )

    refused = await write(context, [rows_of(0, 399, note=notes)], table=table, transform=transform)
    assert sum(len(each.rows) for each in refused) == 301
    texts = [text for each in refused for text in [each.reason] * isinstance(each.reason, str)]
    texts += [text for each in refused for text in each.reason if not isinstance(each.reason, str)]
    assert [text for text in texts if "tried alone" in text] == []
    assert sum("varchar(3)) cannot hold" in text for text in texts) == 1
    written = [n for n in range(0, 400, 4) if n != 4]
    assert rows_in(spark.table(table)) == [(n, n, "abc") for n in written]


@pytest.mark.parametrize("format_", ["parquet", "orc"])
async def test_columns_that_the_rows_lack_have_the_default_of_the_table(
    context: Context, spark: SparkSession, table: str, format_: str
) -> None:
    spark.sql(
        f"CREATE TABLE {table} (offset INT, a INT DEFAULT 2 + 3, b STRING DEFAULT 'x''y', c INT) "
        f"USING {format_}"
    )
    nulls = pa.table({"offset": [2], "a": pa.nulls(1, pa.int32())})
    explicit = Rows(nulls, (Range("t", 0, 2, 2),), np.array([2]))
    lacking = Rows(pa.table({"offset": [0, 1]}), (Range("t", 0, 0, 1),), np.arange(2))
    assert await write(context, [lacking], [explicit], table=table) == []
    assert rows_in(spark.table(table).where("offset < 2")) == [
        (0, 5, "x'y", None),
        (1, 5, "x'y", None),
    ]
    assert rows_in(spark.table(table).where("offset = 2")) == [(2, None, "x'y", None)]
