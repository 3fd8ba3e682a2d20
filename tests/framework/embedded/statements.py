"""Statements that several tests send."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.framework.embedded.conftest import Ask

TABLE = (
    "CREATE TABLE t (a UInt32, s String) ENGINE = MergeTree ORDER BY a "
    "SETTINGS non_replicated_deduplication_window = 100"
)
SPINNING = "SELECT count() FROM numbers(1000000000000) WHERE sipHash64(number) = 7"


async def count(ask: Ask) -> int:
    return int((await ask("SELECT count() FROM t")).body)
