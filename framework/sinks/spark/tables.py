"""Tables of Spark's catalog as the sink sees them: where their files are, and what their columns are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from framework.errors import StrategyError
from framework.sinks.spark.files import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import SparkSession

    from framework.sinks.spark.files import Directory, PartitionValues

__all__ = ["CatalogTable", "read_table", "sees"]

_DETAILS = "# Detailed Table Information"
_PARTITIONS = "# Partition Information"
_OWN_CATALOG = "spark_catalog"


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table as it was when it was read.

    Attributes:
        identifier: the name, quoted for SQL.
        provider: the format: `parquet`, `delta`, ...
        location: the URI of its directory, if files can be put there; else None.
        partition_by: its partition columns, if it has directories for them.
        schema: its columns, as Arrow has them.
    """

    name: str
    identifier: str
    provider: str
    location: str | None
    partition_by: tuple[str, ...]
    schema: pa.Schema

    def __str__(self) -> str:
        return self.name

    def publish(self, session: SparkSession, partitions: Iterable[PartitionValues]) -> None:
        """Let Spark know of new files, and of partitions that are new to the table."""
        specs = [
            ", ".join(
                f"{_quote(column)} = {_literal(value)}"
                for column, value in zip(self.partition_by, values, strict=True)
            )
            for values in partitions
        ]
        if self.partition_by and specs:
            added = " ".join(f"PARTITION ({spec})" for spec in specs)
            session.sql(f"ALTER TABLE {self.identifier} ADD IF NOT EXISTS {added}")
        session.sql(f"REFRESH TABLE {self.identifier}")


def read_table(session: SparkSession, name: str) -> CatalogTable:
    """Read a table's definition.

    Raises:
        StrategyError: there is no such table, or it is a view; the message shows how one is made.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql.pandas.types import to_arrow_schema

    identifier = ".".join(map(_quote, _parts(name)))
    try:
        described = session.sql(f"DESCRIBE TABLE EXTENDED {identifier}").collect()
        schema = to_arrow_schema(session.table(identifier).schema, timezone="UTC")
    except AnalysisException as error:
        raise StrategyError(
            f"Spark has no table {name} ({str(error).splitlines()[0]}). Create it with the columns that "
            f"your map returns, for example: CREATE TABLE {identifier} (`partition` INT, `offset` "
            "BIGINT, `timestamp` TIMESTAMP) USING parquet"
        ) from error
    rows = [(row[0], row[1]) for row in described]
    details = dict(_after(rows, _DETAILS))
    if "Provider" not in details:
        raise StrategyError(f"{name} is a view, or something else that cannot be written to")
    plain = details.get("Catalog", _OWN_CATALOG) == _OWN_CATALOG and "Bucket Columns" not in details
    partition_by = tuple(
        column for column, _ in _after(rows, _PARTITIONS) if not column.startswith("#")
    )
    return CatalogTable(
        name=name,
        identifier=identifier,
        provider=details["Provider"].lower(),
        location=details.get("Location") if plain else None,
        partition_by=partition_by,
        schema=schema,
    )


def _after(rows: Sequence[tuple[str, str]], heading: str) -> list[tuple[str, str]]:
    """The rows of one section of DESCRIBE: from its heading to the next empty line."""
    names = [name for name, _ in rows]
    if heading not in names:
        return []
    section = rows[names.index(heading) + 1 :]
    ends = [at for at, (name, _) in enumerate(section) if not name]
    return list(section[: ends[0]] if ends else section)


def sees(session: SparkSession, directory: Directory, location: str) -> bool:
    """Whether Spark finds at a location what this process puts into a directory: on one machine it does."""
    from pyspark.errors import AnalysisException

    name = f"{HIDDEN}kmr-probe-{session.__hash__():x}"
    path = f"{directory.root}/{name}"
    directory.filesystem.create_dir(directory.root, recursive=True)
    with directory.filesystem.open_output_stream(path) as stream:
        pq.write_table(pa.table({"probe": pa.array([], pa.int32())}), stream)
    try:
        # Names that begin with an underscore are not read, but must be there nevertheless.
        reader: Any = session.read.schema("probe int")
        reader.parquet(f"{location.rstrip('/')}/{name}").isEmpty()
    except AnalysisException:
        return False
    finally:
        directory.remove(path)
    return True


def _parts(name: str) -> list[str]:
    """The parts of `catalog.database.table`; a part in backticks may hold dots."""
    parts, quoted = [""], False
    for character in name:
        if character == "`":
            quoted = not quoted
        elif character == "." and not quoted:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _literal(value: Any) -> str:
    if value is None:
        return "null"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
