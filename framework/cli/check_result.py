"""What `kmr check` found, whichever engine was asked, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rich.console import Console

__all__ = ["CheckResult", "PartitionResult", "join_results", "show"]


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """What a table has of one partition.

    Attributes:
        topic: empty if the table has no topic column.
        first, last: the lowest and the highest offset that were delivered.
        deliveries: rows.
        missing: offsets between the first and the last without a row.
        doubled: offsets with more than one row; `surplus` rows are too many.
        example: the lowest offset that is doubled.
    """

    topic: str
    partition: int
    first: int
    last: int
    deliveries: int
    missing: int
    doubled: int = 0
    surplus: int = 0
    example: int | None = None


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a table has of a topic; `expected` is how many messages it should have, if that is known."""

    table: str
    partitions: tuple[PartitionResult, ...]
    expected: int | None = None

    @property
    def deliveries(self) -> int:
        """Rows in the table."""
        return sum(partition.deliveries for partition in self.partitions)

    @property
    def messages(self) -> int:
        """Different offsets in the table."""
        return sum(partition.deliveries - partition.surplus for partition in self.partitions)

    @property
    def missing(self) -> int:
        """Messages that are missing: between others, or of the expected number."""
        gaps = sum(partition.missing for partition in self.partitions)
        return gaps if self.expected is None else max(gaps, self.expected - self.messages)

    @property
    def doubled(self) -> int:
        """Messages that were delivered more than once."""
        return sum(partition.doubled for partition in self.partitions)

    @property
    def clean(self) -> bool:
        """Whether nothing is missing, nothing doubled and nothing beyond what was expected."""
        surplus = self.expected is not None and self.messages > self.expected
        return not self.missing and not self.doubled and not surplus


def join_results(
    table: str,
    found: Iterable[Mapping[str, Any]],
    doubled: Iterable[Mapping[str, Any]],
    expected: int | None,
) -> CheckResult:
    """The rows of `missing.sql`, and those of `duplicates.sql` counted per partition, as one result."""
    doubles = {(row["topic"], row["partition"]): row for row in doubled}
    return CheckResult(
        table=table,
        partitions=tuple(
            _partition(row, doubles.get((row["topic"], row["partition"]))) for row in found
        ),
        expected=expected,
    )


def _partition(row: Mapping[str, Any], doubled: Mapping[str, Any] | None) -> PartitionResult:
    return PartitionResult(
        topic=row["topic"],
        partition=row["partition"],
        first=row["first_offset"],
        last=row["last_offset"],
        deliveries=row["deliveries"],
        missing=row["missing"],
        doubled=doubled["offsets"] if doubled else 0,
        surplus=doubled["surplus"] if doubled else 0,
        example=doubled["example"] if doubled else None,
    )


def show(result: CheckResult, console: Console) -> None:
    """Print a result as a table and a verdict."""
    table = Table(title=f"Deliveries in {result.table}", title_justify="left", header_style="dim")
    topics = any(partition.topic for partition in result.partitions)
    for heading in (
        *(["topic"] if topics else []),
        "partition",
        "offsets",
        "rows",
        "missing",
        "doubled",
    ):
        table.add_column(heading, justify="left" if heading == "topic" else "right")
    for partition in result.partitions:
        table.add_row(
            *([partition.topic] if topics else []),
            str(partition.partition),
            f"{partition.first}..{partition.last}",
            f"{partition.deliveries:,}",
            _count(partition.missing),
            _count(partition.doubled)
            + ("" if partition.example is None else f" (offset {partition.example}, ...)"),
        )
    if result.partitions:
        console.print(table, highlight=False)
    colour = "green" if result.clean else "bold red"
    expected = "" if result.expected is None else f" of {result.expected:,} expected"
    console.print(
        f"[{colour}]{result.messages:,} messages{expected}: "
        f"{result.missing:,} missing, {result.doubled:,} doubled[/{colour}]",
        highlight=False,
    )


def _count(number: int) -> str:
    return f"[bold red]{number:,}[/bold red]" if number else "0"
