"""What all kinds of look-up tables have in common: the topic's, the query's."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final, Literal

from ..arguments import Checked
from ..columns.kinds import is_nested
from ..errors import StrategyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from ..kafka.connection import ConnectionConfig
    from .follower import Follower

AsOf = Literal["record"]
Missing = Literal["null", "dead-letter"]

MAX_BYTES: Final = 1024 * 1024 * 1024


class TableSource(metaclass=Checked):
    """Where the rows of a table come from, what names a row, and what a missing one means.

    Attributes:
        keys: the columns that name a row.
        missing: see `Lookup`.
        max_bytes: the most memory of one process, estimated.
        wait: see `Lookup`; 0: maps do not wait.
        as_of: see `Lookup`; None: lookups find the newest rows.
        keep: see `Lookup`; in seconds.
        has_records: the rows are made of the records of a topic.
    """

    wait: float = 0.0
    as_of: AsOf | None = None
    keep: float = 0.0
    has_records = False

    def __init__(self, key: str | Sequence[str], *, missing: Missing, max_bytes: int) -> None:
        self.keys = (key,) if isinstance(key, str) else tuple(key)
        self.missing = missing
        self.max_bytes = max_bytes
        if not self.keys:
            raise StrategyError("Lookup: key= names no field")
        if max_bytes < 1:
            raise StrategyError(f"Lookup: max_bytes must be at least 1, not {max_bytes}")

    @property
    @abstractmethod
    def columns(self) -> pa.Schema | None:
        """The columns of the table; None if only the rows tell."""

    @abstractmethod
    def follower(self, name: str, config: ConnectionConfig | None, *, as_columns: bool) -> Follower:
        """Return what loads the table and keeps it up to date.

        Raises:
            StrategyError: it cannot be read here.
        """

    def check_keys(self, of: Any) -> None:
        """Raise StrategyError unless the columns have those of the key; `of` has them, in the message."""
        known = self.keys if self.columns is None else self.columns.names
        for name in self.keys:
            if name not in known:
                raise StrategyError(
                    f"Lookup: {of!r} has no field {name}, which key= names; it has {', '.join(known)}"
                )
            if self.columns is not None:
                require_single("Lookup", self.columns.field(name))


def require_single(subject: str, column: pa.Field[Any]) -> None:
    """Raise StrategyError if a column of a key has lists, structs or maps."""
    if is_nested(column.type):
        raise StrategyError(
            f"{subject}: key= names {column.name}, which is {column.type}: a key has single values"
        )
