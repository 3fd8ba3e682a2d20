"""`kmr spark`: package a strategy for spark-submit, and compact the files of a ParquetWriter."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter

from ..config.schema import BYTES, SECONDS, parse_quantity, show_quantity
from ..errors import KmrError, SettingsError
from ..loading import load_strategy
from .output import plain_console

if TYPE_CHECKING:
    from ..sinks.parquet.compact import Compacted

app = App(name="spark", help="Run strategies by spark-submit; compact their files.")

_EXAMPLE: Final = (
    *("--checkpoint", "hdfs:///checkpoints/NAME", "--topic", "TOPIC"),
    *("--group", "GROUP", "--bootstrap-servers", "HOST:9092"),
)


@app.command
def package(
    strategy: str,
    /,
    *flags: Annotated[str, Parameter(allow_leading_hyphen=True)],
    output: Path = Path("spark-package"),
    master: str = "spark://HOST:7077",
) -> None:
    """Write the files that spark-submit needs to run a strategy, and print the command.

    The archive has our code and the modules of the strategy that are not installed. It has no installed
    packages: install kafka-map-reduce and its requirements in the cluster's Python, or ship an
    environment with Spark's --archives.

    Parameters
    ----------
    strategy
        The strategy, module:attribute. The current directory can be imported from.
    flags
        Flags of `kmr run` for the printed command, after `--`.
    output
        The directory for the files.
    master
        The cluster, for the printed command.
    """
    from ..spark.engine.placement import require_runnable
    from ..spark.shipping import write_package

    loaded = load_strategy(strategy)
    loaded.validate()
    require_runnable(loaded)
    try:
        written = write_package(loaded, output)
    except OSError as error:
        raise KmrError(f"cannot write the package to {output}: {error.strerror}") from error
    console = plain_console()
    modules = ", ".join(written.contents) or "none: all are installed"
    console.print(f"{written.modules}: our code, and the strategy's modules ({modules})")
    console.print(f"{written.main}: the program\n")
    console.print(written.command(strategy, master, flags or _EXAMPLE))


@app.command
def compact(
    source: str,
    *,
    target_size: str = "128MiB",
    min_age: str = "1h",
    dry_run: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Merge the small files of a ParquetWriter, by topic partition. It needs no Spark.

    The newest file of each topic partition stays as it is: a worker may write it again. Readers may see
    rows twice for a moment. Start only one run at a time for a directory; the next run finishes an
    interrupted one.

    Parameters
    ----------
    source
        The path or URI of a directory; for a table of Spark its location, and REFRESH TABLE afterwards.
    target_size
        Merge smaller files, up to this size.
    min_age
        Leave younger files as they are.
    dry_run
        Only print what would be done.
    """
    from ..sinks.parquet.compact import compact_path

    size = int(_amount("--target-size", target_size, BYTES))
    age = _amount("--min-age", min_age, SECONDS)
    done = compact_path(source, target_bytes=size, min_age=age, dry_run=dry_run)
    _show(source, done, dry_run=dry_run)


def _amount(flag: str, text: str, unit: str) -> float:
    try:
        return parse_quantity(text, unit)
    except ValueError:
        example = "128MiB" if unit == BYTES else "1h"
        raise SettingsError(
            f"{flag} must be a number of {unit}, such as {example}, not {text!r}"
        ) from None


def _show(source: str, done: "Compacted", *, dry_run: bool) -> None:
    console = plain_console()
    verb = "would become" if dry_run else "became"
    console.print(
        f"{source}: {done.files_before:,} files {verb} {done.files_after:,} "
        f"({show_quantity(done.bytes_rewritten, BYTES)} rewritten)"
    )
    if done.finished:
        console.print(f"{done.finished:,} replacements of an interrupted run are complete now")
    if done.abandoned:
        verb = "would be" if dry_run else "were"
        console.print(f"{done.abandoned:,} hidden files of a crash {verb} removed")
