"""What every task of a query is told. Light: processes that only plan import it too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import cloudpickle

if TYPE_CHECKING:
    from framework.reducer import Context
    from framework.strategy import Strategy

__all__ = ["TaskPlan"]


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """The strategy and its surroundings, pickled. Make it with `of`."""

    payload: bytes

    @classmethod
    def of(cls, strategy: Strategy, context: Context) -> TaskPlan:
        """Pickle by value what was defined in `__main__`, everything else by name."""
        payload: bytes = cloudpickle.dumps((strategy, context))  # type: ignore[no-untyped-call]
        return cls(payload)
