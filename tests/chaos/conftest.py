"""A history without a fault, to spoil."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from chaos.history import History
from chaos.verdicts import Delivery, Promise

GROUP, TOPIC = "g", "t"


@dataclass
class Draft:
    """Lines of a history in which every record is delivered once, in order, and then committed.

    Offset n of a partition is written at second n and committed one second later.
    """

    partitions: int
    records: int
    poison: frozenset[int] = frozenset()
    produced: list[dict[str, Any]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    dead: list[dict[str, Any]] = field(default_factory=list)
    commits: list[dict[str, Any]] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for partition in range(self.partitions):
            for offset in range(self.records):
                number = partition * self.records + offset
                bad = offset in self.poison
                place = {"topic": TOPIC, "partition": partition, "offset": offset}
                known = {"outcome": "acked", "poison": bad, "time": 0}
                self.produced.append(place | known | {"id": number})
                settled = place | {"group": GROUP, "time": offset}
                (self.dead if bad else self.rows).append(settled | {"id": number})
                self.commits.append(settled | {"offset": offset + 1, "time": offset + 1})

    def history(self) -> History:
        """The tables."""
        for line in self.dead:
            line.pop("id", None)
        names = ("produced", "rows", "dead", "commits")
        return History.of({name: getattr(self, name) for name in names}, self.unread)

    def promise(self, delivery: Delivery = "exactly-once") -> Promise:
        """The guarantee that the group claims."""
        return Promise(GROUP, TOPIC, delivery)


@pytest.fixture
def draft() -> type[Draft]:
    return Draft
