"""The demo's final report: the table by partition and by carrier, and how each part got there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from demo.flights import carrier_names
from demo.outcome import STRATEGY
from demo.producing import RECORDS_PER_SECOND
from demo.results import checked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from demo.outcome import Cut, Outcome
    from demo.results import Checked

__all__ = ["report"]

_NONE = "-"


def report(
    console: Console, url: str, cut: Cut, outcomes: Sequence[Outcome], expected: int
) -> bool:
    """Check what both parts left in the table, and show it; returns whether all is as it should be.

    Args:
        url: of ClickHouse.
        outcomes: of the history, and of the present.
        expected: how many records were produced.

    Raises:
        SinkError: ClickHouse does not answer.
    """
    found = checked(url, cut, expected)
    _show_deliveries(console, found)
    _show_carriers(console, found)
    _show_parts(console, found, outcomes)
    return found.deliveries.clean


def _show_deliveries(console: Console, found: Checked) -> None:
    """The checks' findings for each partition."""
    table = _table("Rows of the one table; offsets missing and doubled")
    for heading in ("partition", "cut", "history", "present", "missing", "doubled"):
        table.add_column(heading, justify="right")
    checks = {part.partition: part for part in found.deliveries.partitions}
    for number, cut in sorted(found.cut.items()):
        history, present = found.parts.get(number, (0, 0))
        part = checks.get(number)
        counts = (
            (_NONE, _NONE)
            if part is None
            else (_none_wanted(part.missing), _none_wanted(part.doubled))
        )
        table.add_row(str(number), f"{cut:,}", f"{history:,}", f"{present:,}", *counts)
    table.add_row(
        *("all", "", f"{found.history:,}", f"{found.present:,}"),
        *(_none_wanted(found.deliveries.missing), _none_wanted(found.deliveries.doubled)),
    )
    console.print(table, highlight=False)


def _show_carriers(console: Console, found: Checked) -> None:
    """Delays per carrier, from the table that both parts filled."""
    names = carrier_names()
    table = _table("Delays per carrier, in minutes (worst tenth: above)")
    for heading in ("carrier", "flights", "cancelled", "mean", "worst tenth"):
        table.add_column(heading, justify="left" if heading == "carrier" else "right")
    for carrier, flights, cancelled, mean, worst in found.carriers:
        delays = (_delay(mean, ".1f"), _delay(worst, ".0f"))
        table.add_row(names.get(carrier, carrier), f"{flights:,}", f"{cancelled:,}", *delays)
    console.print(table, highlight=False)


def _delay(minutes: float | None, digits: str) -> str:
    return _NONE if minutes is None else format(minutes, digits)  # None: all were cancelled


def _show_parts(console: Console, found: Checked, outcomes: Sequence[Outcome]) -> None:
    """History and present side by side."""
    table = _table(STRATEGY)
    table.add_column("")
    for outcome in outcomes:
        table.add_column(outcome.part, justify="right")
    rows = {"history": found.history, "present": found.present}
    lines = {
        "read by": [outcome.engine for outcome in outcomes],
        "consumer group": [outcome.group for outcome in outcomes],
        "rows": [f"{rows[outcome.part]:,}" for outcome in outcomes],
        "seconds to start": [f"{outcome.start:.1f}" for outcome in outcomes],
        "seconds for all records": [f"{outcome.seconds:.1f}" for outcome in outcomes],
    }
    for name, cells in lines.items():
        table.add_row(name, *cells)
    console.print(table, highlight=False)
    console.print(
        f"The present's records came at up to {RECORDS_PER_SECOND:,} a second, to watch the group change. "
        "`make bench` measures speed.\n",
        style="dim",
        highlight=False,
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
