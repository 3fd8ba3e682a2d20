"""The tables that PostgresWriter needs: what a start makes of them, and what `kmr doctor` says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pytest

from kmr.errors import SinkError, StrategyError
from kmr.sinks import PostgresWriter
from tests.framework.sinks.postgres.writing import OFFSETS, execute, opened, query

if TYPE_CHECKING:
    from chaos.postgres import PostgresServer
    from kmr.reducers.reducer import Context

pytestmark = pytest.mark.usefixtures("closed_at_the_end")


async def test_what_is_missing_is_one_clear_message_without_secrets(
    postgres_server: PostgresServer, postgres_url: str, context: Context
) -> None:
    declared = context.with_sinks(schema_of=lambda _: OFFSETS)
    with pytest.raises(
        StrategyError, match=r'create=True: CREATE TABLE .*"hits" .*"offset" bigint'
    ):
        await opened(postgres_url, declared, create=False)
    with pytest.raises(
        StrategyError, match=r"no PostgreSQL table hits, and the columns .* not declared"
    ):
        await opened(postgres_url, context, create=False)
    execute(
        postgres_url,
        'CREATE TABLE hits ("offset" bigint)',
        "DROP ROLE IF EXISTS guest",
        "CREATE ROLE guest LOGIN PASSWORD 'hunter2'",
        "DO $$ BEGIN EXECUTE format('GRANT USAGE ON SCHEMA %I TO guest', current_schema); END $$",
    )
    guest = postgres_url.replace("postgres@", "guest:hunter2@")
    with pytest.raises(StrategyError, match='GRANT INSERT ON "hits" TO "guest"'):
        await opened(guest, context)
    execute(postgres_url, "GRANT INSERT ON hits TO guest")
    with pytest.raises(
        StrategyError, match=r"owner run: GRANT CREATE .* or CREATE TABLE IF NOT EXISTS"
    ):
        await opened(guest, context)
    await opened(postgres_url, context)
    with pytest.raises(StrategyError, match='GRANT SELECT, INSERT, UPDATE, DELETE ON "kmr_ranges"'):
        await opened(guest, context)
    with pytest.raises(SinkError, match=r"refuses the connection: .*does not exist") as raised:
        await opened(guest.replace("/postgres?", "/nosuch?"), context)
    assert "hunter2" not in str(raised.value)
    with pytest.raises(StrategyError, match="is not valid") as invalid:
        await opened("postgresql://me:hunter2@host:x%/db?a=hunter2", context)
    assert "hunter2" not in str(invalid.value)
    with pytest.raises(SinkError, match=r"did not answer for 0.1 s"):
        await opened("postgresql://127.0.0.1:1/x", context, connect_timeout=0.1)


async def test_doctor_finds_what_is_missing_and_creates_nothing(
    postgres_url: str, context: Context
) -> None:
    writer = PostgresWriter("hits", url=postgres_url, create=OFFSETS)
    texts = " ".join(each.text for each in await writer.examine(context))
    assert '"kmr_ranges" will be created' in texts
    assert "PostgreSQL table hits will be created: CREATE TABLE" in texts
    with pytest.raises(StrategyError, match="There is no PostgreSQL table hits"):
        await PostgresWriter("hits", url=postgres_url).examine(
            context.with_sinks(schema_of=lambda _: OFFSETS)
        )
    assert query(
        postgres_url, "SELECT count(*) FROM pg_tables WHERE schemaname = current_schema()"
    ) == [0]
    await opened(postgres_url, context)
    found = await writer.examine(context.with_sinks(schema_of=lambda _: OFFSETS))
    assert [each.text for each in found][1:] == [
        "its clock agrees with ours",
        "PostgreSQL table hits exists, and may be written to",
        "the 1 declared columns fit",
        '"kmr_ranges" exists, and may be written to',
    ]
    wider = pa.schema([*OFFSETS, pa.field("more", pa.int64())])
    found = await writer.examine(context.with_sinks(schema_of=lambda _: wider))
    (problem,) = [each.text for each in found if each.level == "problem"]
    assert "hits has no column more to write to" in problem


async def test_a_schema_that_is_missing_is_named_with_its_statement_by_worker_and_doctor(
    postgres_url: str, context: Context
) -> None:
    writer = PostgresWriter("no one.hits", url=postgres_url, create=OFFSETS)
    for look in (writer.open, writer.examine):
        with pytest.raises(StrategyError, match='no schema no one; run: CREATE SCHEMA "no one"'):
            await look(context)


async def test_doctor_finds_privileges_that_are_missing(
    postgres_url: str, context: Context
) -> None:
    schema = query(postgres_url, "SELECT current_schema()")[0]
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for statement in (
            "DROP ROLE IF EXISTS visitor",
            "CREATE ROLE visitor LOGIN PASSWORD 'hunter2'",
            f'GRANT USAGE ON SCHEMA "{schema}" TO visitor',
        ):
            connection.execute(statement.encode())
    visitor = postgres_url.replace("postgres@", "visitor:hunter2@")
    try:
        with pytest.raises(StrategyError, match=f"visitor must not CREATE in the schema {schema}"):
            await PostgresWriter("hits", url=visitor, create=OFFSETS).examine(context)
        await opened(postgres_url, context)
        with pytest.raises(StrategyError, match="visitor must not INSERT"):
            await PostgresWriter("hits", url=visitor).examine(context)
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(b"DROP OWNED BY visitor; DROP ROLE visitor")
