"""Two tables that `kmr cutover` exchanges: what it learns of them first, and how it does it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..errors import StrategyError

if TYPE_CHECKING:
    from collections.abc import Sequence

_PLAIN: Final = re.compile(r"[\w.:@/+ -]+")


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A table.

    Attributes:
        rows: how many, or an estimate; None: unknown.
        size: in bytes; None: unknown.
    """

    name: str
    columns: tuple[str, ...]
    rows: int | None
    size: int | None


@dataclass(frozen=True, slots=True)
class VersionGroups:
    """The consumer groups that write to the two tables, each with that of its history.

    Raises:
        StrategyError: both are the same, or have characters that cannot be quoted everywhere.
    """

    new: tuple[str, ...]
    old: tuple[str, ...]

    def __post_init__(self) -> None:
        for group in (*self.new, *self.old):
            require_plain(group, "a group")
        if set(self.new) & set(self.old):
            raise StrategyError(
                f"the new version has group {self.new[0]}, as the old one: both run side by "
                "side, so each needs its own"
            )


class TableExchange(ABC):
    """The exchange of the table of a new version with the one that readers use.

    Workers of both groups may run. An exchange is one step for readers and writers, and every write
    gets into the table of its own group, under whichever name: a worker finds the new name itself.
    """

    @abstractmethod
    async def look(self) -> tuple[TableFacts, TableFacts]:
        """Return the new table and the one that readers use; their names are equal if they are exchanged.

        Raises:
            StrategyError: they cannot be exchanged.
            SinkError: the server does not answer.
        """

    @abstractmethod
    async def statements(self) -> Sequence[str]:
        """Return the statements that `run` executes. Raises as `look`."""

    @abstractmethod
    async def run(self) -> None:
        """Exchange the tables. Raises as `look`; then nothing is exchanged."""


def require_plain(name: str, what: str) -> None:
    """Raise StrategyError unless a name needs no escapes."""
    if not _PLAIN.fullmatch(name):
        raise StrategyError(
            f"{what} is named {name!r}; it must have letters, digits and . _ - : @ / + only"
        )


def same_table(name: str) -> str:
    """Say that the new version has no table of its own."""
    return (
        f"the new version writes to {name} itself. Give it a table beside that one, backfill "
        "it, and exchange both then"
    )
