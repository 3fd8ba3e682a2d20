"""Rows for which a DEFAULT or MATERIALIZED expression raises: each alone, and no other row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .writing import OFFSETS, flush, poisoned_offsets, reasons, rows, written

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from tests.framework.sinks.conftest import CreateTable, Proxy

    from .writing import OpenWriter

RAISES = "`raw` String, `n` Array(UInt32) DEFAULT CAST(raw AS Array(UInt32))"


async def test_every_good_row_among_bad_ones_is_written_by_one_insert(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, proxy: Proxy
) -> None:
    table = create_table(f"{OFFSETS}, {RAISES}, m UInt32 MATERIALIZED n[1] + length(raw)")
    writer = await open_writer(table, url=proxy.url)
    raw = [f"[{n}x" if n % 2 else f"[{n}]" for n in range(200)]
    result = await flush(writer, rows(0, 200, raw=raw))
    assert poisoned_offsets(result) == list(range(1, 200, 2))
    assert written(client, table) == list(range(0, 200, 2))
    assert len(set(proxy.tokens)) == 1, "a part for each good row would be too many"
    assert all("column raw (String) cannot hold '[" in each for each in reasons(result))
    assert not any("not tried alone" in each for each in reasons(result))
