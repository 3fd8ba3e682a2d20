"""An error sink accepts every failed record, with any bytes, headers, time and reason."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from kmr.columns.fitted import TargetColumn, fit_letters
from kmr.columns.fitting import fit
from kmr.dead_letters.letters import letter_headers
from kmr.delivery.failures import FAILED_SCHEMA
from kmr.record import Range, Rows
from kmr.reducers.reducer import ERROR_STAGE, Context, SinkContext
from kmr.sinks import ClickHouseWriter, ParquetWriter, PostgresWriter, StreamWriter

from ..flushes import Flushed, outcome

if TYPE_CHECKING:
    from pathlib import Path

    from clickhouse_connect.driver.client import Client

    from kmr.reducers.sink import Sink

RECORDS: list[dict[str, Any]] = [
    {"value": b"plain", "reason": "ValueError: plain"},
    {"value": b"\x00\xff", "reason": "a\0b \U0001f600", "key": b"\x00"},
    {"value": None, "reason": "x" * 100_000, "timestamp": 1_763_000_000_000_000_000},
    {"value": b"", "reason": "", "timestamp": 2**63 - 1, "traceback": "a\0b"},
    {"value": b"v", "reason": "early", "timestamp": -(2**63) + 1, "exception": "a\0b"},
    {
        "value": b"spring",
        "reason": "r",
        "headers": [
            {"key": "attempts", "value": (2).to_bytes(4, "big")},
            {"key": "nul\0", "value": None},
            {"key": "kmr.offset", "value": b"\xff"},
            {"key": "kmr.attempt", "value": b"x"},
            {"key": "kmr.history", "value": b"{"},
        ],
    },
]


def letters() -> Rows:
    rows = [
        {"topic": "t", "partition": 0, "offset": n, "stage": "map", "attempt": 1, "timestamp": 0}
        | record
        for n, record in enumerate(RECORDS)
    ]
    table = pa.Table.from_pylist(rows, schema=FAILED_SCHEMA)
    count = len(rows)
    return Rows(table, (Range("t", 0, 0, count - 1),), table.column("offset").to_numpy())


async def stored(sink: Sink) -> None:
    context = Context(
        "g", ERROR_STAGE, for_sinks=SinkContext(schema_of=lambda _stage: FAILED_SCHEMA)
    )
    await sink.open(context)
    try:
        sink.reset()
        sink.add(letters())
        assert await outcome(sink) == Flushed()
    finally:
        await sink.close()


async def test_postgres_stores_every_failed_record(postgres_url: str) -> None:
    from .postgres.writing import query

    await stored(PostgresWriter("dead", url=postgres_url, create=True))
    found = query(
        postgres_url, 'SELECT value, reason, "timestamp"::text FROM dead ORDER BY "offset"'
    )
    assert [row[0] for row in found] == [record["value"] for record in RECORDS]
    assert found[1][1] == "a\\x00b \U0001f600"
    assert found[3][2].startswith("294247-01-10")
    assert found[4][1].startswith("early (not stored: timestamp '-290308-12-21T19:59:05")
    (headers,) = query(postgres_url, 'SELECT headers FROM dead WHERE "offset" = 5')
    assert headers is None, "a key with a NUL fits no jsonb"


async def test_clickhouse_stores_every_failed_record(clickhouse_url: str, client: Client) -> None:
    client.command("DROP TABLE IF EXISTS dead")
    await stored(ClickHouseWriter("dead", url=clickhouse_url, create=True))
    found = client.query("SELECT offset, reason, timestamp FROM dead ORDER BY offset").result_rows
    assert [row[0] for row in found] == list(range(len(RECORDS)))
    assert found[2][1].endswith("(not stored: timestamp '+57837-03-31T14:13:20.000000Z')")
    client.command("DROP TABLE dead")


async def test_files_store_every_failed_record(tmp_path: Path) -> None:
    await stored(ParquetWriter(tmp_path / "dead"))
    await stored(StreamWriter(tmp_path / "dead.jsonl"))
    lines = [json.loads(line) for line in (tmp_path / "dead.jsonl").read_text().splitlines()]
    assert [line["offset"] for line in lines] == list(range(len(RECORDS)))
    assert lines[3]["timestamp"] == "+294247-01-10T04:00:54.775807Z"


def test_headers_under_our_names_may_be_anything() -> None:
    found = letter_headers(letters().table)
    named = dict(found[5])
    assert named["kmr.replays"] == b"1"
    assert json.loads(named["kmr.history"] or b"")[0]["attempt"] == 1


def test_a_time_that_cannot_be_null_becomes_the_beginning_of_1970() -> None:
    def cast(array: Any) -> Any:
        made = fit(array, pa.timestamp("ns"))
        null = array.is_null().to_numpy(zero_copy_only=False)
        return made._replace(bad=null if made.bad is None else made.bad | null)

    rows = pa.table({"at": pa.array([1, 2**40], pa.timestamp("s")), "reason": ["a", None]})
    targets = [
        TargetColumn("at", "time", cast),
        TargetColumn("reason", "text", lambda a: fit(a, pa.string())),
    ]
    fitted = fit_letters(rows, targets)
    assert not fitted.refused
    assert fitted.table.column("at").cast(pa.int64()).to_pylist() == [10**9, 0]
    assert fitted.table.column("reason").to_pylist() == [
        "a",
        " (not stored: at '+36812-02-20T00:36:16')",
    ]


@pytest.mark.parametrize("text", ["half \ud83d", "whole \U0001f600"])
def test_a_reason_with_half_a_surrogate_pair_is_escaped(text: str) -> None:
    from kmr.errors import reason_of

    assert reason_of(ValueError(text)).encode().decode().startswith("ValueError: ")
