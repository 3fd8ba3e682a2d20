"""Formats whose values become objects of the user's type: the base of `Json` and `MessagePack`."""

from __future__ import annotations

from abc import abstractmethod
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec
import pyarrow as pa
from msgspec import inspect

from ..columns.kinds import whole
from ..columns.texts import excerpt, python_values
from ..errors import StrategyError, as_exception
from .encoding import DoesNotFit, dict_of, encode_each, fit_rows, refuse
from .lost_digits import DigitSearch
from .schemas import hints_of, item_of, nested_columns, row_type
from .value_format import Decoded, DecodedObjects, ValueFormat, is_bad_utf8, reason_of_value

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Collection, Iterator, Sequence

    from .conversions import Convert
    from .schemas import RowType, SchemaField

Source: TypeAlias = "type | pa.Schema"
"""A type whose fields are columns."""


class TypedFormat(ValueFormat):
    """Values of one type, decoded one by one to objects, and from these to columns.

    Args:
        type: a msgspec Struct, dataclass, TypedDict, pydantic model or `pyarrow.Schema`.

    Raises:
        StrategyError: a field has no type of column.
    """

    def __init__(self, type: Source) -> None:  # noqa: A002  the user's word
        self._type = type
        row_type(type)

    @property
    def type(self) -> Source:
        """The type of the values."""
        return self._type

    @property
    def rows(self) -> RowType:
        """The type as columns."""
        return row_type(self.type)

    @property
    def schema(self) -> pa.Schema:
        """The columns of `decode`: the fields of the type."""
        return self.rows.schema

    @property
    def decodes_singly(self) -> bool:
        return True

    def __str__(self) -> str:
        name = getattr(self.type, "__qualname__", type(self.type).__name__)
        return f"{type(self).__name__}({name})"

    def encode(self, rows: pa.Table, topic: str) -> pa.BinaryArray:
        """Encode each row as a map of the type's fields, so that `decode` reads it as it is.

        Raises:
            StrategyError: the type has no such columns.
            RowsDoNotFit: the type, or the encoding, cannot hold a value.
        """
        fitted = fit_rows(rows, self.schema, str(self))
        make = encoded_fields(self.rows.columns, fitted)
        values = [python_values(whole(column), in_utc=True) for column in fitted.columns]
        encoded = encode_each(zip(*values, strict=True), lambda row: self._encode(make(row)))
        if not self.takes_all(fitted.column_names):
            refuse(self.decode(encoded).failures)
        return encoded

    def takes_all(self, names: Collection[str]) -> bool:
        """Return whether `decode` takes all values of the columns, so that `encode` need not ask it."""
        return False

    def _encode(self, row: dict[str, Any]) -> bytes:
        try:
            return self.encode_one(row)
        except (TypeError, ValueError, OverflowError) as error:
            for name, value in row.items():
                try:
                    self.encode_one({name: value})
                except (TypeError, ValueError, OverflowError):
                    raise DoesNotFit(
                        f"field {name} cannot hold {excerpt(value)}: {error}"
                    ) from error
            raise

    def encode_one(self, value: Any) -> bytes:
        """Encode one value. Raises StrategyError, which is the default: the format cannot be written."""
        raise StrategyError(f"{type(self).__name__} cannot be written: it has no `encode_one`")

    @property
    @abstractmethod
    def decoder(self) -> Callable[[Any], Any]:
        """The function that decodes one value to an object of the type, or raises any exception."""

    @abstractmethod
    def decode_as(self, cls: builtins.type, value: bytes) -> object:
        """Decode one value to an object of a msgspec type."""

    def reason(self, value: Any, error: Exception) -> str:
        """Describe why a value cannot be decoded; name the field."""
        if is_bad_utf8(error):  # it does not say which
            for name, probe in _probes(self.type):
                try:
                    self.decode_as(probe, value)
                except (msgspec.MsgspecError, UnicodeDecodeError) as found:
                    if is_bad_utf8(found):  # else the field is wrong too
                        return f"field {name}: invalid UTF-8"
        return reason_of_value(error, lambda: self.document(value))

    def document(self, value: Any) -> Any:
        """Decode one value without its type, for messages. May raise any exception."""
        return self.decode_as(cast("builtins.type", Any), value)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode values to columns; see `ValueFormat.decode`."""
        objects, failures = self.decode_objects(values)
        columns, misfits = self.rows.to_columns(objects)
        if misfits:  # a row that failed holds nulls
            objects = [None if row in misfits else each for row, each in enumerate(objects)]
            columns, _ = self.rows.to_columns(objects)
        return Decoded(columns, misfits | failures)

    def decode_objects(self, values: pa.BinaryArray) -> DecodedObjects:
        """Decode values to objects; see `ValueFormat.decode_objects`."""
        given = values.to_pylist()
        objects: list[Any] = []
        failures: dict[int, str] = {}
        rest = iter(given)
        while len(objects) < len(given):
            failure: Exception = (
                StopIteration()
            )  # of a validator: it ends `extend` as if all were done
            try:
                objects.extend(map(self.decoder, rest))  # keeps those before an error
            except BaseException as error:  # noqa: BLE001  a model's own validators may raise anything
                failure = as_exception(error)
            if len(objects) < len(given):
                text = given[len(objects)]
                if text is not None:
                    failures[len(objects)] = self.reason(text, failure)
                objects.append(None)
        for row, reason in self.rounded(values, self.digits):
            if objects[row] is not None:
                objects[row], failures[row] = None, reason
        return DecodedObjects(objects, failures)

    @property
    def digits(self) -> DigitSearch:
        """What `rounded` searches values with."""
        return DigitSearch.of(self.type)

    def rounded(self, values: pa.BinaryArray, search: DigitSearch) -> Iterator[tuple[int, str]]:
        """Yield the rows whose objects have a time or a float that was rounded, with the reasons."""
        return iter(())


def encoded_fields(
    columns: Sequence[SchemaField], rows: pa.Table
) -> Callable[[Sequence[Any]], dict[str, Any]]:
    """Return a function that makes the values of a row a dict with the names that encoded fields have."""
    named = {column.name: column for column in columns}
    fields = [
        (named[name], _with_keys(named[name].kind, named[name].type, name))
        for name in rows.column_names
    ]
    if all(convert is None and not field.left_out for field, convert in fields):
        keys = [field.key for field, _ in fields]
        return lambda row: dict(zip(keys, row))  # noqa: B905  a keyword takes as long as the rest

    def make(row: Sequence[Any]) -> dict[str, Any]:
        return {
            field.key: value if convert is None or value is None else convert(value)
            for (field, convert), value in zip(fields, row, strict=True)
            if value is not None or not field.left_out
        }

    return make


def _with_keys(kind: inspect.Type, type_: Any, path: str) -> Convert | None:
    """Return a function that gives objects the names of encoded fields, and makes maps dicts."""
    match kind:
        case inspect.DictType():
            item, _, _ = item_of(kind.value_type)
            convert = _with_keys(item, type_.item_type, path) or (lambda value: value)
            return lambda pairs: {
                key: None if value is None else convert(value)
                for key, value in dict_of(pairs, path).items()
            }
        case (
            inspect.ListType()
            | inspect.SetType()
            | inspect.FrozenSetType()
            | inspect.VarTupleType()
        ):
            item, _, _ = item_of(kind.item_type)
            each = _with_keys(item, type_.value_type, path)
            return each and (lambda items: [None if one is None else each(one) for one in items])
        case _ if pa.types.is_struct(type_):
            fields = [
                (field, _with_keys(field.kind, field.type, f"{path}.{field.name}"))
                for field in nested_columns(kind, type_)
            ]
            return lambda row: {
                field.key: value if convert is None or value is None else convert(value)
                for field, convert in fields
                if (value := row[field.name]) is not None or not field.left_out
            }
        case _:
            return None


@lru_cache(maxsize=256)
def _probes(source: Source) -> tuple[tuple[str, type], ...]:
    """Return a class for each field that has only this field."""
    rows = row_type(source)
    hints = hints_of(rows.cls)
    return tuple(
        (
            column.key,
            msgspec.defstruct(
                "probe", [("f", hints[column.attribute], None)], rename={"f": column.key}
            ),
        )
        for column in rows.columns
    )
