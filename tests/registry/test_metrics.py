"""The registry's metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

if TYPE_CHECKING:
    from .conftest import Rest, Served


async def test_requests_errors_and_schemas_are_counted(served: Served, rest: Rest) -> None:
    def sample(name: str, **labels: str) -> float | None:
        return metrics.get_sample_value(f"kmr_registry_{name}", labels)

    metrics = CollectorRegistry()
    metrics.register(served.registry.metrics)

    await rest.register("a", '"int"')
    await rest.register("b", '"int"')
    await rest.register("b", '"long"')
    assert await rest.refused("GET", "/subjects/c/versions") == (404, 40401)
    async with rest.session.request("NONSENSE", "/subjects"):
        pass
    assert sample("requests_total", method="POST", status="200") == 3
    assert sample("requests_total", method="GET", status="404") == 1
    assert sample("requests_total", method="other", status="405") == 1
    assert (sample("schemas"), sample("subjects")) == (2, 2)
