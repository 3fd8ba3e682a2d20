"""Upserts and deletes by key, in the transaction of their range."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from kmr.errors import StrategyError
from kmr.record import Range, Rows
from kmr.sinks import PostgresWriter

from .writing import execute, flush, flush_killed, opened, query, refused

if TYPE_CHECKING:
    from kmr.reducers.reducer import Context

pytestmark = pytest.mark.usefixtures("closed_at_the_end")

BY_ID: dict[str, Any] = {"changes": True, "key": ["id"], "create": False}
NOW = "SELECT id, name FROM hits ORDER BY id"


def changes(first: int, *rows: tuple[str, int | None, str | None]) -> Rows:
    ops, ids, names = zip(*rows, strict=True)
    table = pa.table({"id": pa.array(ids, pa.int64()), "name": names, "op": ops})
    last = first + len(rows) - 1
    return Rows(table, (Range("t", 0, first, last),), np.arange(first, last + 1))


def create(url: str, *more: str) -> None:
    columns = ", ".join(("id bigint PRIMARY KEY", "name text NOT NULL", *more))
    execute(url, f"CREATE TABLE hits ({columns})")


async def test_a_flush_is_one_delete_and_one_upsert(
    postgres_url: str, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(postgres_url, "more int DEFAULT 7")
    writer = await opened(postgres_url, context, **BY_ID)
    await flush(writer, changes(0, ("c", 1, "a"), ("c", 2, "b"), ("c", 3, "c")))
    execute(postgres_url, "UPDATE hits SET more = 8 WHERE id = 1")
    statements: list[str] = []
    run = psycopg.AsyncConnection.execute

    async def execute_noted(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        statements.append(query.decode() if isinstance(query, bytes) else str(query))
        return await run(self, query, *arguments, **options)

    monkeypatch.setattr(psycopg.AsyncConnection, "execute", execute_noted)
    await flush(writer, changes(3, ("u", 1, "A"), ("d", 2, None), ("d", 3, None), ("c", 4, "d")))
    assert query(postgres_url, "SELECT id, name, more FROM hits ORDER BY id") == [
        (1, "A", 8),
        (4, "d", 7),
    ]
    assert len([each for each in statements if each.startswith('DELETE FROM "hits"')]) == 1
    assert len([each for each in statements if "ON CONFLICT (" in each]) == 1


async def test_what_a_constraint_refuses_is_refused_alone(
    postgres_url: str, context: Context
) -> None:
    create(postgres_url, "CHECK (name <> 'bad')")
    execute(postgres_url, "CREATE TABLE orders (customer bigint REFERENCES hits (id))")
    writer = await opened(postgres_url, context, **BY_ID)
    await flush(writer, changes(0, ("c", 1, "a"), ("c", 2, "b"), ("c", 3, "c")))
    execute(postgres_url, "INSERT INTO orders VALUES (1)")
    rows = (
        ("d", 1, None),
        ("d", 2, None),
        ("u", 3, "bad"),
        ("c", 4, None),
        ("c", None, "x"),
        ("c", 5, "e"),
    )
    found = dict(refused(await flush(writer, changes(3, *rows))))
    assert query(postgres_url, NOW) == [(1, "a"), (3, "c"), (5, "e")]
    assert sorted(found) == [3, 5, 6, 7]
    assert "foreign key" in found[3]
    assert "check constraint" in found[5]
    assert "column name (text) cannot be null" in found[6]
    assert "null, though it is of the key" in found[7]


CASELESS = "CREATE COLLATION caseless (provider=icu, locale='und-u-ks-level2', deterministic=false)"


@pytest.mark.parametrize(
    ("kind", "one", "same"),
    [
        ("uuid", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("bigint", "1", "01"),
        ("numeric(4, 2)", "1.5", "1.50"),
        ("char(3)", "a", "a  "),
        ("timestamptz", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00+01:00"),
        ("inet", "10.0.0.1", "10.0.0.1/32"),
        ("jsonb", '{"a": 1, "b": 2}', '{"b": 2, "a": 1}'),
        ("double precision", 0.0, -0.0),
        ("text COLLATE caseless", "Ann", "ANN"),
    ],
)
async def test_the_last_change_wins_of_keys_that_only_the_table_holds_equal(
    postgres_url: str, context: Context, kind: str, one: Any, same: Any
) -> None:
    if "caseless" in kind:
        try:
            execute(postgres_url, CASELESS)
        except psycopg.errors.FeatureNotSupported:
            pytest.skip("this server was built without ICU")
    execute(postgres_url, f'CREATE TABLE hits ("i%d" {kind} PRIMARY KEY, name text)')
    writer = await opened(postgres_url, context, **BY_ID | {"key": ["i%d"]})
    histories: list[list[tuple[str, Any, str | None]]] = [
        [("c", one, "a"), ("d", same, None)],
        [("c", one, "a"), ("d", same, None), ("c", one, "b")],
        [("c", one, "a"), ("u", same, "b")],
        [("d", one, None), ("d", same, None)],
        [("u", one, "x\0"), ("c", one, "a"), ("d", same, None), ("u", same, "c"), ("d", one, None)],
    ]
    names = []
    for number, history in enumerate(histories):
        ops, ids, texts = zip(*history, strict=True)
        table = pa.table({"i%d": ids, "name": pa.array(texts, pa.string()), "op": ops})
        first = number * 10
        ranges = (Range("t", 0, first, first + len(history) - 1),)
        await flush(writer, Rows(table, ranges, np.arange(first, first + len(history))))
        names.append([name for (name,) in query(postgres_url, "SELECT name FROM hits")])
    assert names == [[], ["b"], ["b"], [], []]


async def test_a_truncate_empties_the_table_before_what_follows(
    postgres_url: str, context: Context
) -> None:
    create(postgres_url)
    writer = await opened(postgres_url, context, **BY_ID)
    await flush(writer, changes(0, ("c", 1, "a"), ("c", 2, "b")))
    await flush(writer, changes(2, ("c", 3, "c"), ("t", None, None), ("c", 2, "B")))
    assert query(postgres_url, NOW) == [(2, "B")]


async def test_a_table_that_is_made_has_the_key_as_its_primary_key(
    postgres_url: str, context: Context
) -> None:
    fields: Any = {"b": pa.string(), "a": pa.int64(), "n": pa.int32(), "op": pa.string()}
    schema = pa.schema(fields)
    options = {"changes": True, "key": ["a", "b"], "create": schema}
    writer = await opened(postgres_url, context, **options)
    table = pa.table({"a": [1, 1, 1], "b": ["x", "y", "x"], "n": [1, 2, 3], "op": ["c", "c", "u"]})
    await flush(writer, Rows(table, (Range("t", 0, 0, 2),), np.arange(3)))
    gone = pa.table({"a": [1], "b": ["y"], "n": pa.nulls(1, pa.int64()), "op": ["d"]})
    await flush(writer, Rows(gone, (Range("t", 0, 3, 3),), np.array([3])))
    assert query(postgres_url, "SELECT a, b, n FROM hits") == [(1, "x", 3)]


async def test_a_table_without_a_unique_index_on_the_key_is_refused_at_start(
    postgres_url: str, context: Context
) -> None:
    execute(
        postgres_url,
        "CREATE TABLE hits (id bigint, name text, UNIQUE (id, name))",
        "CREATE UNIQUE INDEX ON hits (id) WHERE id > 5",
    )
    with pytest.raises(StrategyError, match=r'ALTER TABLE "hits" ADD PRIMARY KEY \("id"\)'):
        await opened(postgres_url, context, **BY_ID)


async def test_changes_without_an_order_are_refused(postgres_url: str, context: Context) -> None:
    create(postgres_url)
    with pytest.raises(StrategyError, match="delivery='exactly-once'"):
        PostgresWriter("hits", changes=True, key=["id"], delivery="at-least-once")
    writer = await opened(postgres_url, context, **BY_ID)
    with pytest.raises(StrategyError, match="On Spark use ClickHouseWriter"):
        await flush(writer, changes(0, ("c", 1, "a")), announced=False)
    assert query(postgres_url, NOW) == []


async def test_a_kill_at_any_step_applies_each_change_once(
    postgres_url: str, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies after each exchange with the server in turn; the next owner writes again."""
    create(postgres_url, "n int DEFAULT 0")
    execute(
        postgres_url,
        "CREATE FUNCTION counts() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN NEW.n := OLD.n + 1; RETURN NEW; END'",
        "CREATE TRIGGER counted BEFORE UPDATE ON hits FOR EACH ROW EXECUTE FUNCTION counts()",
        "INSERT INTO hits VALUES (1, '')",
    )
    victim, heir = [await opened(postgres_url, context, **BY_ID) for _ in range(2)]
    for fatal in count():
        rows = changes(fatal * 10, ("c", 100 + fatal, "x"), ("u", 1, "a"), ("d", 99 + fatal, None))
        killed = await flush_killed(victim, rows, fatal, monkeypatch)
        await flush(heir, rows, replayed=True)
        if not killed:
            break
    assert fatal > 20, "the writer has fewer exchanges than this test thinks"
    found = query(postgres_url, "SELECT id, n FROM hits ORDER BY id")
    assert found == [(1, fatal + 1), (100 + fatal, 0)]
