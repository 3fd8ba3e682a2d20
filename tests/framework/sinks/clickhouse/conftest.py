"""Writers that are closed after the test."""

from __future__ import annotations

import copy
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from kmr.sinks.clickhouse.writer import ClickHouseWriter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kmr.reducers.reducer import Context

    from .writing import OpenWriter


@pytest.fixture
async def open_writer(clickhouse_url: str, context: Context) -> AsyncIterator[OpenWriter]:
    """Opens writers, as a stage does, and closes them after the test."""
    async with AsyncExitStack() as stack:

        async def open_writer(table: str, **arguments: Any) -> ClickHouseWriter:
            arguments.setdefault("url", clickhouse_url)
            writer = copy.deepcopy(ClickHouseWriter(table, **arguments))
            stack.push_async_callback(writer.close)
            await writer.open(context)
            return writer

        yield open_writer
