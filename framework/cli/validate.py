"""`kmr validate`: check a strategy without a network."""

from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.console import Console

from framework.cli.outline import Outline, ReducerOutline, outline_of
from framework.cli.strategies import load_strategy

__all__ = ["validate"]


def validate(
    strategy: str, /, *, as_json: Annotated[bool, Parameter("--json", negative=())] = False
) -> None:
    """Check a strategy without a network, and print what it consists of.

    It is imported, its parts are checked against each other, and it is pickled as it would be for
    another process. What needs a connection (tables, topics) is checked when it runs.

    Parameters
    ----------
    strategy
        What to check: module:attribute. The current directory can be imported from.
    as_json
        Print JSON.
    """
    loaded = load_strategy(strategy)
    loaded.validate()
    outline = outline_of(strategy, loaded)
    console = Console(highlight=False, soft_wrap=True, markup=False)
    if as_json:
        console.print(msgspec.json.format(msgspec.json.encode(outline)).decode())
        return
    for line in _lines(outline):
        console.print(line)


def _lines(outline: Outline) -> list[str]:
    mapped = outline.map
    columns = "inferred from each batch" if mapped.columns is None else ", ".join(mapped.columns)
    return [
        f"{outline.strategy} is valid.",
        "",
        f"map         {mapped.function}",
        f"            one call per {mapped.per}, {'async' if mapped.is_async else 'sync'}",
        *([f"            columns: {columns}"] if mapped.per == "record" else []),
        *(line for reducer in outline.reduce for line in _stage(reducer)),
        *(
            _stage(outline.reduce_err)
            if outline.reduce_err is not None
            else ["reduce-err  none: the first record that fails stops the worker"]
        ),
        *([f"            at most {outline.err_limit}"] if outline.err_limit is not None else []),
        "",
        f"Pickled: {outline.pickled_bytes:,} bytes.",
    ]


def _stage(reducer: ReducerOutline) -> list[str]:
    return [
        f"{reducer.stage:<11} {reducer.reducer}",
        f"            flushes at {reducer.limits()}",
        (
            f"            when full: {reducer.when_full}, on shutdown: {reducer.on_shutdown}, "
            f"on error: {reducer.on_error}"
        ),
    ]
