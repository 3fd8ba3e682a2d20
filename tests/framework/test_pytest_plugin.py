"""The fixtures that the package brings to tests of strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from kmr.broker import Broker
    from kmr.testing import StartBroker


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def test_each_broker_that_is_started_has_a_port_and_a_directory_of_its_own(
    kmr_start_broker: StartBroker, tmp_path: Path
) -> None:
    one, other = await kmr_start_broker(), await kmr_start_broker(default_partitions=4)
    assert one.bootstrap_servers != other.bootstrap_servers
    assert names(tmp_path) == ["broker-1", "broker-2"]


async def test_the_broker_of_a_test_has_an_empty_directory_of_the_test(
    kmr_broker: Broker, tmp_path: Path
) -> None:
    assert kmr_broker.bootstrap_servers
    assert names(tmp_path) == ["broker-1"]
