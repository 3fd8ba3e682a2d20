"""What a map needs and a process opens once: a connection pool, a model, a cache."""

from __future__ import annotations

import asyncio
import inspect
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from ..errors import KmrError, StrategyError, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from ..kafka.connection import ConnectionConfig
    from ..lookups.tables import Tables
    from ..strategy import Strategy


class OpenResources:
    """The resources of a strategy in this process, on its event loop.

    One task opens and closes them: some context managers must not be left by another.

    Calls: `open`; `bind` any number of times; `close`, also after a failure.

    Attributes:
        value: what the factory has opened.
    """

    what = "resources="

    def __init__(self, factory: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._factory = factory
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.value: Any = None

    async def open(self) -> None:
        """Open the resources. Raises StrategyError if that fails."""
        opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(opened))
        try:
            self.value = await opened
        except Exception as error:
            reason = str(error) if isinstance(error, KmrError) else reason_of(error)
            raise StrategyError(f"{self.what} cannot be opened: {reason}") from error
        except BaseException:
            self._task.cancel()
            raise

    async def _hold(self, opened: asyncio.Future[Any]) -> None:
        try:
            async with self._factory() as value:
                opened.set_result(value)
                await self._closing.wait()
        except Exception as error:
            if opened.done():
                raise StrategyError(f"{self.what} cannot be closed: {reason_of(error)}") from error
            opened.set_exception(error)

    def bind(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the map with its parameter `resources` filled in."""
        return partial(function, resources=self.value)

    async def close(self) -> None:
        """Close the resources, if they are open. Raises StrategyError if that fails."""
        task, self._task = self._task, None
        if task is not None and not task.done():
            self._closing.set()
            await task


class OpenTables(OpenResources):
    """The look-up tables of a strategy: loaded, and followed until they are closed."""

    what = "tables="

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables.following)
        self.tables = tables

    def bind(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the map with its parameters that are named as tables filled in.

        Raises KmrError if a table cannot be followed any more.
        """
        return partial(function, **accepted(function, self.tables()))


def tables_of(strategy: Strategy, config: ConnectionConfig | None) -> Tables:
    """Return the tables of a strategy, not yet loaded. Raises StrategyError if that cannot be here."""
    from ..lookups.tables import Tables

    as_columns = {part.map_spec.per == "batch" for part in strategy.parts}
    if len(as_columns) > 1:
        raise StrategyError("tables= needs maps that are all per record, or all per batch")
    return Tables(strategy.tables or {}, config, as_columns=as_columns.pop())


def accepted(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the arguments that a function has parameters for."""
    names = _parameters(function)
    return dict(given) if names is None else {n: v for n, v in given.items() if n in names}


def _parameters(function: Callable[..., Any]) -> frozenset[str] | None:
    """Return the names of the parameters; None if it takes any."""
    try:
        return _cached_parameters(function)
    except TypeError:  # not hashable
        return _cached_parameters.__wrapped__(function)


@lru_cache(maxsize=256)
def _cached_parameters(function: Callable[..., Any]) -> frozenset[str] | None:
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    return frozenset(each.name for each in parameters)
