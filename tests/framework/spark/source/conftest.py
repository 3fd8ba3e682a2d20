"""A blocking client of the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kmr.spark.source.blocking_client import BlockingClient
from kmr.spark.source.source_settings import ClientConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.framework.spark.conftest import Kafka


@pytest.fixture
def client(kafka: Kafka) -> Iterator[BlockingClient]:
    made = BlockingClient(ClientConfig(bootstrap_servers=kafka.servers, fetch_max_wait=0.05))
    yield made
    made.close()
