"""The rows that the calls of a per-record function return, in the order of their records."""

from __future__ import annotations

from itertools import islice
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final

from ..columns.texts import excerpt
from ..errors import StrategyError, as_exception
from .gathering import GatheredRows
from .results import Failure, is_plain, rows_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from ..values.schemas import RowType
    from .inputs import Decoding
    from .results import MapResult


_TRIED: Final = 8
"""Records that may make no row before the first row of a part, of which a copy is kept."""


class CollectedRows:
    """Calls a per-record function, and keeps its rows.

    Args:
        row_type: the class of the rows, if it is declared.
        describe: makes the failure of a record of its number, and of what the function, or its generator,
            raised.
        schema: the columns of the rows, if they are declared without a class.
        sink_types: as those of `results.from_rows`.

    Attributes:
        rows: those of all calls.
        numbers: of the record of each row.
        failures: of the records that failed.
    """

    def __init__(
        self,
        row_type: RowType | None,
        describe: Callable[[int, Exception], Failure] = Failure.of,
        schema: pa.Schema | None = None,
        sink_types: Mapping[str, pa.DataType] = {},
    ) -> None:
        self.rows: list[Any] = []
        self.numbers: list[int] = []
        self.failures: list[Failure] = []
        self._first: dict[Any, Any] | None = None
        self._fatal: StrategyError | None = None
        self._describe = describe
        self._known = {dict if row_type is None else row_type.instances}
        """Classes whose objects are rows as they are."""
        self._gathered = GatheredRows(row_type or schema, sink_types)

    def gather(self) -> None:
        """Let the rows so far become columns, as far as they can: a part of a batch has ended."""
        self._gathered.add(self.rows, self.numbers)
        self.rows, self.numbers, self._first = [], [], None

    def columns(self, failures: list[Failure]) -> MapResult:
        """Return the rows of all parts as columns, without those of records that have a wrong value."""
        self.gather()
        return self._gathered.result(failures)

    def call_each(
        self,
        call: Callable[..., Any],
        arguments: Sequence[list[Any]],
        numbers: list[int],
        decoding: Decoding | None = None,
    ) -> int:
        """Call the function with the items of some lists; return how many records are done.

        Args:
            arguments: a list for each parameter. The calls end when the first one is emptied.
            numbers: of the records of the arguments.
            decoding: makes the first argument of each call, of an item of the first list, when it is called:
                so its objects are in memory for one call. A record that cannot be decoded fails.

        Raises:
            StrategyError: from the function, or it changed a row that it had returned.
        """
        items, at = [iter(each) for each in arguments], iter(numbers)
        if decoding is not None:
            items[0] = map(decoding.decode, items[0])

        def refused(error: Exception | None) -> bool:
            """Return whether the next record could not be decoded; it fails."""
            done = len(numbers) - length_hint(at)
            text = arguments[0][done : done + 1]
            if decoding is None or not text:
                if error is not None and (decoding is None or arguments[0]):
                    raise error
                return False  # all are done, or the list was emptied
            reason = decoding.reason(text[0], error or StopIteration())
            self.failures.append(Failure(next(at), reason))
            for each in items[1:]:
                next(each)
            return True

        for _ in range(_TRIED):
            if self.rows:
                break
            left = length_hint(at)
            error = self._call_each(call, [islice(each, 1) for each in items], at)
            if length_hint(at) == left and not refused(error):
                return len(numbers) - left
        if self.rows:
            self._note_first()
        while refused(self._call_each(call, items, at)):
            pass
        self._require_unchanged()
        return len(numbers) - length_hint(at)

    def _call_each(
        self, call: Callable[..., Any], arguments: Sequence[Iterator[Any]], numbers: Iterator[int]
    ) -> Exception | None:
        """Call the function until its arguments end; return what ended them, if anything but their end."""
        try:
            if len(arguments) == 1:
                self._call_one(call, arguments[0], numbers)
            else:
                self._call_two(call, arguments[0], arguments[1], numbers)
        except BaseException as error:
            if error is self._fatal:
                raise
            return as_exception(error)  # a model's own validators may raise anything
        return None

    # Two loops: one for any number of parameters would make a tuple for each call.
    def _call_one(
        self, call: Callable[..., Any], arguments: Iterator[Any], numbers: Iterator[int]
    ) -> None:
        rows, of_rows, known = self.rows, self.numbers, self._known
        for argument, number in zip(arguments, numbers, strict=False):
            try:
                result = call(argument)
            except BaseException as error:  # noqa: BLE001  the user's function may raise anything
                self._fail(number, error)
                continue
            if type(result) in known:
                rows.append(result)
                of_rows.append(number)
            elif result is not None:
                self._add(result, number)

    def _call_two(
        self,
        call: Callable[..., Any],
        arguments: Iterator[Any],
        records: Iterator[Any],
        numbers: Iterator[int],
    ) -> None:
        rows, of_rows, known = self.rows, self.numbers, self._known
        for argument, record, number in zip(arguments, records, numbers, strict=False):
            try:
                result = call(argument, record)
            except BaseException as error:  # noqa: BLE001
                self._fail(number, error)
                continue
            if type(result) in known:
                rows.append(result)
                of_rows.append(number)
            elif result is not None:
                self._add(result, number)

    async def await_each(
        self,
        call: Callable[..., Awaitable[Any]],
        arguments: Sequence[list[Any]],
        numbers: list[int],
    ) -> int:
        """Do as `call_each` with a coroutine function: one call after the other."""
        calls = 0
        for number, *items in zip(numbers, *arguments, strict=False):
            calls += 1
            try:
                result = await call(*items)
            except BaseException as error:  # noqa: BLE001
                self._fail(number, error)
                continue
            if type(result) in self._known:
                self.rows.append(result)
                self.numbers.append(number)
            elif result is not None:
                self._add(result, number)
            if self._first is None and self.rows:
                self._note_first()
        self._require_unchanged()
        return calls

    def _note_first(self) -> None:
        """Keep a copy of the first row: a function that fills one dict anew for each record changes it."""
        if self._first is None and type(row := self.rows[0]) is dict:
            self._first = row.copy()

    def _require_unchanged(self) -> None:
        """Raise StrategyError if the function has changed the first row after it returned it."""
        if (first := self._first) is None:
            return
        row = self.rows[0]
        if row.keys() != first.keys() or any(row[name] is not first[name] for name in first):
            changed = next(
                (name for name in row if name not in first or row[name] is not first[name]), ""
            )
            raise StrategyError(
                f"the map changed the row of a record after it had returned it (column {excerpt(changed)}): "
                "it fills one dict for several records, which would all be stored as the last of them; make "
                "a new dict for each record"
            )

    def _fail(self, number: int, error: BaseException) -> None:
        if isinstance(error, StrategyError):
            self._fatal = error
            raise error
        self.failures.append(self._describe(number, as_exception(error)))

    def _add(self, result: Any, number: int) -> None:
        """Add rows of any form; those that a generator makes are made now."""
        try:
            if type(result) is list and self._known.issuperset(map(type, result)):
                several = result
            else:
                several = rows_of(result)
                self._known.update(filter(is_plain, set(map(type, several))))
        except BaseException as error:  # noqa: BLE001
            self._fail(number, error)
            return
        self.rows += several
        self.numbers += [number] * len(several)
