"""`Lookup`: which topic is a table for maps, and what names its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ..arguments import Checked
from ..errors import StrategyError
from ..values.debezium.change import CONTROL
from ..values.value_format import ValueFormat

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_BYTES: Final = 1024 * 1024 * 1024


class Lookup(metaclass=Checked):
    """A compacted topic as a table: a map looks up rows of it by their key.

    Every worker reads the whole topic before its first record, and follows it from then on. A record is the
    newest row of its key; a record without a value deletes the row that the last record with its key made.

    A per-record map gets the table by the name of its parameter: `customers.get(key)` returns the value as
    the object that a map of that topic would get, or None. `customers[key]` raises, so that the record
    fails. A per-batch map gets it too: `customers.join(batch, on="customer_id")` adds columns.

    Example:
        ```python
        import msgspec
        from kmr import Json, Lookup, Strategy
        from kmr.sinks import StreamWriter

        class Customer(msgspec.Struct):
            id: int
            country: str

        class Order(msgspec.Struct):
            number: int
            customer_id: int

        def enriched(order: Order, customers) -> dict:
            customer = customers.get(order.customer_id)
            return {"number": order.number, "country": customer and customer.country}

        strategy = Strategy(
            value=Json(Order),
            map=enriched,
            tables={"customers": Lookup("customers", key="id", value=Json(Customer))},
            reduce=StreamWriter("stdout"),
        )
        ```

    Args:
        topic: the compacted topic.
        key: the field of the value that names a row, or several: then a key is a tuple.
        value: the format of the values, also `Debezium(...)`.
        max_bytes: the most memory of one process, estimated; a table that grows beyond it ends the worker.

    Raises:
        StrategyError: an argument is not allowed.
    """

    def __init__(
        self,
        topic: str,
        *,
        key: str | Sequence[str],
        value: ValueFormat,
        max_bytes: int = _MAX_BYTES,
    ) -> None:
        if not topic:
            raise StrategyError("Lookup: the name of the topic is empty")
        if not isinstance(value, ValueFormat):
            raise StrategyError(f"Lookup: value={value!r} is not a format: pass Json(...)")
        if max_bytes < 1:
            raise StrategyError(f"Lookup: max_bytes must be at least 1, not {max_bytes}")
        self.topic = topic
        self.keys = (key,) if isinstance(key, str) else tuple(key)
        self.value = value
        self.max_bytes = max_bytes
        if not self.keys:
            raise StrategyError("Lookup: key= names no field")
        for name in self.keys:
            if name not in self.columns.names:
                raise StrategyError(
                    f"Lookup: {value!r} has no field {name}, which key= names; "
                    f"it has {', '.join(self.columns.names)}"
                )

    @property
    def columns(self) -> pa.Schema:
        """The columns of the table."""
        control = CONTROL if self.value.is_changes else ()
        return pa.schema([field for field in self.value.schema if field.name not in control])

    def __str__(self) -> str:
        return f"topic {self.topic}, by {' and '.join(self.keys)}"
