"""`kmr spark compact`: small files into large ones."""

from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console

from framework.config.units import BYTES, SECONDS, read_quantity, show_quantity
from framework.errors import SettingsError
from framework.sinks.spark.session import SharedSession
from framework.spark.compact import Compacted, compact_path, compact_table
from framework.spark.deliveries import is_path

__all__ = ["app"]

app = App(name="compact")


@app.default
def _command(
    source: str,
    *,
    target_size: str = "128MiB",
    min_age: str = "1h",
    master: str | None = None,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Put the small files that a SparkWriter wrote together, by topic partition.

    The newest file of each topic partition stays as it is: a worker may write it again. Readers may see
    rows twice for a moment. One run at a time for a directory; a run that was cut off is ended by the next.

    Parameters
    ----------
    source
        The path or URI of a directory (no Spark is needed), or catalog.database.table.
    target_size
        Files of that size are large enough.
    min_age
        Younger files stay as they are.
    master
        For a table: local[2], spark://host:port or sc://host:port; by default what Spark is configured for.
    dry_run
        Only say what would be done.
    """
    size = int(_amount("--target-size", target_size, BYTES))
    age = _amount("--min-age", min_age, SECONDS)
    if is_path(source):
        done: Compacted | None = compact_path(
            source, target_bytes=size, min_age=age, dry_run=dry_run
        )
    else:
        session = SharedSession(master, {"spark.log.level": "ERROR"})
        session.acquire()
        try:
            done = compact_table(
                session.get(), source, target_bytes=size, min_age=age, dry_run=dry_run
            )
        finally:
            session.release()
    _show(source, done, dry_run=dry_run)


def _amount(flag: str, text: str, unit: str) -> float:
    try:
        amount = float(read_quantity(text, unit))
    except ValueError:
        amount = -1.0
    if amount < 0:
        example = "128MiB" if unit == BYTES else "1h"
        raise SettingsError(f"{flag} must be a number of {unit}, such as {example}, not {text!r}")
    return amount


def _show(source: str, done: Compacted | None, *, dry_run: bool) -> None:
    console = Console(highlight=False, soft_wrap=True)
    if done is None:
        console.print(f"{source}: {'its table format would do it' if dry_run else 'compacted'}")
        return
    verb = "would become" if dry_run else "became"
    console.print(
        f"{source}: {done.files_before:,} files {verb} {done.files_after:,} "
        f"({show_quantity(done.bytes_rewritten, BYTES)} rewritten)"
    )
    if done.finished:
        console.print(f"{done.finished:,} replacements of a run that was cut off are complete now")
    if done.abandoned:
        verb = "would be" if dry_run else "were"
        console.print(f"{done.abandoned:,} hidden files that a crash had left {verb} removed")
