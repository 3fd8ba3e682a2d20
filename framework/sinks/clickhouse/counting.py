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
from typing import Final

from ...record import OFFSET_COLUMNS
from .deduplication import REPLICATED

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
