"""The rows that the calls of a per-record function return, in the order of their records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import StrategyError, as_exception
from .results import Failure, is_plain, rows_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from ..values.schemas import RowType


class CollectedRows:
    """Calls a per-record function, and keeps its rows.

    Args:
        row_type: the class of the rows, if it is declared.
        describe: makes the failure of a record of its number, and of what the function, or its generator,
            raised.
        named: a row may be a pair of a row and the name of its branch.

    Attributes:
        rows: those of all calls.
        numbers: of the record of each row.
        failures: of the records that failed.
    """

    def __init__(
        self,
        row_type: RowType | None,
        describe: Callable[[int, Exception], Failure] = Failure.of,
        *,
        named: bool = False,
    ) -> None:
        self.rows: list[Any] = []
        self.numbers: list[int] = []
        self.failures: list[Failure] = []
        self._describe = describe
        self._named = named
        self._known = {dict if row_type is None else row_type.instances}
        """Classes whose objects are rows as they are."""

    def call_each(
        self, call: Callable[[Any], Any], arguments: Iterable[Any], numbers: Iterable[int]
    ) -> int:
        """Call the function with each argument; return how many calls were made.

        Args:
            numbers: of the records of the arguments.

        Raises:
            StrategyError: from the function, or it returned a value that cannot become rows.
        """
        rows, of_rows, known = self.rows, self.numbers, self._known
        calls = 0
        for argument, number in zip(arguments, numbers, strict=False):
            calls += 1
            try:
                result = call(argument)
                kind = type(result)
                if kind in known:
                    rows.append(result)
                    of_rows.append(number)
                elif kind is list and known.issuperset(map(type, result)):
                    rows += result
                    of_rows += [number] * len(result)
                elif result is not None:
                    self._add(result, number)
            except StrategyError:
                raise
            except BaseException as error:  # noqa: BLE001  the user's function may raise anything
                self.failures.append(self._describe(number, as_exception(error)))
        return calls

    async def await_each(
        self,
        call: Callable[[Any], Awaitable[Any]],
        arguments: Iterable[Any],
        numbers: Iterable[int],
    ) -> int:
        """Do as `call_each` with a coroutine function: one call after the other."""
        calls = 0
        for argument, number in zip(arguments, numbers, strict=False):
            calls += 1
            try:
                result = await call(argument)
                if type(result) in self._known:
                    self.rows.append(result)
                    self.numbers.append(number)
                elif result is not None:
                    self._add(result, number)
            except StrategyError:
                raise
            except BaseException as error:  # noqa: BLE001
                self.failures.append(self._describe(number, as_exception(error)))
        return calls

    def _add(self, result: Any, number: int) -> None:
        several = rows_of(result, named=self._named)
        self.rows += several
        self.numbers += [number] * len(several)
        self._known.update(filter(is_plain, set(map(type, several))))
