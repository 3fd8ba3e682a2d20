"""`Lookup`: which topic or query is a table for maps, and what names its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from ..config.schema import Duration, parse_duration
from ..errors import StrategyError
from ..values.debezium.change import CONTROL
from ..values.value_format import ValueFormat, require_format
from .source import MAX_BYTES, AsOf, TableSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..kafka.connection import ConnectionConfig
    from .follower import Follower
    from .query import QueryLookup
    from .source import Missing


class Lookup(TableSource):
    """A compacted topic as a table: a map looks up rows of it by their key. `Lookup.query` is one of a query.

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
        missing: what `get(key)` and `join` do without a row. `null`: None, and nulls. `dead-letter`: the
            record fails, with the table and the key as its reason. In both a map may decide itself: by
            `get(key, default)`, or by `join(..., found="known")`, which adds a column that tells.
        wait: how long a record waits for the table, such as `"5s"`: until each partition of the topic has
            had a record that is not older, or for so long after its timestamp. An order that comes a moment
            before its customer finds it then. None: it does not wait.
        as_of: `record`: a record finds the last version whose timestamp is not after its own. So the same
            record finds the same row again, as long as the topic has the versions. None: it finds the newest
            row.
        keep: with `as_of`: how long a version is kept after the next one of its key, such as `"1d"`, counted
            back from the newest record of the topic. A record that is older fails. Let it be more than
            workers may lag or be away, and let the topic keep its old records as long.
        max_bytes: the most memory of one process, estimated; a table that grows beyond it ends the worker.

    Raises:
        StrategyError: an argument is not allowed.
    """

    has_records = True

    def __init__(
        self,
        topic: str,
        *,
        key: str | Sequence[str],
        value: ValueFormat,
        missing: Missing = "null",
        wait: Duration | None = None,
        as_of: AsOf | None = None,
        keep: Duration | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        super().__init__(key, missing=missing, max_bytes=max_bytes)
        if not topic:
            raise StrategyError("Lookup: the name of the topic is empty")
        require_format("Lookup: value=", value)
        self.topic = topic
        self.value = value
        self.wait = 0.0 if wait is None else parse_duration(wait, "Lookup: wait")
        if (as_of is None) != (keep is None):
            raise StrategyError(
                'Lookup: as_of="record" and keep= belong together: keep="1d" says how long versions are kept'
            )
        self.as_of = as_of
        self.keep = 0.0 if keep is None else parse_duration(keep, "Lookup: keep")
        self.check_keys(value)

    @staticmethod
    def query(
        sql: str,
        *,
        key: str | Sequence[str],
        every: Duration,
        url: str | None = None,
        row: type | None = None,
        missing: Missing = "null",
        as_of: AsOf | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> QueryLookup:
        """Return the table of a query's result: read whole before the first record, and again and again.

        A query that fails later keeps the table as it is; the log says so once, and
        `kmr_lookup_stale_seconds` tells how old the table is.

        Example:
            ```python
            from kmr import Lookup

            prices = Lookup.query(
                "SELECT id, price FROM products",
                key="id",
                every="5m",
                url="postgresql://shop@localhost/shop",
            )
            ```

        Args:
            sql: a SELECT. Each row has another key; a row whose key is null is left out.
            key: the column that names a row, or several: then a key is a tuple.
            every: how long a result is used, such as `"5m"`; a number is seconds.
            url: of ClickHouse or of PostgreSQL, as their writers take it. None: the environment's
                `KMR_POSTGRES_URL` or `KMR_CLICKHOUSE_URL`; one of them must be set then.
            row: the class of the rows: a msgspec Struct, dataclass, TypedDict or pydantic model. A per-record
                map gets objects of it, a per-batch map columns of its types. None: dicts, and the columns
                of the result.
            missing: as for `Lookup`.
            as_of: is refused: a result has no versions, and the same query may give others later.
            max_bytes: the most memory of one result.

        Raises:
            StrategyError: an argument is not allowed.
        """
        from .query import QueryLookup

        if as_of is not None:
            raise StrategyError(
                "Lookup.query: as_of= needs versions, and the result of a query has one row of each key; "
                'use Lookup(topic, ..., as_of="record"), with Debezium for a table of a database'
            )
        return QueryLookup(
            sql, key=key, every=every, url=url, row=row, missing=missing, max_bytes=max_bytes
        )

    @property
    def columns(self) -> pa.Schema:
        """The columns of the table."""
        control = CONTROL if self.value.is_changes else ()
        return pa.schema([field for field in self.value.schema if field.name not in control])

    def follower(self, name: str, config: ConnectionConfig | None, *, as_columns: bool) -> Follower:
        from .topic_follower import TopicFollower

        if config is None:
            raise StrategyError(
                f"the topic of table {name} cannot be read here; give the rows: "
                f"strategy.with_tables({{{name!r}: [...]}})"
            )
        return TopicFollower(name, self, config, as_columns=as_columns)

    def __str__(self) -> str:
        return f"topic {self.topic}, by {' and '.join(self.keys)}"
