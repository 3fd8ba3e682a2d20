"""The registry's metrics among those of the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kmr.broker import Broker

    from .conftest import Rest


async def test_requests_errors_and_schemas_are_counted(served: Broker, rest: Rest) -> None:
    def sample(name: str, **labels: str) -> float | None:
        return served.metrics.registry.get_sample_value(f"kmr_broker_registry_{name}", labels)

    await rest.register("a", '"int"')
    await rest.register("b", '"int"')
    await rest.register("b", '"long"')
    assert await rest.refused("GET", "/subjects/c/versions") == (404, 40401)
    await rest.session.request("NONSENSE", "/subjects")
    assert sample("requests_total", method="POST", status="200") == 3
    assert sample("requests_total", method="GET", status="404") == 1
    assert sample("requests_total", method="other", status="405") == 1
    assert (sample("schemas"), sample("subjects")) == (2, 2)
