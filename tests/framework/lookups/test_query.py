"""The result of a query as a table: of PostgreSQL and of ClickHouse, refreshed, and with every mistake."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import anyio
import clickhouse_connect
import msgspec
import psycopg
import pyarrow as pa
import pytest

from kmr import Lookup
from kmr.errors import KmrError, SinkError, StrategyError
from kmr.lookups.columns_table import ColumnsTable
from kmr.lookups.tables import Tables

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kmr.lookups.follower import Follower
    from kmr.lookups.query import QueryLookup


class Product(msgspec.Struct):
    id: int
    name: str
    price: Decimal | None = None


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for each in statements:
            connection.execute(each.encode())


PRODUCTS = (
    "CREATE TABLE products (id int, name text, price numeric(8, 2), since timestamptz, tags text[])",
    "INSERT INTO products VALUES (1, 'pen', 1.50, '2024-01-02 03:04:05+00', '{a,b}')",
    "INSERT INTO products VALUES (2, 'ink', NULL, NULL, NULL)",
)


@pytest.fixture
def products(postgres_url: str) -> str:
    execute(postgres_url, *PRODUCTS)
    return postgres_url


def lookup(url: str, sql: str = "SELECT * FROM products", **options: Any) -> QueryLookup:
    return Lookup.query(sql, **{"key": "id", "every": 0.05, "url": url, **options})


async def loaded(source: QueryLookup, *, as_columns: bool = False) -> Any:
    tables = Tables({"products": source}, None, as_columns=as_columns)
    async with tables.following():
        return tables()["products"]


async def test_a_table_of_postgres_has_objects_of_the_row_class(products: str) -> None:
    table = await loaded(lookup(products, row=Product))
    assert table.get(1) == Product(1, "pen", Decimal("1.50"))
    assert table.get(2) == Product(2, "ink", None)
    assert (len(table), table.get(3)) == (2, None)


async def test_a_table_of_postgres_has_the_columns_of_the_query(products: str) -> None:
    table = await loaded(lookup(products, key=["id", "name"]), as_columns=True)
    orders = pa.RecordBatch.from_pydict({"product": [2, 1, 1], "name": ["ink", "pen", "ink"]})
    rows = table.join(orders, on=["product", "name"], columns=["price", "since", "tags"])
    assert rows.to_pylist()[1:] == [
        {
            "product": 1,
            "name": "pen",
            "price": Decimal("1.50"),
            "since": dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
            "tags": ["a", "b"],
        },
        {"product": 1, "name": "ink", "price": None, "since": None, "tags": None},
    ]


class Part(msgspec.Struct):
    u: UUID
    j: str


async def test_uuids_are_keys_of_both_kinds_of_map_and_json_is_its_text(postgres_url: str) -> None:
    sql = (
        "SELECT 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid AS u, '{\"a\": 1}'::jsonb AS j, "
        "'[]'::json AS k, 1.5 AS n, NULL AS x -- of the first"
    )
    text = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    table = await loaded(lookup(postgres_url, sql, key="u"), as_columns=True)
    expected = {"u": text, "j": '{"a": 1}', "k": "[]", "n": Decimal("1.5"), "x": None}
    assert table.get(text) == expected
    typed = await loaded(lookup(postgres_url, sql, key="u", row=Part))
    assert typed.get(UUID(text)) == Part(UUID(text), '{"a": 1}')


async def test_an_empty_result_is_a_table_that_can_be_joined(products: str) -> None:
    source = lookup(products, "SELECT id, name FROM products WHERE id > 9")
    table = await loaded(source, as_columns=True)
    batch = pa.RecordBatch.from_pydict({"product": [1]})
    assert table.join(batch, on="product").to_pylist() == [{"product": 1, "name": None}]


@pytest.mark.parametrize("as_columns", [False, True])
async def test_a_table_of_clickhouse_has_dates_and_times_as_such(
    clickhouse_url: str, *, as_columns: bool
) -> None:
    host, port = clickhouse_url.removeprefix("http://").split(":")
    with clickhouse_connect.get_client(host=host, port=int(port)) as client:
        client.command("DROP TABLE IF EXISTS looked_up")
        client.command(
            "CREATE TABLE looked_up (id UInt64, name LowCardinality(String), day Date, at DateTime('UTC'), "
            "ms Nullable(DateTime64(3, 'UTC')), price Decimal(8, 2)) ENGINE = MergeTree ORDER BY id"
        )
        client.command(
            "INSERT INTO looked_up VALUES (7, 'pen', '2024-01-02', '2024-01-02 03:04:05', NULL, 1.5)"
        )
    table = await loaded(lookup(clickhouse_url, "SELECT * FROM looked_up"), as_columns=as_columns)
    assert table.get(7) == {
        "id": 7,
        "name": "pen",
        "day": dt.date(2024, 1, 2),
        "at": dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
        "ms": None,
        "price": Decimal("1.50"),
    }


@pytest.fixture
async def following(products: str) -> AsyncIterator[tuple[Tables, Follower]]:
    tables = Tables({"products": lookup(products)}, None, as_columns=False)
    async with tables.following():
        yield tables, tables.followers[0]


def name_of(tables: Tables, key: int) -> Any:
    return (tables()["products"].get(key) or {}).get("name")


async def test_a_table_is_refreshed_and_a_failure_keeps_it_and_makes_it_stale(
    following: tuple[Tables, Follower], products: str, caplog: pytest.LogCaptureFixture
) -> None:
    tables, follower = following
    assert name_of(tables, 1) == "pen"
    execute(products, "UPDATE products SET name = 'quill' WHERE id = 1")
    with anyio.fail_after(60):
        while name_of(tables, 1) != "quill":  # noqa: ASYNC110  the table is polled, as the database is
            await anyio.sleep(0.02)
    assert follower.stale < 60
    execute(products, "ALTER TABLE products RENAME TO elsewhere")
    with anyio.fail_after(60):
        while follower.status().problem is None:  # noqa: ASYNC110
            await anyio.sleep(0.02)
    before = follower.stale
    await anyio.sleep(0.3)
    assert follower.stale >= before + 0.3
    assert 'relation "products" does not exist' in (follower.status().problem or "")
    assert name_of(tables, 1) == "quill"
    execute(products, "ALTER TABLE elsewhere RENAME TO products")
    with anyio.fail_after(60):
        while follower.status().problem is not None:  # noqa: ASYNC110
            await anyio.sleep(0.02)


@pytest.mark.parametrize(
    ("sql", "options", "reason"),
    [
        (
            "SELECT name FROM products",
            {},
            "the query has no column id, which key= names; it has name",
        ),
        ("SELECT 1 AS id FROM products", {}, "2 rows have the key 1; group them"),
        ("SELECT ARRAY[id] AS id FROM products", {}, "key= names id, which is list<"),
        ("SELECT id FROM nothing", {}, 'relation "nothing" does not exist'),
        ("SELECT id FROM products", {"row": Product}, "no column name, a field of Product"),
        (
            "SELECT 1 AS id, NULL AS name, NULL AS price",
            {"row": Product},
            r"a row is no Product: Expected `str`, got `null` - at `\$\[0\].name`",
        ),
        ("SELECT * FROM products", {"max_bytes": 10}, "more than max_bytes=10; raise it"),
        (
            "SELECT * FROM products",
            {"max_bytes": 500},
            r"2 rows need \d+ bytes, more than max_bytes",
        ),
        ("DELETE FROM products", {}, "syntax error"),
        ("SELECT 1 AS id, interval '1 mon' AS i", {}, "column i is an interval, whose months"),
    ],
)
async def test_a_query_that_makes_no_table_is_one_message(
    products: str, sql: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(KmrError, match=reason):
        await loaded(lookup(products, sql, **options))


async def test_rows_whose_key_is_null_are_left_out(products: str) -> None:
    table = await loaded(lookup(products, "SELECT nullif(id, 1) AS id FROM products"))
    assert (len(table), 2 in table) == (1, True)


async def test_a_database_that_refuses_is_named_without_its_password(postgres_url: str) -> None:
    host = postgres_url.partition("//")[2].partition("@")[2]
    url = "postgresql://me:secret@" + host.replace("?", "-missing?")
    with pytest.raises(SinkError) as raised:
        await loaded(lookup(url))
    assert "PostgreSQL at " in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"every": "5 parsecs"}, "'5 parsecs' is not a number with one of the units"),
        ({"every": 0}, "every must be above 0, not 0"),
        ({"url": "mysql://localhost"}, "not one of the scheme 'mysql'"),
        (
            {"key": "ID", "row": Product},
            "has no field ID, which key= names; it has id, name, price",
        ),
        ({"missing": "fail"}, "missing must be"),
        ({"sql": " ; "}, "the query is empty"),
    ],
)
def test_wrong_arguments_are_explained(options: dict[str, Any], reason: str) -> None:
    given = {"sql": "SELECT 1 AS id", "key": "id", "every": "5m", **options}
    with pytest.raises(StrategyError, match=reason):
        Lookup.query(given.pop("sql"), **given)


async def test_the_environment_names_one_database(
    monkeypatch: pytest.MonkeyPatch, products: str
) -> None:
    source = Lookup.query("SELECT id FROM products;", key="id", every="5m")
    with pytest.raises(StrategyError, match="no database is named; set url=, or one of"):
        Tables({"products": source}, None, as_columns=True)
    monkeypatch.setenv("KMR_POSTGRES_URL", products)
    table = await loaded(source, as_columns=True)
    assert isinstance(table, ColumnsTable)
    assert len(table) == 2
    monkeypatch.setenv("KMR_CLICKHOUSE_URL", "http://localhost:8123")
    with pytest.raises(StrategyError, match="no database is named"):
        Tables({"products": source}, None, as_columns=True)
