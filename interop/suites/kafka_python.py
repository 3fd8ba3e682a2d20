"""kafka-python's integration tests, as its source distribution ships them.

Two runs: those for a broker that is there already, whose address the tests take from `KAFKA_URI`, and those
for one that they start themselves, encrypted, with users or with access rules: these get ours in place of
Apache Kafka, from `kafka_python_fixture`. The source distribution lacks three things that its tests import
or look for; they are added to the unpacked copy.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from anyio import to_thread

from demo.processes import Children
from interop.cached import FetchFailed
from interop.sdists import fetch_sdist, locked, unpack
from interop.suites import kafka_python_fixture
from interop.suites.contract import SuiteNotRun
from interop.suites.running import merged, run_pytest
from kmr.spark.jvm import cache_directory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from interop.suites.contract import Outcome

__all__ = ["KafkaPython"]

_TESTS: Final = "test/integration"
_OWN_BROKER: Final = (f"{_TESTS}/test_sasl_integration.py", f"{_TESTS}/test_ssl_integration.py")
_PYTEST: Final = ("-o", "addopts=", "--tb=short", "-p", "no:cacheprovider", "-p", "no:warnings")
"""Their own options are made for a plugin."""

_VERSION: Final = "4.3"
"""The broker version that the client infers from our APIs; a test compares the two."""

_SERVICE: Final = '''\
"""Left out of the source distribution: the handle of a broker that somebody else has started."""


class ExternalService:
    def __init__(self, host, port):
        self.host = host
        self.port = port


class SpawnedService:
    """Starts Apache Kafka, which is not here."""
'''


class KafkaPython:
    """Its admin, consumer, producer, SASL and TLS tests, with the client of the same source distribution."""

    name = "kafka-python"
    # As in the settings that the tests have for their own brokers.
    broker: Sequence[str] = ("--partitions", "4", "--group-min-session-timeout", "1s")

    @property
    def about(self) -> str:
        """With the version that is locked."""
        return f"the integration tests in the source distribution of {locked(self.name)}"

    async def run(self, bootstrap_servers: str, directory: Path) -> Outcome:
        """Both runs."""
        try:
            source = await to_thread.run_sync(_prepare, directory)
        except FetchFailed as error:
            raise SuiteNotRun(str(error)) from error
        there = {"KAFKA_VERSION": _VERSION, "PYTHONPATH": str(source)}
        ignored = [argument for path in _OWN_BROKER for argument in ("--ignore", path)]
        async with Children(directory) as children:
            outside = await run_pytest(
                children,
                self.name,
                [*_PYTEST, _TESTS, *ignored],
                source,
                name="outside",
                environment=there | {"KAFKA_URI": f"kafka://{bootstrap_servers}"},
            )
            started = await run_pytest(
                children,
                self.name,
                [*_PYTEST, "-p", kafka_python_fixture.__name__, *_OWN_BROKER],
                source,
                name="started",
                environment=there,
            )
        return merged([outside, started])


def _prepare(directory: Path) -> Path:
    archive = fetch_sdist(locked(KafkaPython.name), cache_directory(os.environ) / "sdists")
    source = unpack(archive, directory)
    (source / "test" / "__init__.py").touch()
    (source / "test" / "service.py").write_text(_SERVICE)
    (source / "servers" / _VERSION / "kafka-bin").mkdir(parents=True)
    return source
