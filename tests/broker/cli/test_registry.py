"""Where a registry may be served beside a broker, and what it holds there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiohttp
import pytest

from kmr.broker import Broker, BrokerSettings
from kmr.broker.cli.registry import check_registry, registry_beside
from kmr.errors import KmrError, SettingsError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_that_is_none_is_refused(tmp_path: Path, port: int) -> None:
    with pytest.raises(SettingsError, match=f"--registry-port must be a port, .* not {port}"):
        check_registry(BrokerSettings(data_dir=tmp_path), port)


def test_a_registry_that_other_machines_reach_needs_encryption_and_users(tmp_path: Path) -> None:
    settings = BrokerSettings(data_dir=tmp_path, http_host="0.0.0.0")
    with pytest.raises(KmrError, match="schema registry"):
        check_registry(settings, 8081)
    check_registry(BrokerSettings(data_dir=tmp_path), 8081)


@pytest.mark.anyio
async def test_a_registry_beside_a_broker_keeps_schemas_there(tmp_path: Path) -> None:
    settings = BrokerSettings(data_dir=tmp_path / "broker", port=0)
    async with Broker(settings) as broker, aiohttp.ClientSession() as client:
        for _ in range(2):  # another registry over the same broker knows the schema
            async with registry_beside(broker, 0) as registry:
                body = {"schema": '"string"'}
                url = f"{registry.url}/subjects/s/versions"
                async with client.post(url, json=body) as answer:
                    assert (await answer.json())["id"] == 1
