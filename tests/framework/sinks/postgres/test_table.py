"""Names of tables, CREATE TABLE, and which columns are written. Reading is checked in test_writer.py."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kmr.errors import StrategyError
from kmr.sinks.choosing import Choice, choose
from kmr.sinks.postgres.table import PostgresTable, TableName, create_table
from kmr.sinks.postgres.types import PostgresColumn

HITS = PostgresTable(
    TableName.of("hits"),
    (
        PostgresColumn("id", "bigint", "int8", nullable=False, has_default=True),
        PostgresColumn("url", "text", "text", nullable=False),
        PostgresColumn("n", "integer", "int4"),
    ),
)


def test_names_are_quoted() -> None:
    assert str(TableName.of('web.hits "new"')) == '"web"."hits ""new"""'
    assert str(TableName.of("web.hits").beside("kmr_ranges")) == '"web"."kmr_ranges"'


def test_a_table_is_made_of_a_schema() -> None:
    schema = pa.table({"s": [""]}).schema.insert(0, pa.field("n", pa.int64(), nullable=False))
    assert create_table(TableName.of("hits"), schema) == (
        'CREATE TABLE IF NOT EXISTS "hits" ("n" bigint NOT NULL, "s" text)'
    )
    with pytest.raises(StrategyError, match="have no columns"):
        create_table(TableName.of("hits"), pa.schema([]))
    with pytest.raises(StrategyError, match="column d: PostgreSQL has no type"):
        create_table(
            TableName.of("hits"),
            pa.schema([pa.field("d", pa.sparse_union([pa.field("a", pa.int8())]))]),
        )


def test_columns_are_matched_by_name() -> None:
    def chosen(*names: str, only: list[str] | None = None) -> list[str]:
        return [column.name for column in _choice(*names, only=only).columns]

    assert chosen("n", "url", "more") == ["n", "url"]
    assert chosen("n", "url", only=["url"]) == ["url"]
    assert chosen("n") == ["n", "url"], "url is needed"
    assert _choice("n", "more").left_out == ["more"]
    assert "have no column n" in _choice("url", only=["url", "n"]).problems[None]
    assert "none of its columns" in _choice("more").problems[None]


def _choice(*names: str, only: list[str] | None = None) -> Choice[PostgresColumn]:
    return choose("hits", HITS.columns, names, only, "ignore")
