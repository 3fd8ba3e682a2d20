"""What the demo ends with: the SQL checks, a result of the data, and how to go on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import clickhouse_connect
from rich.table import Table

from demo.flights import carrier_names

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["how_to_go_on", "show_carriers"]

HERE = Path(__file__).parent


def show_carriers(console: Console, url: str) -> None:
    """Delays per carrier, from the table that the pipeline filled."""
    client = clickhouse_connect.get_client(dsn=url)
    try:
        rows = client.query((HERE / "results.sql").read_text()).result_rows
    finally:
        client.close()
    names = carrier_names()
    table = Table(title="Delays per carrier, in minutes", title_justify="left", header_style="dim")
    for heading in ("carrier", "flights", "cancelled", "mean", "worst tenth above"):
        table.add_column(heading, justify="left" if heading == "carrier" else "right")
    for carrier, flights, cancelled, mean, worst in rows:
        table.add_row(
            names[carrier], f"{flights:,}", f"{cancelled:,}", f"{mean:.1f}", f"{worst:.0f}"
        )
    console.print(table)


def how_to_go_on(console: Console, directory: Path) -> None:
    """Commands to explore what the demo leaves in its directory."""
    console.print(
        f"""How to go on (everything is in {directory}; `make demo` begins anew):
  the table        .venv/bin/kmr clickhouse serve --data {directory}/clickhouse
                   .venv/bin/kmr check --url http://127.0.0.1:8123 --table flights
                   .venv/bin/kmr clickhouse query "SELECT * FROM flights LIMIT 5"
  the topic        .venv/bin/kmr broker serve --data {directory}/broker
                   .venv/bin/kmr broker consume flights --from-beginning | head
  your own         demo/pipeline.py is the strategy; .venv/bin/kmr run --help
""",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
