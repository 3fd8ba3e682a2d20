"""Statements that make a table for the columns of rows, and that add columns to one.

The types are the inverse of `types.py`: every value of an Arrow type fits the type that is chosen here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from clickhouse_connect.driver.binding import quote_identifier

from ...columns.kinds import is_bytes, is_list, is_text
from ...columns.texts import UNITS
from ...errors import StrategyError
from ...record import OFFSET_COLUMNS
from .deduplication import REPLICATED, needed_settings
from .types import FLOATS, INTEGERS

if TYPE_CHECKING:
    from collections.abc import Iterable

TYPE_KEY: Final = b"clickhouse"
"""The key in the metadata of an Arrow field whose value is its ClickHouse type, such as `Enum8('a', 'b')`."""

_ENGINE: Final = re.compile(r"\w*MergeTree(\(.*\))?", re.DOTALL)
_TYPES: Final[dict[pa.DataType, str]] = {
    **{arrow: name for name, arrow in INTEGERS.items()},
    **{arrow: name for name, arrow in FLOATS.items()},
    pa.float16(): "Float32",
    pa.bool_(): "Bool",
    pa.date32(): "Date32",
    pa.date64(): "Date32",
}


@dataclass(frozen=True, slots=True)
class TableLayout:
    """How a table is made.

    Attributes:
        order_by: names of columns, or expressions. None: topic, partition and offset if the rows have
            them, else the first time that is never null.
        partition_by: an expression.
        ttl: an expression, such as `ts + INTERVAL 30 DAY`.
        engine: of the MergeTree family. None: MergeTree, or with a cluster ReplicatedMergeTree.
        cluster: the statements run on every server of it.

    Raises:
        StrategyError: the engine is of another family.
    """

    order_by: tuple[str, ...] | None = None
    partition_by: str | None = None
    ttl: str | None = None
    engine: str | None = None
    cluster: str | None = None

    def __post_init__(self) -> None:
        if self.engine is not None and not _ENGINE.fullmatch(self.engine):
            raise StrategyError(
                f"ClickHouseWriter: engine={self.engine!r} does not recognise a repeated INSERT; use one of "
                "the MergeTree family, or create the table yourself"
            )

    @property
    def on_cluster(self) -> str:
        """The clause ` ON CLUSTER ...`; empty without a cluster."""
        return "" if self.cluster is None else f" ON CLUSTER {quote_identifier(self.cluster)}"


def create_table(database: str, name: str, schema: pa.Schema, layout: TableLayout) -> str:
    """Return the CREATE TABLE for rows with the columns of a schema.

    A column that may be null is Nullable, except those of `order_by` and topic, partition and offset: a null
    in one of them goes to `reduce_err`. The table remembers as many inserts as exactly once needs.

    Raises:
        StrategyError: the schema is empty, or ClickHouse has no type for a column.
    """
    if not len(schema):
        raise StrategyError(f"the rows for {database}.{name} have no columns: declare some")
    engine = layout.engine or ("MergeTree" if layout.cluster is None else "ReplicatedMergeTree")
    coordinates = _coordinates(schema)
    order = coordinates or _times(schema)[:1] if layout.order_by is None else list(layout.order_by)
    never_null = {*order, *coordinates}
    if coordinates[:1] == ["topic"] and schema.field("topic").type == pa.string():
        few = schema.field("topic").with_type(pa.dictionary(pa.int32(), pa.string()))
        schema = schema.set(schema.get_field_index("topic"), few)
    columns = [
        _definition(field, nullable=field.nullable and field.name not in never_null)
        for field in schema
    ]
    key = ", ".join(quote_identifier(each) if each in schema.names else each for each in order)
    settings = needed_settings(replicated=engine.startswith(REPLICATED))
    table = f"{quote_identifier(database)}.{quote_identifier(name)}"
    return "\n".join(
        (
            f"CREATE TABLE IF NOT EXISTS {table}{layout.on_cluster}",
            "(",
            ",\n".join(f"    {column}" for column in columns),
            ")",
            f"ENGINE = {engine}",
            *([f"PARTITION BY {layout.partition_by}"] if layout.partition_by else []),
            f"ORDER BY ({key})" if order else "ORDER BY tuple()",
            *([f"TTL {layout.ttl}"] if layout.ttl else []),
            "SETTINGS " + ", ".join(f"{name} = {value}" for name, value in settings.items()),
        )
    )


def add_columns(table: str, fields: Iterable[pa.Field[pa.DataType]], layout: TableLayout) -> str:
    """Return the ALTER TABLE that adds columns, where they are missing; each may be null.

    Args:
        table: the table's name, quoted.

    Raises:
        StrategyError: ClickHouse has no type for a column.
    """
    added = ", ".join(
        f"ADD COLUMN IF NOT EXISTS {_definition(field, nullable=True)}" for field in fields
    )
    return f"ALTER TABLE {table}{layout.on_cluster} {added}"


def column_type(kind: pa.DataType, *, nullable: bool = False) -> str:
    """Return the ClickHouse type for an Arrow type. Arrays, maps and tuples cannot be null themselves.

    Raises:
        StrategyError: there is none.
    """
    if pa.types.is_dictionary(kind):
        inner = column_type(kind.value_type, nullable=nullable)
        return f"LowCardinality({inner})" if is_text(kind.value_type) else inner
    if isinstance(kind, pa.UuidType):
        name = "UUID"
    elif isinstance(kind, pa.BaseExtensionType):
        return column_type(kind.storage_type, nullable=nullable)
    elif pa.types.is_run_end_encoded(kind):
        return column_type(kind.value_type, nullable=nullable)
    elif pa.types.is_map(kind):
        return f"Map({column_type(kind.key_type)}, {_of_field(kind.item_field)})"
    elif is_list(kind):
        return f"Array({_of_field(kind.field(0))})"
    elif pa.types.is_struct(kind) and kind.num_fields:
        # A tuple is never null: a null object is one of nulls.
        fields = (each.with_nullable(nullable or each.nullable) for each in kind)
        elements = (f"{quote_identifier(each.name)} {_of_field(each)}" for each in fields)
        return f"Tuple({', '.join(elements)})"
    else:
        name = _scalar(kind)
    return f"Nullable({name})" if nullable else name


def _scalar(kind: pa.DataType) -> str:
    if kind in _TYPES:
        return _TYPES[kind]
    if pa.types.is_timestamp(kind):
        return f"DateTime64({3 * tuple(UNITS).index(kind.unit)}, 'UTC')"
    if pa.types.is_decimal(kind):
        scale = max(0, kind.scale)
        return f"Decimal({max(kind.precision + scale - kind.scale, scale)}, {scale})"
    if pa.types.is_fixed_size_binary(kind):
        return f"FixedString({kind.byte_width})"
    if is_text(kind) or is_bytes(kind) or pa.types.is_time(kind) or pa.types.is_interval(kind):
        return "String"
    if pa.types.is_duration(kind):
        return "Int64"
    raise StrategyError(f"ClickHouse has no type for Arrow's {kind}")


def _of_field(field: pa.Field[pa.DataType]) -> str:
    stated = (field.metadata or {}).get(TYPE_KEY)
    return stated.decode() if stated else column_type(field.type, nullable=field.nullable)


def _definition(field: pa.Field[pa.DataType], *, nullable: bool) -> str:
    name = quote_identifier(field.name)
    try:
        kind = _of_field(field.with_nullable(nullable))
    except StrategyError as error:
        raise StrategyError(
            f"column {field.name}: {error}; state its type: pa.field(..., metadata={{'clickhouse': "
            "'String'}})"
        ) from error
    default = ""
    if nullable and kind.startswith("Array("):
        default = " DEFAULT []"
    elif nullable and kind.startswith("Map("):
        default = " DEFAULT map()"
    elif nullable and kind.startswith("Tuple("):
        default = f" DEFAULT defaultValueOfTypeName({quote_text(kind)})"
    return f"{name} {kind}{default}"


def quote_text(text: str) -> str:
    """Quote a text for SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _coordinates(schema: pa.Schema) -> list[str]:
    """Return the columns by which a range that may have been written is counted."""
    if not {"partition", "offset"} <= set(schema.names):
        return []
    return [name for name in OFFSET_COLUMNS if name in schema.names]


def _times(schema: pa.Schema) -> list[str]:
    return [
        field.name
        for field in schema
        if not field.nullable
        and (pa.types.is_timestamp(field.type) or pa.types.is_date(field.type))
    ]
