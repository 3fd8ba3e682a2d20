"""The bundled broker beside Apache Kafka: both are asked the same, and what differs is explained or fails."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from demo.processes import Children
from interop.answers.asking import Asking
from interop.answers.cases import cases
from interop.answers.comparing import compared
from interop.answers.edits import EDITS, KEYS, RESOURCES
from interop.answers.transactions import DEVIATIONS, Transactions, differing
from interop.answers.versions import Offered, missing_entries
from interop.checks import CheckFailed
from kmr.chaos.services import free_port
from tests.broker.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from interop.answers.asking import Answers
    from interop.checks import Checks

__all__ = ["Beside"]

_API_VERSIONS = 18


class Beside:
    """Checks that need both brokers.

    Args:
        bootstrap_servers: Apache Kafka's.
        directory: takes the bundled broker's data; new or empty.
        output: takes its log, and every difference.
    """

    def __init__(self, bootstrap_servers: str, directory: Path, output: Path) -> None:
        self._theirs = bootstrap_servers
        self._directory = directory
        self._output = output

    async def check(self, checks: Checks, subject: str) -> None:
        """Start the bundled broker, and compare."""
        port = free_port()
        async with Children(self._output) as children:
            data = ("--data", str(self._directory), "--port", str(port), "--node-id", "1")
            broker = await children.start("broker", "broker", "serve", *data, "--fsync", "os")
            await children.wait_for_port(broker, port)
            ours = f"127.0.0.1:{port}"
            await checks.run(subject, "versions of APIs", self._versions, ours)
            await checks.run(subject, "topics' settings", self._settings, ours)
            await checks.run(subject, "transactions", self._transactions, ours)

    async def _versions(self, ours: str) -> str:
        our, their = await _offered(ours), await _offered(self._theirs)
        if missing := list(missing_entries(our, their)):
            raise CheckFailed(
                "\n".join(["the catalogue of unsupported features is wrong:", *missing])
            )
        equal = our.apis.items() & their.apis.items()
        return (
            f"of {len(their.apis)} APIs, {len(equal)} in the same versions, {len(our.apis) - len(equal)} in"
            " fewer; the rest is listed as unsupported"
        )

    async def _settings(self, ours: str) -> str:
        result = compared(await _answers(ours), await _answers(self._theirs))
        if result.unexplained or result.unused:
            unused = [f"explains nothing: {each}" for each in result.unused]
            told = self._output / "differences.txt"
            told.write_text("\n".join([*result.unexplained, *unused, ""]))
            raise CheckFailed(
                f"{len(result.unexplained):,} of {result.fields:,} fields differ without a reason,"
                f" {len(unused)} entries explain nothing; all of them: {told}\n"
                + "\n".join([*result.unexplained[:10], *unused])
            )
        differing, reasons = result.explained.total(), {each.reason for each in result.explained}
        return (
            f"{len(list(cases()))} settings, {len(EDITS)} edits, {len(RESOURCES)} resources:"
            f" {result.fields:,} fields; {differing:,} differ, for {len(reasons)} documented reasons"
        )

    async def _transactions(self, ours: str) -> str:
        our, their = await _about_transactions(ours), await _about_transactions(self._theirs)
        if lines := differing(our, their):
            raise CheckFailed("\n".join(lines))
        return f"{len(our)} answers; {len(DEVIATIONS)} with a documented difference"


async def _about_transactions(address: str) -> dict[str, object]:
    async with _connected(address) as client:
        transactions = Transactions(client)
        await transactions.ask()
    return transactions.answers


async def _offered(address: str) -> Offered:
    async with _connected(address) as client:
        software = {"client_software_name": "kmr-interop", "client_software_version": "1"}
        return Offered.of(await client.call(_API_VERSIONS, 4, **software))


async def _answers(address: str) -> Answers:
    async with _connected(address) as client:
        asking = Asking(client)
        wanted = list(cases())
        await asking.create(wanted)
        await asking.alter(wanted)
        await asking.edit(EDITS)
        await asking.choose(KEYS)
        await asking.refuse(RESOURCES)
    return asking.answers


@asynccontextmanager
async def _connected(address: str) -> AsyncIterator[RawClient]:
    client = await RawClient.connect(address)
    try:
        yield client
    finally:
        await client.close()
