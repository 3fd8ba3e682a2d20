"""User types as columns: msgspec Struct, dataclass, TypedDict, attrs, pydantic model, pyarrow.Schema.

`row_type` is the only place that knows which annotation becomes which type of column; docs/typed-values.md
has the table.
"""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from operator import attrgetter
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    NotRequired,
    Required,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import msgspec
import pyarrow as pa
from msgspec import inspect

from ..errors import StrategyError, as_exception, reason_of
from .conversions import converted, enum_value, fields_converted, listed, mapped, uuid_text
from .python_columns import to_column
from .row_classes import checks_values, is_pydantic, is_row_class

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from .conversions import Convert

_pa: Any = pa

_PLAIN: Final[dict[type, pa.DataType]] = {
    inspect.BoolType: pa.bool_(),
    inspect.IntType: pa.int64(),
    inspect.FloatType: pa.float64(),
    inspect.StrType: pa.string(),
    inspect.BytesType: pa.binary(),
    inspect.ByteArrayType: pa.binary(),
    inspect.DateTimeType: pa.timestamp("us", tz="UTC"),
    inspect.DateType: pa.date32(),
    inspect.TimeType: pa.time64("us"),
    inspect.TimeDeltaType: pa.duration("us"),
    inspect.DecimalType: pa.decimal128(38, 18),
}
_UNCHECKED: Final = [
    inspect.BoolType(), inspect.IntType(), inspect.FloatType(), inspect.StrType(),
]  # fmt: skip
NAMED_BY_KEYS: Final = "__kmr_schema__"
"""Marks a class whose columns have the names of its encoded fields."""

_ANY_FORM: Final = "for values of any form leave value= out, and decode record.value in the map"
_TUPLES: Final = 512  # rows at a time: the processor's cache has all of their fields
_EMPTY: Final = (list, dict, set, frozenset, tuple)
"""Functions that make the same default each time."""

