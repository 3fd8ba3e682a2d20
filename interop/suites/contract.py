"""The contract of a suite: it runs against a running broker and reports the result of each test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["Outcome", "Suite", "SuiteNotRun"]


class SuiteNotRun(Exception):
    """A suite could not be fetched or started; the message names the missing part and the remedy."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a suite went. Every test is in one of the three.

    Attributes:
        passed: ids of the tests that passed.
        failed: id of each test that failed, and why: as much as helps to understand it.
        excluded: id of each test that was not run, and the reason that `exclusions.toml` gives.
    """

    passed: Sequence[str] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    excluded: Mapping[str, str] = field(default_factory=dict)


class Suite(Protocol):
    """One line of the report.

    Attributes:
        name: how it is called by `--only`, in the report and in `exclusions.toml`.
        about: whose tests these are, in one line.
        broker: flags of `kmr broker serve` besides `--data` and `--port`. Each suite has a broker of its own.
    """

    @property
    def name(self) -> str: ...

    @property
    def about(self) -> str: ...

    @property
    def broker(self) -> Sequence[str]: ...

    async def run(self, bootstrap_servers: str, directory: Path) -> Outcome:
        """Run every test that is not excluded.

        Args:
            bootstrap_servers: `host:port` of a broker without topics and groups.
            directory: an empty one, for sources, logs and reports; it is kept when something failed.

        Raises:
            SuiteNotRun: there is nothing to run, or no way to run it.
        """
        ...
