"""What a count of rows proves, by the engine of a table.

| engine | what a count proves |
| --- | --- |
| MergeTree, Replicated..., Shared... | every row that was written is there |
| the same with a TTL of rows | what is found was written; what is missing may have expired |
| Summing..., Replacing... and others that merge rows | nothing: numbers may be sums |
| the same, with topic, partition and offset in the sorting key | what is found was written |
| Distributed, Null, Memory and others | nothing |
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ...record import OFFSET_COLUMNS
from .deduplication import REPLICATED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .table import ClickHouseTable

_TTL: Final = re.compile(r" TTL (?P<rules>.*?)(?: SETTINGS |\Z)", re.DOTALL)
_MOVES: Final = re.compile(r"\b(TO (DISK|VOLUME)|RECOMPRESS)\b")
_NAME: Final = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Counting:
    """What a count proves.

    Attributes:
        found: rows that are found were written.
        missing: rows that are not found are missing: the table deletes and merges none.
        shows_inserts: an insert that the table did not drop as a repetition can be seen afterwards.
    """

    found: bool
    missing: bool
    shows_inserts: bool

    @classmethod
    def of(cls, engine: str, definition: str, sorting_key: str) -> Counting:
        """Return what a count proves in a table.

        Args:
            definition: the engine with its clauses, as `system.tables.engine_full` has it.
            sorting_key: its columns and expressions.
        """
        if not engine.endswith("MergeTree"):
            return cls(found=False, missing=False, shows_inserts=False)
        expires = _expires(definition)
        if engine in ("MergeTree", *(f"{each}MergeTree" for each in REPLICATED)):
            return cls(found=True, missing=not expires, shows_inserts=not expires)
        by_place = set(OFFSET_COLUMNS) <= set(_NAME.findall(sorting_key))
        return cls(found=by_place, missing=False, shows_inserts=not expires)


def _expires(definition: str) -> bool:
    """Return whether rows are deleted by their age, and not only moved or compressed anew."""
    found = _TTL.search(definition)
    return found is not None and any(
        not _MOVES.search(rule) for rule in re.split(r",(?![^(]*\))", found["rules"])
    )


def columns_to_count(table: ClickHouseTable, only: Sequence[str] | None = None) -> list[str]:
    """Return the columns that we fill and by which a range is counted; empty if it cannot be counted.

    A count without the topic proves nothing: the table may have the rows of two. Nor does a column that the
    rows have themselves: it is data.

    Args:
        only: the columns that are written; None: all.
    """
    place = [name for name in table.coordinates(only) if name != "timestamp"]
    return place if table.counting.found and len(place) == len(OFFSET_COLUMNS) else []


def advice_to_count(
    table: ClickHouseTable, only: Sequence[str] | None, rows: set[str]
) -> str | None:
    """Say why rows with these columns cannot be counted in a table that has places of records; or None."""
    place = set(table.coordinates(only)) - {"timestamp"}
    if not {"partition", "offset"} <= place or not table.counting.found:
        return None
    if "topic" not in place:
        return (
            f"{table} has no column topic, so rows of two topics cannot be told apart; run ALTER TABLE "
            f"{table.identifier} ADD COLUMN topic LowCardinality(String)"
        )
    if own := sorted(place & rows):
        return (
            f"the rows have columns {', '.join(own)} of their own, which may be anything; leave them out: "
            f"those that {table} has and the rows lack are filled from the record"
        )
    return None
