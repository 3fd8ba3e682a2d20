"""A verifiable producer or consumer as a process, and what it says: one JSON object for each event."""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec

from demo.processes import give_up_after
from interop.checks import CheckFailed
from interop.suites import verifiable_launch
from interop.suites.running import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from demo.processes import Child, Children

__all__ = ["Place", "VerifiableConsumer", "VerifiableProducer", "start_consumer", "start_producer"]

Place = tuple[str, int]
"""Topic and partition."""

_PATIENCE: Final = 120.0  # seconds for anything that is waited for
_POLL: Final = 0.1


class _Process:
    """What both have in common."""

    def __init__(self, child: Child) -> None:
        self._child = child

    @property
    def events(self) -> list[dict[str, Any]]:
        """Everything so far, in order; a line that is being written is left for the next time."""
        lines = self._child.log.read_bytes().splitlines(keepends=True)
        whole = [line for line in lines if line.startswith(b"{") and line.endswith(b"\n")]
        return [msgspec.json.decode(line) for line in whole]

    def named(self, name: str) -> list[dict[str, Any]]:
        """The events of one kind."""
        return [event for event in self.events if event["name"] == name]

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something that its events show. Raises CheckFailed if it ends without, ChildFailed if
        that takes too long."""
        with give_up_after(_PATIENCE, f"{self._child.name}: {what} does not come"):
            while True:
                ended = not self._child.running
                if condition():
                    return
                if ended:
                    raise CheckFailed(f"{self._child.name} ended without {what}:\n{self.said}")
                await anyio.sleep(_POLL)

    async def until_shutdown(self) -> dict[str, Any]:
        """Its last event. Raises CheckFailed if it ends without, or with an error."""
        with give_up_after(_PATIENCE, f"{self._child.name} does not end"):
            await self._child.wait()
        last = self.named("shutdown_complete")
        if await self._child.stop() or not last:
            raise CheckFailed(f"{self._child.name} did not end in good order:\n{self.said}")
        return last[0]

    @property
    def said(self) -> str:
        """The last lines of its output."""
        return self._child.tail()

    def wrote(self, text: str) -> bool:
        """Whether its output contains this text."""
        return text in self._child.log.read_text(errors="replace").lower()


class VerifiableProducer(_Process):
    """Sends numbers as messages."""

    async def offsets(self) -> dict[Place, list[int]]:
        """Wait for its end: the acknowledged offsets of each partition, in the order of the answers.

        Raises CheckFailed if any message was not acknowledged.
        """
        last = await self.until_shutdown()
        errors = self.named("producer_send_error")
        if errors or last["_qlen"]:
            raise CheckFailed(f"not acknowledged: {last['_qlen']} messages, and {errors[:3]}")
        offsets: dict[Place, list[int]] = defaultdict(list)
        for event in self.named("producer_send_success"):
            offsets[event["topic"], event["partition"]].append(event["offset"])
        return offsets


class VerifiableConsumer(_Process):
    """A member of a group, which commits what it has consumed."""

    @property
    def consumed(self) -> int:
        """How many messages."""
        return sum(event["count"] for event in self.named("records_consumed"))

    @property
    def ranges(self) -> list[tuple[Place, int, int]]:
        """First and last offset, both inclusive, of each chunk that it consumed from a partition."""
        return [
            ((each["topic"], each["partition"]), each["minOffset"], each["maxOffset"])
            for event in self.named("records_consumed")
            for each in event["partitions"]
        ]

    @property
    def committed(self) -> dict[Place, int]:
        """The offset committed last for each partition. Raises CheckFailed if a commit has failed."""
        offsets = {}
        for event in self.named("offsets_committed"):
            if not event["success"]:
                raise CheckFailed(f"a commit has failed: {event}")
            for each in event["offsets"]:
                if each["offset"] >= 0:
                    offsets[each["topic"], each["partition"]] = each["offset"]
        return offsets

    @property
    def assignments(self) -> list[set[Place]]:
        """What it was assigned, each time; nothing after partitions were revoked."""
        changes = ("partitions_assigned", "partitions_revoked")
        return [
            {(each["topic"], each["partition"]) for each in event["partitions"]}
            if event["name"] == changes[0]
            else set()
            for event in self.events
            if event["name"] in changes
        ]

    @property
    def assigned(self) -> set[Place]:
        """What it has now."""
        return self.assignments[-1] if self.assignments else set()

    def kill(self) -> None:
        """SIGKILL: it does not leave its group."""
        self._child.kill()

    async def stop(self) -> None:
        """SIGTERM, and wait for the end. Raises CheckFailed if it ends with an error."""
        await self._child.stop()
        if (await self.until_shutdown())["failed"]:
            raise CheckFailed(f"{self._child.name} has failed:\n{self.said}")


async def start_producer(
    children: Children, folder: Path, name: str, *arguments: str
) -> VerifiableProducer:
    """Start the script of this folder, with its arguments."""
    return VerifiableProducer(
        await _start(children, folder / "verifiable_producer.py", name, arguments)
    )


async def start_consumer(
    children: Children, folder: Path, name: str, *arguments: str
) -> VerifiableConsumer:
    """The same for a consumer."""
    return VerifiableConsumer(
        await _start(children, folder / "verifiable_consumer.py", name, arguments)
    )


async def _start(children: Children, script: Path, name: str, arguments: tuple[str, ...]) -> Child:
    command = [sys.executable, "-m", verifiable_launch.__name__, str(script), *arguments]
    return await children.spawn(name, command, environment={"PYTHONPATH": str(ROOT)})
