"""The columns that files of a destination have, so that all files have the same types."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ...columns.fitted import TargetColumn
from ...columns.fitting import fit, fit_field
from ...columns.kinds import has_values, is_list, whole
from ...columns.reasons import count_values, fields_left_out
from ...errors import StrategyError
from ..choosing import Choice

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from ...columns.fitted import Fitted

_DIGITS_OF_128_BITS: Final = 38
_MOST_DIGITS: Final = 76


def stored_type(kind: Any) -> Any:
    """Return the type that a file has for an Arrow type; None if that shows none yet.

    Nulls, empty lists and empty objects show no type; nested ones are left out. Parquet has no run ends,
    views of lists, intervals, seconds, bytes of length 0 and decimals that end before the point.

    Raises:
        StrategyError: Parquet has no unions, and no decimals of more than 76 digits.
    """
    if not has_values(kind):
        return None
    if pa.types.is_struct(kind):
        known = [(each.name, stored_type(each.type)) for each in kind if has_values(each.type)]
        return pa.struct(known)  # Arrow writes no null object whose fields cannot be null
    if pa.types.is_map(kind):
        return pa.map_(stored_type(kind.key_type), stored_type(kind.item_type))
    if is_list(kind):
        item = kind.field(0).with_type(stored_type(kind.value_type))
        return pa.large_list(item) if pa.types.is_large_list(kind) else pa.list_(item)
    if pa.types.is_interval(kind):
        return pa.string()
    if pa.types.is_timestamp(kind) and kind.unit == "s":
        return pa.timestamp("ms", kind.tz)
    if pa.types.is_fixed_size_binary(kind) and not kind.byte_width:
        return pa.binary()
    if pa.types.is_decimal(kind) and kind.scale < 0:
        return _whole_numbers(kind)
    if pa.types.is_union(kind):
        raise StrategyError(f"Parquet has no type for {kind}: return its values as columns or text")
    return stored_type(kind.value_type) if pa.types.is_run_end_encoded(kind) else kind


def _whole_numbers(kind: Any) -> Any:
    """Return decimals with all digits before the point for those that end before it."""
    digits = kind.precision - kind.scale
    if digits > _MOST_DIGITS:
        raise StrategyError(f"Parquet has no type for {kind}: it has {digits} digits")
    return pa.decimal128(digits, 0) if digits <= _DIGITS_OF_128_BITS else pa.decimal256(digits, 0)


def target_of(column: pa.Field[Any]) -> TargetColumn:
    """Return what a column takes: the values of its type."""
    return TargetColumn(column.name, str(column.type), partial(fit_field, field=column))


@dataclass(slots=True)
class DestinationColumns:
    """The columns of a destination that are known so far. Threads may share it.

    A new column, or a new nested field, is added to the files that follow, with the type of its first values.

    Attributes:
        destination: its name, for messages.
        schema: the columns; None before the first rows.
        reread: reads a table's columns again; rows must not have others, and nested fields that it lacks are
            left out. None: new ones are allowed.
        stored: returns the type that the destination has for an Arrow type; None: it has none yet. Raises
            StrategyError: it can have none.
        target: returns what a column takes.
        taken: names that no new column may have, in any case, nor those of known columns, as Spark reads
            them; None: case matters.
        letters: the rows are failed records, of which a value that does not fit is replaced.
    """

    destination: str
    schema: pa.Schema | None = None
    reread: Callable[[], pa.Schema] | None = None
    stored: Callable[[Any], Any] = stored_type
    target: Callable[[pa.Field[Any]], TargetColumn] = target_of
    taken: Collection[str] | None = None
    letters: bool = False
    _lock: Lock = field(default_factory=Lock)

    def fit(self, rows: pa.Table) -> Fitted:
        """Cast rows to the known columns.

        Refused are values in a column that a table does not have, or for which there is no type, and nulls
        in one that cannot be null.
        """
        with self._lock:
            schema, problems = self._known(rows.schema)
            if self.reread is None:
                self.schema = schema
        targets = [self.target(each) for each in schema]
        fitted = Choice((), problems=problems).fit(rows, targets, letters=self.letters)
        if not targets:
            reason = f"{self.destination} has no column for it yet: it has no value but empty ones"
            refused = dict.fromkeys(range(rows.num_rows), reason) | fitted.refused
            return fitted._replace(refused=refused)
        left_out = {path: count for path, count in _left_out(rows, schema, set(problems)) if count}
        # a refused row has null where none may be
        cast = fitted.table.cast(pa.schema([each.with_nullable(nullable=True) for each in schema]))
        table = pa.Table.from_arrays(cast.columns, schema=schema)
        return fitted._replace(table=table, left_out=left_out)

    def learn_whole_numbers(self, rows: pa.Table, name: str) -> None:
        """Take a new column of whole numbers as one of integers, though other numbers are beside them."""
        with self._lock:
            known = pa.schema([]) if self.schema is None else self.schema
            if name in known.names or name not in rows.column_names:
                return
            column = whole(rows.column(name))
            if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
                bad = fit(column, pa.int64()).bad
                if column.null_count + (0 if bad is None else int(bad.sum())) < len(column):
                    self.schema = known.append(pa.field(name, pa.int64()))

    def _known(self, rows: pa.Schema) -> tuple[pa.Schema, dict[str | None, str]]:
        """Return the columns, with those that rows add, and why there are no columns for others of them."""
        known = pa.schema([]) if self.schema is None else self.schema
        problems: dict[str | None, str] = {}
        if self.reread is not None:
            if self.schema is None or self._unknown(rows, known):
                known = self.schema = self.reread()
            for name in self._unknown(rows, known):
                problems[name] = (
                    f"{self.destination} has no column {name}; its columns are "
                    f"{', '.join(known.names)}. Alter the table, or return other columns"
                )
        for each in rows:
            at = known.get_field_index(each.name)
            if at >= 0:
                if self.reread is None:
                    known = known.set(at, _with_fields_of(known.field(at), each.type, self.stored))
            elif each.name not in problems:
                try:
                    if (kind := self._new(each, known)) is not None:
                        known = known.append(pa.field(each.name, kind))
                except StrategyError as error:
                    problems[each.name] = f"column {each.name} of {self.destination}: {error}"
        return known, problems

    def _new(self, column: pa.Field[Any], known: pa.Schema) -> Any:
        """Return its type; None if it has none yet. Raises StrategyError if it can have none."""
        kind = self.stored(column.type)
        if self.taken is not None and (not column.name or "`" in column.name):
            raise StrategyError("Spark reads no such name: rename it")
        for name in () if self.taken is None or kind is None else (*self.taken, *known.names):
            if name.lower() == column.name.lower():
                raise StrategyError(
                    f"the name is taken by {name}: names differ by more than their case"
                )
        return kind

    def _unknown(self, rows: pa.Schema, known: pa.Schema) -> list[str]:
        return [
            each.name for each in rows if each.name not in known.names and has_values(each.type)
        ]


def _with_fields_of(known: Any, kind: Any, stored: Callable[[Any], Any]) -> Any:
    """Return a field with the nested fields that a type of values adds; types that are known stay."""
    to = known.type
    if pa.types.is_struct(to) and pa.types.is_struct(kind):
        fields = {each.name: each for each in to}
        for each in kind:
            if each.name in fields:
                fields[each.name] = _with_fields_of(fields[each.name], each.type, stored)
            elif (of := stored(each.type)) is not None:
                fields[each.name] = pa.field(each.name, of)
        return known.with_type(pa.struct(list(fields.values())))
    if is_list(to) and is_list(kind) and not pa.types.is_fixed_size_list(to):
        item = _with_fields_of(to.field(0), kind.field(0).type, stored)
        return known.with_type(
            pa.large_list(item) if pa.types.is_large_list(to) else pa.list_(item)
        )
    if pa.types.is_map(to) and pa.types.is_map(kind):
        item = _with_fields_of(to.item_field, kind.item_type, stored)
        return known.with_type(pa.map_(to.key_type, item))
    return known


def _left_out(
    rows: pa.Table, schema: pa.Schema, refused: Collection[str | None]
) -> Iterator[tuple[str, int]]:
    for each in rows.schema:
        if each.name in refused:
            continue
        at = schema.get_field_index(each.name)
        paths = (
            [each.name] if at < 0 else fields_left_out(each.type, schema.field(at).type, each.name)
        )
        for path in paths:
            yield path, count_values(whole(rows.column(each.name)), path.removeprefix(each.name))
