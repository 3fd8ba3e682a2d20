"""Rows for which a transform raises are found by one job, with their reasons, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

from kmr.sinks.answers import refusal_of_spark
from kmr.sinks.spark.raising import raising

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow

ROWS = pa.table(
    {
        "offset": list(range(300)),
        "note": [f"x{n}" if n % 3 else str(n) for n in range(300)],
    }
)


def by_expressions(frame: DataFrame) -> DataFrame:
    """An integer of a text; then a division by zero for one of the good ones; then a condition."""
    frame.createOrReplaceTempView("kmr_rows")
    cast = "SELECT *, CAST(note AS INT) AS number FROM kmr_rows WHERE offset < 290"
    made = frame.sparkSession.sql(f"SELECT offset, 7 DIV (number - 9) AS ratio FROM ({cast})")
    return made.where("if(offset = 12, raise_error('twelve'), ratio < 1000)")


def by_functions(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions

    @functions.udf("long", useArrow=False)
    def pickled(offset: int) -> int:
        if offset % 3:
            raise ValueError(f"offset {offset}\nof two lines")
        return offset

    @functions.udf("long", useArrow=True)
    def in_arrow(offset: int) -> int:
        return 1 // (offset - 9)

    def in_pandas(offsets: Any) -> Any:
        if (offsets == 12).any():
            raise KeyError("twelve")
        return offsets + 1

    in_pandas.__annotations__ = {"offsets": pd.Series, "return": pd.Series}
    any_functions: Any = functions
    of_columns = any_functions.pandas_udf(in_pandas, "long")
    made = frame.withColumn("a", pickled(functions.expr("CAST(offset AS BIGINT)")))
    return made.select("a", in_arrow("offset") + of_columns("offset"))


@pytest.mark.parametrize(
    ("transform", "reasons"),
    [
        (
            by_expressions,
            {
                1: "column number: CAST(kmr_rows.note AS INT) of note='x1': [CAST_INVALID_INPUT] The "
                "value 'x1' ",
                2: "column number: CAST(kmr_rows.note AS INT) of note='x2', as of note='x1': "
                "[CAST_INVALID_INPUT]",
                9: "column ratio: ",
                12: "column of a filter: ",
            },
        ),
        (
            by_functions,
            {
                1: "ValueError: offset 1",
                2: "ValueError: offset 2",
                9: "ZeroDivisionError: ",
                12: "KeyError: 'twelve'",
            },
        ),
    ],
)
def test_each_row_for_which_an_expression_or_a_function_raises_is_found_with_its_reason(
    spark: SparkSession, transform: Callable[[DataFrame], DataFrame], reasons: dict[int, str]
) -> None:
    last = 290 if transform is by_expressions else 300
    found = raising(spark, transform, ROWS, refusal_of_spark)
    assert sorted(found) == sorted([n for n in range(last) if n % 3] + [9, 12])
    assert {row: found[row][: len(reason)] for row, reason in reasons.items()} == reasons


def test_below_an_aggregation_rows_are_found_too(spark: SparkSession) -> None:
    def transform(frame: DataFrame) -> DataFrame:
        return frame.selectExpr("CAST(note AS INT) % 2 AS odd").groupBy("odd").count()

    assert len(raising(spark, transform, ROWS, refusal_of_spark)) == 200


def test_nothing_is_found_in_what_has_no_guard(spark: SparkSession) -> None:
    from pyspark.sql import functions

    def exploded(frame: DataFrame) -> DataFrame:
        made = frame.select("offset", functions.explode(functions.array("note")).alias("note"))
        return made.selectExpr("CAST(note AS INT)")

    def counted(frame: DataFrame) -> DataFrame:
        frame.selectExpr("CAST(note AS INT)").toArrow()
        return frame

    for transform in (exploded, counted, lambda _frame: None):
        assert raising(spark, transform, ROWS, refusal_of_spark) == {}


def test_an_error_that_is_not_about_rows_refuses_none(spark: SparkSession) -> None:
    assert raising(spark, by_expressions, ROWS, lambda _error: None) == {}