_BOUNDS: Final = {
    f"{sign}int{bits}": (
        (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        if not sign
        else (0, 2**bits - 1 if bits < 64 else None)
    )
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}


@dataclass(frozen=True, slots=True)
class SchemaField:
    """One field of a row.

    Attributes:
        name: of the column: the attribute's name, or the field's in a `pyarrow.Schema`.
        attribute: of the objects of the row's class.
        key: the field's name in an encoded value (msgspec's `rename`, pydantic's alias).
        kind: the annotation without None, as msgspec describes it.
        type: of the column.
        nullable: None is allowed, or the field may be missing without a default.
        required: a value without this field cannot be decoded.
        default: the value of a missing field; `msgspec.NODEFAULT` if it is required or made by a function.
        convert: makes Arrow's Python value of the attribute's value; None: they are the same.
        left_out: it may be missing, but not None: encoders leave it out where the column is null.
        columns: the fields of a nested object; empty if it is none.
    """

    name: str
    attribute: str
    key: str
    kind: inspect.Type
    type: pa.DataType
    nullable: bool
    required: bool
    default: Any
    convert: Convert | None
    left_out: bool = False
    columns: tuple[SchemaField, ...] = ()

    @property
    def field(self) -> pa.Field[Any]:
        """The column in a schema."""
        return pa.field(self.name, self.type, nullable=self.nullable)


class RowType:
    """A user's type as columns.

    Args:
        source: the user's type.
        cls: the class of one row; it is another one than `source` only for a `pyarrow.Schema`.
        info: how msgspec describes the class; None for a pydantic model.
    """

    def __init__(
        self,
        source: type | pa.Schema,
        cls: type,
        columns: tuple[SchemaField, ...],
        info: inspect.Type | None,
    ) -> None:
        self.source = source
        self.cls = cls
        self.columns = columns
        self.info = info
        self.schema = pa.schema([column.field for column in columns])
        if not columns:
            raise StrategyError(
                f"{getattr(source, '__qualname__', 'the schema')} has no fields, so no columns"
            )

    @property
    def is_pydantic(self) -> bool:
        """Whether the model itself has to decode and check values."""
        return is_pydantic(self.cls)

    @property
    def instances(self) -> type:
        """The class of the objects: a TypedDict's are plain dicts."""
        return dict if is_typeddict(self.cls) else self.cls

    def take_all(self, names: Collection[str]) -> bool:
        """Return whether msgspec decodes all values of the columns: the class and its fields check none."""
        checks = self.info is None or checks_values(self.cls, self.info)
        return not checks and all(
            column.type == _PLAIN.get(type(column.kind)) and column.kind in _UNCHECKED
            if column.name in names
            else not column.required
            for column in self.columns
        )

    def to_columns(self, rows: Sequence[Any]) -> tuple[pa.RecordBatch, dict[int, str]]:
        """Convert objects of the class (or None: a row of nulls) to columns.

        Returns:
            The columns, and the reason for each row with a value that does not fit; that value is null.
        """
        failures: dict[int, str] = {}
        return self.from_values(self._attributes(rows, failures), failures), failures

    def from_values(
        self, values_of_columns: Iterable[list[Any]], failures: dict[int, str]
    ) -> pa.RecordBatch:
        """Convert the values of each field; `failures` gets the reasons of rows, as those of `to_columns`."""
        arrays = []
        for column, values in zip(self.columns, values_of_columns, strict=True):
            refused: dict[int, str] = {}
            if column.convert is not None:
                declared = getattr(column.kind, "cls", None)
                name = str(column.type) if declared is None else declared.__name__
                values = converted(values, column.convert, name, refused)
            arrays.append(to_column(values, column.type, refused))
            for row, reason in refused.items():
                failures.setdefault(row, f"field {column.name}: {reason}")
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _attributes(self, rows: Sequence[Any], failures: dict[int, str]) -> Iterable[list[Any]]:
        """Return the values of each column; None of a row whose object has none, with the reason."""
        names = tuple(column.attribute for column in self.columns)
        if is_typeddict(self.cls):
            return ([None if row is None else row.get(name) for row in rows] for name in names)
        if names == getattr(self.cls, "__struct_fields__", None):
            with suppress(TypeError, AttributeError):  # some are None
                return _transposed(rows, len(names))
        return (_attribute(rows, name, failures) for name in names)


def _transposed(structs: Sequence[Any], fields: int) -> list[list[Any]]:
    """Return the values of each field; twice as fast as one field after the other."""
    columns: list[list[Any]] = [[] for _ in range(fields)]
    for start in range(0, len(structs), _TUPLES):
        tuples = map(msgspec.structs.astuple, structs[start : start + _TUPLES])
        for column, values in zip(columns, zip(*tuples, strict=True), strict=True):
            column += values
    return columns


def _attribute(rows: Sequence[Any], name: str, failures: dict[int, str]) -> list[Any]:
    get = attrgetter(name)
    try:
        return list(map(get, rows))
    except BaseException:  # noqa: BLE001  some are None, or lack it, or a property raises
        values: list[Any] = []
    for row, each in enumerate(rows):
        try:
            values.append(None if each is None else get(each))
        except BaseException as error:  # noqa: BLE001
            failures.setdefault(row, f"field {name}: {reason_of(as_exception(error))}")
            values.append(None)
    return values


def nested_columns(kind: Any, type_: Any) -> tuple[SchemaField, ...]:
    """Return the fields of a nested object, with the types of its struct."""
    name = kind.cls.__name__
    if isinstance(kind, inspect.CustomType):
        columns = _of_pydantic(kind.cls, name, ())
    else:
        columns = _of_fields(kind.cls, kind, name, ())
    return tuple(_retyped(*pair) for pair in zip(columns, type_, strict=True))


def hints_of(cls: type) -> dict[str, Any]:
    """Return the annotations of a class's fields; a TypedDict's without Required and NotRequired."""
    hints = get_type_hints(cls, include_extras=True)
    return {
        name: get_args(each)[0] if get_origin(each) in (NotRequired, Required) else each
        for name, each in hints.items()
    }


def item_of(kind: inspect.Type) -> tuple[inspect.Type, bool, Convert | None]:
    """Return the annotation of items without None, whether it had None, and how Arrow's values are made."""
    bare, nullable = _without_none(kind)
    return bare, nullable, _arrow(bare, "item", ())[1]


def row_type(source: type | pa.Schema) -> RowType:
    """Return a user's type as columns. The same type gives the same object.

    Raises:
        StrategyError: it is no such type, or a field has no type of column; the message names the field.
    """
    if not isinstance(source, pa.Schema) and not is_row_class(source):
        name = getattr(source, "__qualname__", repr(source))
        raise StrategyError(
            f"{name} cannot be columns: give a msgspec.Struct, dataclass, TypedDict, class of attrs, "
            f"pydantic model or pyarrow.Schema; {_ANY_FORM}"
        )
    return _row_type(source)


@lru_cache(maxsize=256)
def _row_type(source: type | pa.Schema) -> RowType:
    if isinstance(source, pa.Schema):
        return _of_schema(source)
    if is_pydantic(source):
        return RowType(source, source, _of_pydantic(source, source.__name__, ()), None)
    try:
        info = inspect.type_info(source)
    except (TypeError, NameError) as error:
        raise StrategyError(f"{source.__qualname__} cannot be columns: {error}") from error
    return RowType(source, source, _of_fields(source, info, source.__name__, ()), info)


def _within(cls: type, path: str, outer: tuple[type, ...]) -> tuple[type, ...]:
    """Return the classes around the fields of a class. Raises StrategyError: it is one of them already."""
    if cls in outer:
        raise StrategyError(
            f"{path}: {cls.__qualname__} contains itself, which columns cannot; leave the field out of the "
            f"type, or {_ANY_FORM}"
        )
    return (*outer, cls)


def _of_fields(
    cls: type, info: inspect.Type, path: str, outer: tuple[type, ...]
) -> tuple[SchemaField, ...]:
    outer = _within(cls, path, outer)
    fields = getattr(info, "fields", None)
    if fields is None or getattr(info, "array_like", False):
        raise StrategyError(
            f"{path} cannot be columns: it is encoded without the names of its fields"
        )
    columns = {}
    for each in fields:
        columns[each.name] = _column(
            each.name,
            each.encode_name,
            each.type,
            path,
            outer,
            name=each.encode_name if hasattr(cls, NAMED_BY_KEYS) else each.name,
            required=each.required,
            default=each.default,
            factory=each.default_factory,
        )
    # msgspec sorts the fields of a TypedDict.
    order = (
        [name for name in get_type_hints(cls) if name in columns] if is_typeddict(cls) else columns
    )
    return tuple(columns[name] for name in order)


def _column(
    attribute: str,
    key: str,
    kind: inspect.Type,
    path: str,
    outer: tuple[type, ...],
    *,
    name: str,
    required: bool,
    default: Any,
    factory: Any,
) -> SchemaField:
    kind, nullable = _without_none(kind)
    columns: tuple[SchemaField, ...] = ()
    convert: Convert | None
    if isinstance(kind, inspect.StructType | inspect.DataclassType | inspect.TypedDictType):
        columns = _of_fields(kind.cls, kind, f"{path}.{name}", outer)
        arrow, convert = _arrow_of_struct(kind.cls, columns)
    else:
        arrow, convert = _arrow(kind, f"{path}.{name}", outer)
    if factory in _EMPTY:
        default = factory()
    made = factory is not None and factory is not msgspec.NODEFAULT
    absent = (
        not required and not made and default is msgspec.NODEFAULT
    )  # NotRequired of a TypedDict
    return SchemaField(
        name=name,
        attribute=attribute,
        key=key,
        kind=kind,
        type=arrow,
        nullable=nullable or absent,
        required=required,
        default=None if absent else default,
        convert=convert,
        left_out=absent and not nullable,
        columns=columns,
    )


def _without_none(kind: inspect.Type) -> tuple[inspect.Type, bool]:
    """Return an annotation without None and without metadata, and whether it had None."""
    kind = _bare(kind)
    if not isinstance(kind, inspect.UnionType):
        return kind, False
    kinds = tuple(_bare(each) for each in kind.types if not isinstance(each, inspect.NoneType))
    return kinds[0] if len(kinds) == 1 else inspect.UnionType(kinds), kind.includes_none


def _bare(kind: inspect.Type) -> inspect.Type:
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    return kind


def _arrow(
    kind: inspect.Type, path: str, outer: tuple[type, ...]
) -> tuple[pa.DataType, Convert | None]:
    """Return the type of column for an annotation, and the function that makes Arrow's values of it."""
    if (plain := _PLAIN.get(type(kind))) is not None:
        return plain, None
    match kind:
        case inspect.UUIDType():
            return pa.string(), uuid_text
        case inspect.EnumType():
            values = [member.value for member in kind.cls]
            return _arrow_of_values(values, path), enum_value(kind.cls)
        case inspect.LiteralType():
            return _arrow_of_values(list(kind.values), path), None
        case inspect.UnionType() if {type(each) for each in kind.types} == {
            inspect.IntType,
            inspect.FloatType,
        }:
            return pa.float64(), None
        case (
            inspect.ListType()
            | inspect.SetType()
            | inspect.FrozenSetType()
            | inspect.VarTupleType()
        ):
            item, nullable = _without_none(kind.item_type)
            arrow, convert = _arrow(item, f"{path}[]", outer)
            made = pa.list_(pa.field("item", arrow, nullable=nullable))
            if convert is None and isinstance(kind, inspect.ListType):
                return made, None
            return made, listed(convert, str(made))
        case inspect.DictType():
            key, key_convert = _arrow(_without_none(kind.key_type)[0], f"{path}{{}}", outer)
            item, nullable = _without_none(kind.value_type)
            arrow, convert = _arrow(item, f"{path}{{}}", outer)
            of_map = _pa.map_(key, pa.field("value", arrow, nullable=nullable))
            return of_map, mapped(key_convert, convert)
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType():
            return _arrow_of_struct(kind.cls, _of_fields(kind.cls, kind, path, outer))
        case inspect.CustomType() if is_pydantic(kind.cls):
            return _arrow_of_struct(kind.cls, _of_pydantic(kind.cls, path, outer))
    raise StrategyError(f"{path}: {_described(kind)} is no type of column; {_remedy(kind)}")


def _described(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.UnionType):
        return " | ".join(_described(each) for each in kind.types)
    if isinstance(kind, inspect.CustomType):
        return kind.cls.__qualname__
    return type(kind).__name__.removesuffix("Type").lower()


def _remedy(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.UnionType):
        return "a union may only have None, or int with float, beside one type"
    if isinstance(kind, inspect.AnyType | inspect.RawType):
        return f"give the type of its values, or leave the field out; {_ANY_FORM}"
    return "docs/typed-values.md lists the types"


def _arrow_of_values(values: list[Any], path: str) -> pa.DataType:
    for cls, arrow in ((str, pa.string()), (int, pa.int64())):
        if values and all(type(value) is cls for value in values):
            return arrow
    raise StrategyError(f"{path}: its values must be all text or all integers, not {values!r}")


def _arrow_of_struct(cls: type, columns: tuple[SchemaField, ...]) -> tuple[pa.DataType, Convert]:
    return pa.struct([column.field for column in columns]), fields_converted(cls, columns)


def _of_pydantic(model: Any, path: str, outer: tuple[type, ...]) -> tuple[SchemaField, ...]:
    outer = _within(model, path, outer)
    columns = []
    for name, each in model.model_fields.items():
        try:
            kind = inspect.type_info(each.annotation)
        except (TypeError, NameError) as error:
            raise StrategyError(f"{path}.{name} cannot be a column: {error}") from error
        required = each.is_required()
        column = _column(
            name,
            each.alias or name,
            kind,
            path,
            outer,
            name=name,
            required=required,
            default=msgspec.NODEFAULT if required else each.default,
            factory=each.default_factory,
        )
        columns.append(column)
    return tuple(columns)


def _of_schema(schema: pa.Schema) -> RowType:
    """Make a class for the rows of a schema; its attributes are f0, f1, ..."""
    cls = _struct(list(schema), "row")
    info = inspect.type_info(cls)
    columns = tuple(
        _retyped(made, field)
        for made, field in zip(_of_fields(cls, info, "row", ()), schema, strict=True)
    )
    return RowType(schema, cls, columns, info)


def _retyped(column: SchemaField, field: pa.Field[Any]) -> SchemaField:
    """Give a column, and the fields of its objects, the types of a schema."""
    inner: Any = field.type if column.columns else ()
    columns = tuple(_retyped(*pair) for pair in zip(column.columns, inner, strict=True))
    return replace(column, type=field.type, columns=columns)


def _struct(fields: Iterable[pa.Field[Any]], path: str) -> type[msgspec.Struct]:
    members: list[Any] = []
    names = {}
    for position, field in enumerate(fields):
        attribute = f"f{position}"
        names[attribute] = field.name
        python = _python(field.type, f"{path}.{field.name}")
        members.append((attribute, python | None, None) if field.nullable else (attribute, python))
    try:
        return msgspec.defstruct(
            path, members, rename=names, kw_only=True, namespace={NAMED_BY_KEYS: True}
        )
    except ValueError as error:  # a name with a quote, for example, or two of one name
        raise StrategyError(
            f"{path}: values cannot be decoded to its fields: {reason_of(error)}"
        ) from None


def _python(kind: pa.DataType, path: str) -> Any:
    """Return the annotation whose values fit a type of column."""
    if (bounds := _BOUNDS.get(str(kind))) is not None:
        return Annotated[int, msgspec.Meta(ge=bounds[0], le=bounds[1])]
    types = _pa.types
    for fits, python in (
        (types.is_boolean, bool),
        (types.is_floating, float),
        (types.is_string, str),
        (types.is_large_string, str),
        (types.is_binary, bytes),
        (types.is_large_binary, bytes),
        (types.is_timestamp, dt.datetime),
        (types.is_date, dt.date),
        (types.is_time, dt.time),
        (types.is_duration, dt.timedelta),
        (types.is_decimal, Decimal),
    ):
        if fits(kind):
            return python
    some: Any = kind
    lists: Any = list
    maps: Any = dict
    if types.is_list(kind) or types.is_large_list(kind):
        item = _python(some.value_type, f"{path}[]")
        return lists[item | None if some.value_field.nullable else item]
    if types.is_map(kind):
        item = _python(some.item_type, f"{path}{{}}")
        key = _python(some.key_type, f"{path}{{}}")
        return maps[key, item | None if some.item_field.nullable else item]
    if types.is_struct(kind):
        return _struct(list(some), path)
    raise StrategyError(
        f"{path}: values cannot be decoded to {kind}; docs/typed-values.md lists the types"
    )
