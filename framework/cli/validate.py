"""`kmr validate`: check a strategy without a network.

It prints the outline of the strategy, which `kmr graph` draws.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import Parameter

from ..config.schema import BYTES, show_quantity
from ..loading import load_strategy
from ..memory.window import Window
from ..reducers.reducer import ERROR_STAGE
from ..reducers.sink import Sink, capabilities_of
from ..strategy import ERROR_DELIVERY
from ..tagged_rows import schemas
from .output import plain_console, print_json

if TYPE_CHECKING:
    import pyarrow as pa

    from ..reducers.reducer import Reducer
    from ..spark.engine.placement import PlacementNote
    from ..strategy import Strategy


_DELIVERY = {
    "exactly-once": (
        "delivery    exactly once: each range of a partition is announced in the committed offset, written",
        "            under a name of its own, and after a crash read and written again as it was announced.",
        "            So map and reducers must make the same rows of the same records: no clock, no random",
        "            numbers, no state that outlives reset(). A stage that flushes by age is replayed by",
        "            range. The limits above hold for each partition.",
    ),
    "transactions": (
        "delivery    exactly once: rows and the offsets of their records are one transaction. It is aborted",
        "            when it fails, or when the group has given the partitions to another member.",
        "            Consumers of the output set isolation_level=read_committed: others also read what was",
        "            aborted. The limits above hold for the worker.",
    ),
    "at-least-once": (
        "delivery    at least once: records that were written but not committed when a worker is killed are",
        "            written again.",
    ),
    "at-most-once": (
        "delivery    at most once: records are committed before they are written; a crash or an error of the",
        "            sink loses them. The limits above hold for each partition.",
    ),
}


_ERRORS = "            at least once: after a crash, failed records may be written there again"


def validate(
    strategy: str,
    /,
    *,
    engine: Literal["worker", "spark"] = "worker",
    topics: Annotated[tuple[str, ...], Parameter("--topic", negative=())] = (),
    bootstrap_servers: str = "127.0.0.1:9092",
    as_json: Annotated[bool, Parameter("--json", negative=())] = False,
) -> int:
    """Check a strategy without a network, and print its stages.

    Imports the strategy, checks its parts against each other, and pickles it as for another process. Tables
    and topics need a connection: they are checked when it runs.

    For example:

        kmr validate hits:strategy
        kmr validate hits:strategy --engine spark --json

    Parameters
    ----------
    strategy
        The strategy: module:attribute. The current directory is searched first.
    engine
        spark: also print the guarantee of each stage on Spark, differences from the worker, and what is
        impossible there (then the exit code is 1).
    topics
        Topic that it will consume; may be repeated. A stage that writes to one of them is refused.
    bootstrap_servers
        The brokers of these topics: a topic of the same name on other brokers is not refused.
    as_json
        Print JSON.
    """
    loaded = load_strategy(strategy)
    loaded.validate()
    loaded.refuse_loop(topics, bootstrap_servers)
    outline = outline_of(strategy, loaded)
    found = _on_spark(loaded) if engine == "spark" else []
    doubts = [
        f"{stage}: {doubt}"
        for stage, reducer in loaded.stages.items()
        if isinstance(reducer, Sink)
        for doubt in reducer.doubts(loaded.schema_of(stage))
    ]
    if as_json:
        shown = msgspec.to_builtins(outline)
        if engine == "spark":
            shown["spark"] = msgspec.to_builtins(found)
        print_json(shown | ({"warnings": doubts} if doubts else {}))
    else:
        console = plain_console()
        for line in (*_lines(outline), *_findings(found)):
            console.print(line)
        for doubt in doubts:
            console.print(f"warning     {doubt}")
    return 1 if any(finding.level == "error" for finding in found) else 0


def _on_spark(strategy: Strategy) -> list[PlacementNote]:
    from ..spark.engine.placement import examine_strategy

    return examine_strategy(strategy)


def _findings(found: list[PlacementNote]) -> list[str]:
    words = {"guarantee": "", "difference": "differs: ", "error": "CANNOT BE: "}
    lines = [f"{finding.stage:<11} {words[finding.level]}{finding.text}" for finding in found]
    return ["", "On Spark:", "", *lines] if found else []


def _lines(outline: Outline) -> list[str]:
    maps = outline.by_topic or {"": outline.map}
    return [
        f"{outline.strategy} is valid.",
        "",
        *(line for topic, mapped in maps.items() for line in _map_lines(topic, mapped)),
        *(f"table       {each}" for each in outline.tables),
        *(f"distinct    {each}" for each in outline.distinct),
        *(line for reducer in outline.reduce for line in _stage(reducer)),
        *(_branch(branch) for branch in outline.branches),
        *(
            [*_stage(outline.reduce_err), _ERRORS]
            if outline.reduce_err is not None
            else ["reduce-err  none: the first record that fails stops the worker"]
        ),
        *([f"            at most {outline.err_limit}"] if outline.err_limit is not None else []),
        "",
        *_DELIVERY["transactions" if outline.transactions else outline.delivery],
        *_weakest(outline),
        *([] if outline.window is None else ["", f"window      {outline.window}"]),
        *(["", f"Pickled: {outline.pickled_bytes:,} bytes."] if outline.pickled_bytes else []),
    ]


def _branch(branch: BranchOutline) -> str:
    return f"            {branch.name}: {', '.join(branch.reducers)}; {branch.delivery.replace('-', ' ')}"


def _weakest(outline: Outline) -> list[str]:
    """Say which branches are the reason for a weaker guarantee than others have."""
    weak = [branch.name for branch in outline.branches if branch.delivery != "exactly-once"]
    if not weak or len(weak) == len(outline.branches):
        return []
    return [
        f"            The weakest branch counts: {', '.join(weak)}. In a strategy and a group of its own",
        "            it leaves exactly once to the others.",
    ]


def _map_lines(topic: str, mapped: MapOutline) -> list[str]:
    columns = "inferred from each batch" if mapped.columns is None else ", ".join(mapped.columns)
    return [
        f"map         {topic}{': ' if topic else ''}{mapped.function or 'none'}",
        f"            {mapped.call()}",
        *([f"            {mapped.formats()}"] if mapped.formats() else []),
        *([f"            columns: {columns}"] if mapped.per != "batch" else []),
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


class MapOutline(msgspec.Struct, frozen=True):
    """The map function.

    Attributes:
        function: None if there is none.
        per: `record` or `batch`: what one call gets; `value`: no call, the columns of the value are the rows.
        columns: `name: type` of each declared column; None when they are inferred.
        value: the format of values; None: bytes.
        key: the format of keys; None: bytes.
        options: concurrency, retries and limits of the calls, in words.
        resources: the function that opens what the map needs; None if there is none.
    """

    function: str | None
    per: str
    is_async: bool
    columns: tuple[str, ...] | None
    value: str | None = None
    key: str | None = None
    options: str = ""
    resources: str | None = None

    def call(self) -> str:
        """Return how the function is called, in words."""
        if self.function is None:
            return "the columns of the value are the rows"
        options = f", {self.options}" if self.options else ""
        resources = f", resources of {self.resources}" if self.resources else ""
        kind = "async" if self.is_async else "sync"
        return f"one call per {self.per}, {kind}{options}{resources}"

    def formats(self) -> str:
        """Return the formats of value and key, in words; empty if the map gets bytes."""
        named = (("value", self.value), ("key", self.key))
        return ", ".join(f"{name}: {each}" for name, each in named if each is not None)


class ReducerOutline(msgspec.Struct, frozen=True):
    """A reducer with its limits (rows, bytes, seconds; None: no limit) and its policies."""

    stage: str
    reducer: str
    max_rows: int | None
    max_bytes: int | None
    max_age: float | None
    when_full: str
    on_shutdown: str
    on_error: str

    def limits(self) -> str:
        """Return the limits that trigger a flush, in one line."""
        limits = []
        if self.max_rows is not None:
            limits.append(f"{self.max_rows:,} rows")
        if self.max_bytes is not None:
            limits.append(show_quantity(self.max_bytes, BYTES))
        if self.max_age is not None:
            limits.append(f"{self.max_age:g} s")
        return " or ".join(limits) or "the end of a window"


class BranchOutline(msgspec.Struct, frozen=True):
    """One branch: the reducers of its chain, and what its sink guarantees."""

    name: str
    reducers: tuple[str, ...]
    delivery: str


class Outline(msgspec.Struct, frozen=True):
    """A whole strategy.

    Attributes:
        map: that of the first topic, if each has its own.
        by_topic: the map of each topic; empty if all have the same.
        reduce_err: None: the first failed record stops the worker.
        delivery: the delivery guarantee.
        transactions: whether it is one of transactions, which commit the offsets with the rows.
        err_delivery: that of failed records in the worker; None without `reduce_err`.
        err_limit: the accepted number of failed records, in words; None: any number, or no `reduce_err`.
        pickled_bytes: size of the strategy for another process; None if only Spark can send it.
        branches: those of the last stage; empty without branches.
        tables: in what the map looks things up.
        distinct: which duplicates are dropped before the first stage.
        window: its length, and whether its rows are final, in words; None without one.
    """

    strategy: str
    map: MapOutline
    by_topic: dict[str, MapOutline]
    reduce: tuple[ReducerOutline, ...]
    reduce_err: ReducerOutline | None
    delivery: str
    err_delivery: str | None
    err_limit: str | None
    pickled_bytes: int | None
    transactions: bool = False
    branches: tuple[BranchOutline, ...] = ()
    tables: tuple[str, ...] = ()
    distinct: tuple[str, ...] = ()
    window: str | None = None


def outline_of(path: str, strategy: Strategy) -> Outline:
    """Outline the valid strategy that was loaded from `path`."""
    limit = strategy.err_limit if strategy.reduce_err is not None else None
    return Outline(
        strategy=path,
        map=_map(strategy.parts[0]),
        by_topic={}
        if strategy.by_topic is None
        else {topic: _map(strategy.of_topic(topic)) for topic in strategy.by_topic},
        reduce=tuple(_reducer(stage, reducer) for stage, reducer in strategy.stages.items()),
        reduce_err=None
        if strategy.reduce_err is None
        else _reducer(ERROR_STAGE, strategy.reduce_err),
        delivery=strategy.requested_delivery,
        err_delivery=None if strategy.reduce_err is None else ERROR_DELIVERY,
        err_limit=None if limit is None else f"{limit}, then {limit.on_limit}",
        pickled_bytes=_pickled_bytes(strategy),
        transactions=strategy.is_transactional,
        tables=tuple(f"{name}: {each}" for name, each in (strategy.tables or {}).items()),
        distinct=tuple(
            f"{f'{branch}: ' if branch else ''}{each}, of each partition"
            for branch, each in strategy.distincts.items()
        ),
        window=None if strategy.window is None else strategy.window.describe(),
        branches=tuple(
            BranchOutline(
                name,
                tuple(type(reducer).__name__ for reducer in chain),
                capabilities_of(chain[-1]).delivery,
            )
            for name, chain in strategy.chains.items()
            if name
        ),
    )


def _columns(strategy: Strategy) -> tuple[str, ...] | None:
    """Return the declared columns of a map; of each branch after its name."""
    spec = strategy.map_spec
    schema = spec.schema if spec.row_type is None else spec.row_type.schema
    if spec.branching is not None and (tagged := spec.branching.schema) is not None:
        return tuple(
            f"{name} ({', '.join(_named(each))})" for name, each in schemas(tagged).items()
        )
    return None if schema is None else tuple(_named(schema))


def _named(schema: pa.Schema) -> list[str]:
    return [f"{field.name}: {field.type}" for field in schema]


def _pickled_bytes(strategy: Strategy) -> int | None:
    try:
        return len(pickle.dumps(strategy))
    except (pickle.PicklingError, AttributeError):  # branches that a nameless function makes
        return None


def _map(strategy: Strategy) -> MapOutline:
    spec = strategy.map_spec
    return MapOutline(
        function=None
        if (function := strategy.map) is None
        else f"{function.__module__}.{getattr(function, '__qualname__', type(function))}",
        per=spec.per,
        is_async=spec.is_async,
        columns=_columns(strategy),
        value=None if strategy.value is None else str(strategy.value),
        key=None if strategy.key is None else str(strategy.key),
        options="" if spec.calls is None else spec.calls.describe(),
        resources=None
        if strategy.resources is None
        else getattr(strategy.resources, "__qualname__", repr(strategy.resources)),
    )


def _reducer(stage: str, reducer: Reducer) -> ReducerOutline:
    return ReducerOutline(
        stage=stage,
        reducer=type(reducer).__name__,
        max_rows=reducer.max_rows,
        max_bytes=reducer.max_bytes,
        max_age=None if isinstance(reducer, Window) else reducer.max_age,
        when_full=reducer.when_full,
        on_shutdown=reducer.on_shutdown,
        on_error=reducer.on_error,
    )
