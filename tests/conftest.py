"""What every test shares."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def anyio_backend() -> str:
    """The engine builds on aiokafka, so asyncio is the only backend."""
    return "asyncio"


@pytest.fixture(scope="session")
def clickhouse_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The embedded ClickHouse, in a process of its own: one process can open one data directory."""
    data = tmp_path_factory.mktemp("clickhouse")
    kmr = Path(sys.executable).with_name("kmr")
    with subprocess.Popen(
        [kmr, "clickhouse", "serve", "--data", data, "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        try:
            ready = re.search(r"answers on (http://[^,]+),", server.stdout.readline())
            assert ready is not None, "the embedded ClickHouse did not start"
            yield ready[1]
        finally:
            server.terminate()
            assert server.wait(30) == 0
