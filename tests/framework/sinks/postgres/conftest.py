"""Writers to PostgreSQL are closed when their test has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.framework.sinks.postgres.writing import WRITERS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def closed_at_the_end() -> AsyncIterator[None]:
    yield
    while WRITERS:
        await WRITERS.pop().close()
