"""Per-batch maps take and return tables of other libraries."""

from __future__ import annotations

import re
import sys
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import duckdb
import msgspec
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kmr import Json, Strategy, map_batch
from kmr.errors import StrategyError
from kmr.frames import as_table
from kmr.mapping.functions import spec_of
from kmr.testing import Journal, MemoryWriter, run_strategy

if TYPE_CHECKING:
    from collections.abc import Callable


class Hit(msgspec.Struct):
    path: str
    status: int


VALUES = [
    {"path": "/a", "status": 200},
    {"path": "/b", "status": 500},
    {"path": "/c", "status": 503},
]


@map_batch
def polars_map(hits: pl.DataFrame) -> pl.DataFrame:
    kind = pl.col("path").cast(pl.Categorical).alias("kind")
    return hits.filter(pl.col("status") >= 500).select("path", kind, "kmr_offset")


@map_batch
def lazy_map(hits: pl.LazyFrame) -> pl.LazyFrame:
    return hits.filter(pl.col("status") >= 500).select(
        "path", pl.col("path").alias("kind"), "kmr_offset"
    )


@map_batch
def duckdb_map(hits: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    return hits.filter("status >= 500").project("path, path AS kind, kmr_offset")


@map_batch(input="pandas")
def pandas_map(hits: Any) -> Any:
    assert isinstance(hits, pd.DataFrame)
    found = hits[hits["status"] >= 500]
    return found.assign(kind=found["path"])[["path", "kind", "kmr_offset"]]


@map_batch
def table_map(hits: pa.Table) -> pa.Table:
    assert isinstance(hits, pa.Table)
    found = hits.filter(pc.field("status") >= 500)
    return found.select(["path", "kmr_offset"]).append_column("kind", found.column("path"))


@map_batch(input="polars")
def pair_map(hits: Any) -> Any:
    mask = hits["status"] >= 500
    return hits.filter(mask).select("path", kind="path"), mask


@pytest.mark.parametrize(
    "function", [polars_map, lazy_map, duckdb_map, pandas_map, table_map, pair_map]
)
def test_a_map_of_another_library_makes_the_rows_of_the_records(
    function: Callable[..., Any],
) -> None:
    strategy = Strategy(value=Json(Hit), map=function, reduce=MemoryWriter(Journal()))
    run = run_strategy(strategy, VALUES)
    assert run.rows == [{"path": "/b", "kind": "/b"}, {"path": "/c", "kind": "/c"}]
    assert run.table.schema.types == [pa.string(), pa.string()]
    assert [offset for _, offset in run.filtered] == [0]
    declared = strategy.row_schema
    if function is pandas_map and pd.Series(["a"]).dtype == object:  # no type without values
        assert declared is None
    else:
        assert declared is not None
        assert declared.names == ["path", "kind"]


def test_an_error_of_a_lazy_query_fails_only_the_records_that_raise_it() -> None:
    @map_batch(input="duckdb")
    def strict(hits: Any) -> Any:
        return hits.project(
            "CASE WHEN status = 500 THEN error(path) ELSE path END AS p, kmr_offset"
        )

    strategy = Strategy(
        value=Json(Hit),
        map=strict,
        reduce=MemoryWriter(Journal()),
        reduce_err=MemoryWriter(Journal()),
    )
    run = run_strategy(strategy, VALUES)
    assert [row["p"] for row in run.rows] == ["/a", "/c"]
    assert [failure["offset"] for failure in run.failures] == [1]


def test_types_of_other_libraries_become_those_that_sinks_know() -> None:
    frame = pl.DataFrame(
        {
            "text": ["a"],
            "bytes": [b"a"],
            "list": [["a"]],
            "struct": [{"s": "a"}],
            "category": pl.Series(["a"], dtype=pl.Enum(["a"])),
        }
    )
    table = as_table(frame)
    assert table is not None
    kinds = [str(kind) for kind in table.schema.types]
    assert kinds == ["string", "binary", "list<item: string>", "struct<s: string>", "string"]
    assert table.to_pylist() == frame.to_dicts()


def test_a_function_gets_what_its_annotation_or_its_option_says() -> None:
    frames = {spec_of(each).frame for each in (polars_map, lazy_map, duckdb_map, pandas_map)}
    assert frames == {"polars", "lazy", "duckdb", "pandas"}
    with pytest.raises(
        StrategyError, match="must be pyarrow, polars, pandas or duckdb, not 'spark'"
    ):
        map_batch(input="spark")(len)  # type: ignore[call-overload]


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(StrategyError, match="needs polars: pip install polars"):
        map_batch(input="polars")(len)


def test_views_become_texts_that_pyarrow_can_take_rows_of() -> None:
    views = pa.array(["a", None, "b"], pa.string_view())
    table = as_table(pa.table({"v": views, "n": pa.array([b"x", b"", None], pa.binary_view())}))
    assert table is not None
    assert table.take([2, 0]).to_pylist() == [{"v": "b", "n": None}, {"v": "a", "n": b"x"}]


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (pd.DataFrame({"a": [1], "c": [2**70]}), f"column c cannot hold [{2**70}]: OverflowError"),
        (pd.DataFrame({"c": pd.period_range("2026-01", periods=1, freq="M")}), "period[M] is no"),
        (pd.DataFrame({"c": [date(2026, 1, 1), datetime(2026, 1, 1, 5)]}), "dates beside times"),  # noqa: DTZ001
        (pl.DataFrame({"c": pl.Series([object()], dtype=pl.Object)}), "Object is no type"),
        (pl.DataFrame({"c": pl.Series([2**100], dtype=pl.Int128)}), f"cannot hold [{2**100}]"),
        (pd.DataFrame({"c": [Decimal("NaN"), None]}), "NaN is no decimal"),
        (pd.DataFrame({"c": [time(1, tzinfo=UTC)]}), "a time of day with a zone"),
        (pd.DataFrame({"c": pd.Series([date(2026, 1, 1), 5], dtype=object)}), "beside times"),
        (duckdb.sql("SELECT '0101'::BIT AS c"), "BIT is no type"),
        (duckdb.sql("SELECT '12:00:00+01'::TIMETZ AS c"), "TIME WITH TIME ZONE is no type"),
        (duckdb.sql("SELECT '-infinity'::TIMESTAMPTZ AS c"), "a time cannot be infinite"),
        (duckdb.sql("SELECT 'infinity'::DATE AS c"), "a time cannot be infinite"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_column_that_arrow_cannot_have_or_would_change_is_named(table: Any, reason: str) -> None:
    with pytest.raises(TypeError, match=r"column c.*" + re.escape(reason.removeprefix("column c"))):
        as_table(table)
