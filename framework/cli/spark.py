"""`kmr spark`: what only Spark needs."""

from pathlib import Path
from typing import Annotated, Final

from cyclopts import App, Parameter
from rich.console import Console

from framework.cli.spark_compact import app as compact
from framework.cli.strategies import load_strategy
from framework.errors import KmrError

__all__ = ["app"]

app = App(name="spark", help="Run strategies by spark-submit; compact what they wrote.")
app.command(compact)

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
    """Write what spark-submit needs to run a strategy, and print the command.

    The archive has our code and all modules of the strategy that are not installed. Installed packages
    are not in it: the cluster's Python needs them too (`pip install kafka-map-reduce` there, or
    Spark's --archives).

    Parameters
    ----------
    strategy
        What to run: module:attribute. The current directory can be imported from.
    flags
        Flags of `kmr run` for the command that is printed, after `--`.
    output
        The directory to write into.
    master
        The cluster, for the command that is printed.
    """
    from framework.spark.checks import require_possible
    from framework.spark.package import write_package

    loaded = load_strategy(strategy)
    loaded.validate()
    require_possible(loaded)
    try:
        written = write_package(loaded, output)
    except OSError as error:
        raise KmrError(f"cannot write the package to {output}: {error.strerror}") from error
    console = Console(highlight=False, soft_wrap=True, markup=False)
    modules = ", ".join(written.contents) or "none: all is installed"
    console.print(f"{written.modules}: our code, and the strategy's modules ({modules})")
    console.print(f"{written.main}: the program\n")
    console.print(written.command(strategy, master, flags or _EXAMPLE))
