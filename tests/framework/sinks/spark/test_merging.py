"""Changes as MERGE: the statements, and the rows of a model of Delta after replays and late writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.errors import StrategyError
from kmr.record import Range, Rows, TopicPartition
from kmr.reducers.reducer import Retry
from kmr.sinks.changes import Changes
from kmr.sinks.parquet.columns import DestinationColumns
from kmr.sinks.planning import plan_ranges
from kmr.sinks.spark.destinations import CatalogTable
from kmr.sinks.spark.merging import MergedTable, create_statement, merge_statement, require_merge
from kmr.sinks.spark.types import stored_type

from ..histories import OPERATIONS, History, rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kmr.sinks.planning import RangeRows

_ID: pa.Field[Any] = pa.field("id", pa.int64(), nullable=False)
SCHEMA = pa.schema([_ID, pa.field("name", pa.string()), pa.field("note", pa.string())])


class Delta:
    """A session, and a table that merges as Delta does: it skips a transaction that it has."""

    def __init__(self) -> None:
        self.rows: dict[Any, dict[str, Any]] = {}
        self.versions: dict[str, int] = {}
        self.statements: list[str] = []
        self.failure: Exception | None = None
        self._settings: dict[str, str] = {}
        self._view: list[dict[str, Any]] = []

    def get(self) -> Delta:
        return self

    def newSession(self) -> Delta:  # noqa: N802  Spark's name
        return self

    @property
    def conf(self) -> Delta:
        return self

    @property
    def catalog(self) -> Delta:
        return self

    def isModifiable(self, _name: str) -> bool:  # noqa: N802  Spark's name
        return True

    def set(self, name: str, value: str) -> None:
        self._settings[name] = value

    def unset(self, name: str) -> None:
        self._settings.pop(name, None)

    def currentCatalog(self) -> str:  # noqa: N802  Spark's name
        return "spark_catalog"

    def currentDatabase(self) -> str:  # noqa: N802  Spark's name
        return "default"

    def setCurrentCatalog(self, name: str) -> None:  # noqa: N802  Spark's name
        assert name == "spark_catalog"

    def setCurrentDatabase(self, name: str) -> None:  # noqa: N802  Spark's name
        assert name == "default"

    def createDataFrame(self, table: pa.Table) -> Delta:  # noqa: N802  Spark's name
        self._view = table.to_pylist()
        return self

    def createOrReplaceTempView(self, name: str) -> None:  # noqa: N802  Spark's name
        assert name == "kmr_changes"

    def transaction(self) -> tuple[str | None, str | None]:
        """What the next MERGE is named by."""
        names = ("txnAppId", "txnVersion")
        application, version = (
            self._settings.get(f"spark.databricks.delta.write.{name}") for name in names
        )
        return application, version

    def sql(self, statement: str) -> None:
        self.statements.append(statement)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        application, version = self.transaction()
        if application is not None and version is not None:
            if self.versions.get(application, -1) >= int(version):
                return
            self.versions[application] = int(version)
        keys = [row["id"] for row in self._view]
        assert len(set(keys)) == len(keys), "MERGE refuses a key twice"
        if "NOT MATCHED BY SOURCE" in statement:
            self.rows = {key: row for key, row in self.rows.items() if key in keys}
        for row in self._view:
            if row.pop("kmr deleted"):
                self.rows.pop(row["id"], None)
            else:
                self.rows[row["id"]] = self.rows.get(row["id"], {}) | row


def merged(
    delta: Delta,
    schema: pa.Schema = SCHEMA,
    key: tuple[str, ...] = ("id",),
    provider: str = "delta",
) -> MergedTable:
    nullable = pa.schema([each.with_nullable(nullable=True) for each in schema])
    session: Any = delta
    table = CatalogTable("`t`", provider, None, (), schema)
    columns = DestinationColumns("table t", nullable, lambda: nullable, stored_type)
    return MergedTable(session, Changes("SparkWriter", key), table, columns)


def part_of(rows: Rows, generations: Mapping[TopicPartition, int] | None = None) -> RangeRows:
    (part,) = plan_ranges([rows], "g", generations or {})
    return part


def write(table: MergedTable, rows: Rows) -> dict[int, str]:
    return table.write(part_of(rows), rows.table).refused if len(rows) else {}


@given(
    operations=st.lists(OPERATIONS, min_size=20, max_size=40),
    partitions=st.integers(1, 3),
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    again=st.sets(st.integers(0, 30)),
    late=st.sets(st.integers(0, 30)),
)
def test_a_table_is_that_of_its_source_whatever_is_repeated_or_late(
    operations: list[Any], partitions: int, cuts: list[int], again: set[int], late: set[int]
) -> None:
    """A killed worker reads again from an earlier offset, and cuts the records elsewhere."""
    history, delta = History.of(operations, partitions), Delta()
    for partition, topic in enumerate(history.topic):
        at = written = 0
        before: list[Rows] = []
        while at < len(topic):
            size = cuts[written % len(cuts)]
            begin = max(0, at - 3) if written in again else at
            rows = rows_of(topic[begin : at + size], begin, partition)
            write(merged(delta), rows)
            if written in late and before:
                write(merged(delta), before[-1])
            before.append(rows)
            at += size
            written += 1
    assert {key: row["name"] for key, row in delta.rows.items()} == history.table


def test_the_statement_names_every_column_and_key_in_backticks() -> None:
    statement = merge_statement("`db`.`t`", ["a", "b", "c d", "x`y"], ["a", "b"], truncates=False)
    assert statement == (
        "MERGE INTO `db`.`t` AS t USING kmr_changes AS s ON t.`a` = s.`a` AND t.`b` = s.`b` "
        "WHEN MATCHED AND s.`kmr deleted` THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET t.`c d` = s.`c d`, t.`x``y` = s.`x``y` "
        "WHEN NOT MATCHED AND NOT s.`kmr deleted` THEN INSERT (`a`, `b`, `c d`, `x``y`) "
        "VALUES (s.`a`, s.`b`, s.`c d`, s.`x``y`)"
    )


def test_a_table_of_keys_alone_has_nothing_to_update() -> None:
    statement = merge_statement("t", ["a"], ["a"], truncates=True)
    assert "UPDATE" not in statement
    assert statement.endswith("WHEN NOT MATCHED BY SOURCE THEN DELETE")


def test_a_table_is_made_with_keys_that_are_never_null() -> None:
    pytest.importorskip("pyspark")
    schema = pa.schema(
        [*SCHEMA, ("at", pa.timestamp("us", "UTC")), ("tags", pa.list_(pa.uint16()))]
    )
    assert create_statement("shop.t", schema, ["name"]) == (
        "CREATE TABLE IF NOT EXISTS shop.t (`id` bigint NOT NULL, `name` string, `note` string, "
        "`at` timestamp, `tags` array<int>) USING delta PARTITIONED BY (`name`)"
    )


def test_the_transaction_has_the_last_offset_and_the_generation_of_the_partition() -> None:
    delta = Delta()
    history = History.of([("put", 1, "a"), ("put", 2, "b")], 1)
    rows = rows_of(history.topic[0], 40)
    table = merged(delta)
    table.write(part_of(rows), rows.table)
    assert delta.transaction() == ("kmr:g:t:0", "41")
    table.write(part_of(rows, {TopicPartition("t", 0): 7}), rows.table)
    assert delta.transaction() == ("kmr:g:t:0@7", "41")
    several = Rows(rows.table, (Range("t", 0, 0, 1), Range("t", 1, 0, 1)), None)
    table.write(part_of(several), rows.table)
    assert delta.transaction() == (None, None)


def test_another_format_is_merged_without_a_transaction() -> None:
    delta = Delta()
    write(merged(delta, provider="iceberg"), rows_of(History.of([("put", 1, "a")], 1).topic[0], 0))
    assert delta.transaction() == (None, None)
    assert list(delta.rows) == [1]


def test_columns_that_the_changes_lack_keep_their_values() -> None:
    delta = Delta()
    delta.rows = {1: {"id": 1, "name": "a", "tier": "gold"}}
    schema = pa.schema([*SCHEMA, ("tier", pa.string())])
    write(merged(delta, schema), rows_of(History.of([("put", 1, "b")], 1).topic[0], 0))
    assert delta.rows[1] == {"id": 1, "name": "b", "note": None, "tier": "gold"}


def test_a_change_that_does_not_fit_is_refused_by_its_number_and_the_others_are_merged() -> None:
    delta = Delta()
    schema = SCHEMA.set(1, pa.field("name", pa.int8(), nullable=False))
    offsets = np.arange(5)
    table = pa.table(
        {
            "op": ["c", "c", "c", "d", "x"],
            "id": [1, 2, 3, 4, 5],
            "name": pa.array([1, 1000, None, None, 1]),
        }
    )
    refused = write(merged(delta, schema), Rows(table, (Range("t", 0, 0, 4),), offsets))
    assert sorted(refused) == [1, 2, 4]
    assert "1000" in refused[1]
    assert refused[2] == "column name: null, and the table's column cannot be"
    assert "no operation" in refused[4]
    assert list(delta.rows) == [1]


def test_a_merge_that_another_write_overtook_is_tried_again() -> None:
    delta = Delta()
    delta.failure = RuntimeError(
        "[DELTA_CONCURRENT_APPEND] Files were added by a concurrent update"
    )
    rows = rows_of(History.of([("put", 1, "a")], 1).topic[0], 0)
    with pytest.raises(Retry, match="another write came first"):
        write(merged(delta), rows)
    write(merged(delta), rows)
    assert list(delta.rows) == [1]
    delta.failure = RuntimeError("no space left")
    with pytest.raises(RuntimeError, match="no space"):
        write(merged(delta), rows_of(History.of([("put", 1, "b")], 1).topic[0], 1))


def test_changes_with_a_column_that_the_table_lacks_are_refused_by_its_name() -> None:
    rows = rows_of(History.of([("put", 1, "a")], 1).topic[0], 0)
    refused = write(merged(Delta(), pa.schema([SCHEMA.field(0), SCHEMA.field(1)])), _noted(rows))
    assert "table t has no column note; its columns are id, name" in refused[0]


def _noted(rows: Rows) -> Rows:
    table = rows.table.set_column(
        rows.table.column_names.index("note"), "note", pa.array(["x"] * len(rows))
    )
    return Rows(table, rows.ranges, rows.offsets)


class Planned:
    """A session that explains a MERGE with a text."""

    def __init__(self, plan: str) -> None:
        self._plan = plan

    def sql(self, statement: str) -> Planned:
        assert statement.startswith("EXPLAIN MERGE INTO `t` AS t")
        return self

    def collect(self) -> list[tuple[str]]:
        return [(self._plan,)]


def test_a_table_that_spark_cannot_merge_into_is_refused_with_what_it_needs() -> None:
    pytest.importorskip("pyspark")
    session: Any = Planned("Error occurred during query planning: ...")
    with pytest.raises(StrategyError, match=r"table t is of parquet; .*DeltaSparkSessionExtension"):
        require_merge(session, CatalogTable("`t`", "parquet", None, (), SCHEMA), "table t")
    session = Planned("== Physical Plan ==\nExecute MergeIntoCommand")
    require_merge(session, CatalogTable("`t`", "delta", None, (), SCHEMA), "table t")
