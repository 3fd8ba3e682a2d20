"""Our own tests of other people's clients: tests/interop, which drives each client through every feature."""

from __future__ import annotations

from typing import TYPE_CHECKING

from demo.processes import Children
from interop.suites.running import ROOT, run_pytest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from interop.suites.contract import Outcome

__all__ = ["Own"]


class Own:
    """Most of these tests start brokers with settings of their own; none uses the one that is there."""

    name = "own"
    about = "our tests/interop: aiokafka, librdkafka, kafka-python and kcat"
    broker: Sequence[str] = ()

    async def run(self, bootstrap_servers: str, directory: Path) -> Outcome:
        """All of tests/interop."""
        async with Children(directory) as children:
            return await run_pytest(children, self.name, ["tests/interop"], ROOT)
