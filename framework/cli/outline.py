"""A strategy, stage by stage, as plain values: what `kmr validate` prints and `kmr graph` draws."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import msgspec

from framework.config.units import BYTES, show_quantity

if TYPE_CHECKING:
    from framework.reducer import Reducer
    from framework.strategy import Strategy

__all__ = ["MapOutline", "Outline", "ReducerOutline", "outline_of"]


class MapOutline(msgspec.Struct, frozen=True):
    """The map function.

    Attributes:
        per: one call a `record` or one a `batch`.
        columns: `name: type` of each column that it declares; None when they are inferred.
    """

    function: str
    per: str
    is_async: bool
    columns: tuple[str, ...] | None


class ReducerOutline(msgspec.Struct, frozen=True):
    """One reducer with its limits (rows, bytes, seconds; None is no limit) and policies."""

    stage: str
    reducer: str
    max_rows: int | None
    max_bytes: int | None
    max_age: float | None
    when_full: str
    on_shutdown: str
    on_error: str

    def limits(self) -> str:
        """The limits in one line: when it flushes."""
        limits = []
        if self.max_rows is not None:
            limits.append(f"{self.max_rows:,} rows")
        if self.max_bytes is not None:
            limits.append(show_quantity(self.max_bytes, BYTES))
        if self.max_age is not None:
            limits.append(f"{self.max_age:g} s")
        return " or ".join(limits)


class Outline(msgspec.Struct, frozen=True):
    """A whole strategy.

    Attributes:
        reduce_err: None when the first failed record stops the worker.
        delivery: what is promised for each record.
        err_limit: how many failed records are acceptable, in words; None is any number.
        pickled_bytes: what travels to another process.
    """

    strategy: str
    map: MapOutline
    reduce: tuple[ReducerOutline, ...]
    reduce_err: ReducerOutline | None
    delivery: str
    err_limit: str | None
    pickled_bytes: int


def outline_of(path: str, strategy: Strategy) -> Outline:
    """The outline of the strategy that was found at `path`; it must be valid."""
    spec = strategy.map_spec
    function = strategy.map
    limit = strategy.err_limit
    return Outline(
        strategy=path,
        map=MapOutline(
            function=f"{function.__module__}.{getattr(function, '__qualname__', type(function))}",
            per=spec.per,
            is_async=spec.is_async,
            columns=None
            if spec.schema is None
            else tuple(f"{field.name}: {field.type}" for field in spec.schema),
        ),
        reduce=tuple(
            _reducer(f"reduce-{position}", reducer)
            for position, reducer in enumerate(strategy.reduce, 1)
        ),
        reduce_err=None
        if strategy.reduce_err is None
        else _reducer("reduce-err", strategy.reduce_err),
        delivery=strategy.promise,
        err_limit=None
        if limit is None
        else f"{limit.records:,} records in {limit.per:g} s, then {limit.on_limit}",
        pickled_bytes=len(pickle.dumps(strategy)),
    )


def _reducer(stage: str, reducer: Reducer) -> ReducerOutline:
    return ReducerOutline(
        stage=stage,
        reducer=type(reducer).__name__,
        max_rows=reducer.max_rows,
        max_bytes=reducer.max_bytes,
        max_age=reducer.max_age,
        when_full=reducer.when_full,
        on_shutdown=reducer.on_shutdown,
        on_error=reducer.on_error,
    )
