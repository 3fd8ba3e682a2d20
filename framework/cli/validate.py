"""`kmr validate`: check a strategy without a network."""

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import Parameter
from rich.console import Console

from framework.cli.outline import Outline, ReducerOutline, outline_of
from framework.cli.strategies import load_strategy
from framework.strategy import Strategy

if TYPE_CHECKING:
    from framework.spark.checks import Finding

__all__ = ["validate"]


_DELIVERY = {
    "exactly-once": (
        "delivery    exactly once: each range of a partition is announced in the committed offset, written",
        "            with a token, and after a crash read and written again as it was announced.",
        "            So map and reducers must make the same rows of the same records: no clock, no random",
        "            numbers, no state that outlives reset(). A stage that flushes by age is replayed by",
        "            range. The limits above hold for each partition. reduce_err: at least once.",
    ),
    "at-least-once": (
        "delivery    at least once: what was written and not yet committed when a worker is killed is",
        "            written again.",
    ),
    "at-most-once": (
        "delivery    at most once: committed before it is written; what a crash or an error of the sink",
        "            loses then is lost. The limits above hold for each partition.",
    ),
}


def validate(
    strategy: str,
    /,
    *,
    engine: Literal["worker", "spark"] = "worker",
    as_json: Annotated[bool, Parameter("--json", negative=())] = False,
) -> int:
    """Check a strategy without a network, and print what it consists of.

    It is imported, its parts are checked against each other, and it is pickled as it would be for
    another process. What needs a connection (tables, topics) is checked when it runs.

    Parameters
    ----------
    strategy
        What to check: module:attribute. The current directory can be imported from.
    engine
        spark: say too what each stage guarantees there, what differs from the worker, and what cannot be
        (then the exit code is 1).
    as_json
        Print JSON.
    """
    loaded = load_strategy(strategy)
    loaded.validate()
    outline = outline_of(strategy, loaded)
    found = _on_spark(loaded) if engine == "spark" else []
    console = Console(highlight=False, soft_wrap=True, markup=False)
    if as_json:
        shown = msgspec.to_builtins(outline)
        if engine == "spark":
            shown["spark"] = msgspec.to_builtins(found)
        console.print(msgspec.json.format(msgspec.json.encode(shown)).decode())
    else:
        for line in (*_lines(outline), *_findings(found)):
            console.print(line)
    return 1 if any(finding.level == "error" for finding in found) else 0


def _on_spark(strategy: Strategy) -> list["Finding"]:
    from framework.spark.checks import findings

    return findings(strategy)


def _findings(found: list["Finding"]) -> list[str]:
    words = {"guarantee": "", "difference": "differs: ", "error": "CANNOT BE: "}
    lines = [f"{finding.stage:<11} {words[finding.level]}{finding.text}" for finding in found]
    return ["", "On Spark:", "", *lines] if found else []


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
        *_DELIVERY[outline.delivery],
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
