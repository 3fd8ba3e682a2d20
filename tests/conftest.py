"""What every test shares."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The engine builds on aiokafka, so asyncio is the only backend."""
    return "asyncio"
