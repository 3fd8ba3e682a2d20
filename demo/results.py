"""What SQL says of both engines' tables: the checks, delays per carrier, and the differences."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import clickhouse_connect

from demo.services import TABLE
from kmr.cli.check import check

if TYPE_CHECKING:
    from demo.outcome import Outcome
    from kmr.cli.check import CheckResult

__all__ = ["DIFFERENCES", "RESULTS", "Checked", "checked", "differing_rows"]

RESULTS = Path(__file__).with_name("results.sql")
DIFFERENCES = Path(__file__).with_name("differences.sql")


@dataclass(frozen=True)
class Checked:
    """What an engine did, and what its table says of it.

    Attributes:
        carriers: the rows of `results.sql`: code, flights, cancelled, mean delay, that of the worst tenth.
    """

    outcome: Outcome
    deliveries: CheckResult
    carriers: list[tuple[Any, ...]]

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.deliveries.messages / self.outcome.seconds


def checked(outcome: Outcome, expected: int) -> Checked:
    """Look at what an engine left; `expected` is how many records were produced.

    Raises:
        SinkError: ClickHouse does not answer.
    """
    deliveries = check(url=outcome.url, table=TABLE, expected=expected)
    with clickhouse_connect.get_client(dsn=outcome.url) as client:
        carriers = [tuple(row) for row in client.query(RESULTS.read_text()).result_rows]
    return Checked(outcome, deliveries, carriers)


def differing_rows(url: str) -> int:
    """How many rows the two engines' tables do not have in common, whichever column differs."""
    with clickhouse_connect.get_client(dsn=url) as client:
        result = client.query(f"SELECT count() FROM ({DIFFERENCES.read_text()})")  # noqa: S608
        return int(result.result_rows[0][0])
