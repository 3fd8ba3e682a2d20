"""The demo's final report: both engines side by side, by partition and by carrier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from demo.flights import carrier_names
from demo.outcome import STRATEGY
from demo.results import checked, differing_rows
from demo.workers import RECORDS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from demo.outcome import Outcome
    from demo.results import Checked
    from kmr.cli.check import PartitionDeliveries

__all__ = ["report"]

_NONE = "-"


def report(console: Console, url: str, outcomes: Sequence[Outcome], expected: int) -> bool:
    """Check what each engine left, and show it; returns whether all is as it should be.

    Args:
        url: of ClickHouse.
        expected: how many records were produced.

    Raises:
        SinkError: ClickHouse does not answer.
    """
    halves = [checked(outcome, expected) for outcome in outcomes]
    differing = differing_rows(url) if len(halves) > 1 else None
    _show_deliveries(console, halves)
    _show_carriers(console, halves)
    _show_engines(console, halves, differing)
    same = all(half.carriers == halves[0].carriers for half in halves)
    return same and not differing and all(half.deliveries.clean for half in halves)


def _show_deliveries(console: Console, halves: Sequence[Checked]) -> None:
    """The checks' findings for each partition."""
    table = _table("Rows; offsets missing and doubled")
    headings = ["partition", "offsets"]
    for half in halves:
        headings += [half.outcome.engine.name, "missing", "doubled"]
    for heading in headings:
        table.add_column(heading, justify="right")
    found = [{p.partition: p for p in half.deliveries.partitions} for half in halves]
    for number in sorted(set().union(*found)):
        parts = [partitions.get(number) for partitions in found]
        known = [part for part in parts if part is not None]
        offsets = f"{min(p.first for p in known)}..{max(p.last for p in known)}"
        cells = [cell for part in parts for cell in _partition_cells(part)]
        table.add_row(str(number), offsets, *cells)
    console.print(table, highlight=False)


def _partition_cells(part: PartitionDeliveries | None) -> tuple[str, str, str]:
    if part is None:
        return "[bold red]0[/bold red]", _NONE, _NONE
    return f"{part.deliveries:,}", _none_wanted(part.missing), _none_wanted(part.doubled)


def _show_carriers(console: Console, halves: Sequence[Checked]) -> None:
    """Delays per carrier, from the tables that the strategy filled."""
    names = carrier_names()
    table = _table("Delays per carrier, in minutes (worst tenth: above)")
    headings = ["carrier", "flights", "cancelled", "mean", "worst tenth"]
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "carrier" else "right")
    first, *others = halves
    for other in others:
        table.add_column(other.outcome.engine.name, justify="right")
    elsewhere = [{row[0]: row[1:] for row in other.carriers} for other in others]
    for carrier, *values in first.carriers:
        same = [
            "equal"
            if rows.get(carrier) == tuple(values)
            else f"[bold red]{_delays(rows.get(carrier))}"
            for rows in elsewhere
        ]
        flights, cancelled, mean, worst = values
        delays = (f"{flights:,}", f"{cancelled:,}", _delay(mean, ".1f"), _delay(worst, ".0f"))
        table.add_row(names.get(carrier, carrier), *delays, *same)
    console.print(table, highlight=False)


def _delay(minutes: float | None, digits: str) -> str:
    return _NONE if minutes is None else format(minutes, digits)  # None: all were cancelled


def _delays(values: tuple[object, ...] | None) -> str:
    return "missing" if values is None else " ".join(map(str, values))


def _show_engines(console: Console, halves: Sequence[Checked], differing: int | None) -> None:
    """The engines side by side; `differing` is how many rows their tables do not have in common."""
    table = _table(STRATEGY)
    table.add_column("")
    for half in halves:
        table.add_column(half.outcome.engine.name, justify="right")
    rows = {
        "consumer group": [half.outcome.engine.group for half in halves],
        "rows": [f"{half.deliveries.deliveries:,}" for half in halves],
        "missing": [_none_wanted(half.deliveries.missing) for half in halves],
        "doubled": [_none_wanted(half.deliveries.doubled) for half in halves],
        "seconds to start": [f"{half.outcome.start:.1f}" for half in halves],
        "seconds for all records": [f"{half.outcome.seconds:.1f}" for half in halves],
        "records/s": [f"{half.rate:,.0f}" for half in halves],
    }
    if differing is not None:
        first, *others = halves
        equal = [
            "equal" if other.carriers == first.carriers else "[bold red]differ" for other in others
        ]
        rows["delays per carrier"] = ["", *equal]
        rows["rows that differ"] = ["", _none_wanted(differing)]
    for name, cells in rows.items():
        table.add_row(name, *cells)
    console.print(table, highlight=False)
    pace = f"The workers' records came at up to {RECORDS_PER_SECOND:,} a second, to watch the group change"
    others_found = "; Spark found them all in the topic" if len(halves) > 1 else ""
    console.print(
        f"{pace}{others_found}. `make bench` measures speed.\n", style="dim", highlight=False
    )


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        padding=(0, 2, 0, 0),
        header_style="dim",
        # A blank line after it, in place of a frame.
        caption=" ",
    )


def _none_wanted(number: int) -> str:
    return "0" if number == 0 else f"[bold red]{number:,}[/bold red]"
