"""The SQL checks on Spark: missing and doubled deliveries in a table of its catalog, or in files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from framework.errors import SinkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Deliveries", "find_deliveries", "is_path"]

_SQL = Path(__file__).parents[2] / "sql" / "spark"
# What the SQL files read from; it is replaced by the table that is checked.
_SOURCE = "SELECT '' AS topic, `partition`, `offset` FROM kmr_consumer_ingest"
_DOUBLED_SQL = """
SELECT topic, `partition`, count(*) AS offsets, sum(deliveries) - count(*) AS surplus,
    min(`offset`) AS example
FROM ({duplicates}) GROUP BY topic, `partition`"""


@dataclass(frozen=True, slots=True)
class Deliveries:
    """What the statements found, one row per topic and partition.

    Attributes:
        found: of `missing.sql`.
        doubled: of `duplicates.sql`, counted: `offsets` that are doubled, `surplus` rows, and an `example`.
    """

    found: list[dict[str, Any]]
    doubled: list[dict[str, Any]]


def is_path(source: str) -> bool:
    """Whether a table's name or a path is a path: it has a slash, or is a directory here."""
    return "/" in source or ":" in source or Path(source).is_dir()


def find_deliveries(
    session: SparkSession,
    source: str,
    *,
    format: str | None = None,  # noqa: A002  Spark's word
    partition_column: str = "partition",
    offset_column: str = "offset",
    topic_column: str | None = None,
) -> Deliveries:
    """Run the statements of `sql/spark` on a table, or on the files of a directory.

    Args:
        source: `table`, `catalog.database.table`, or a path or URI.
        format: of a path; None: `delta` if it is one of Delta, else `parquet`.
        topic_column: None: a column called `topic`, if there is one.

    Raises:
        SinkError: there is no such table, path or column.
    """
    from pyspark.errors import AnalysisException

    try:
        if is_path(source):
            frame = session.read.format(format or _format_of(source)).load(source)
        else:
            frame = session.table(source)
        columns = frame.columns
    except AnalysisException as error:
        raise SinkError(f"Spark cannot read {source}: {str(error).splitlines()[0]}") from error
    topic = topic_column or ("topic" if "topic" in columns else None)
    wanted = [partition_column, offset_column, *([topic] if topic else [])]
    if absent := [column for column in wanted if column not in columns]:
        raise SinkError(
            f"{source} has no column {', '.join(absent)}, but {', '.join(columns)}. "
            "Name its columns with --partition-column, --offset-column and --topic-column"
        )
    inner = (
        f"SELECT {_quote(topic) if topic else repr('')} AS topic, "  # noqa: S608  names are quoted
        f"{_quote(partition_column)} AS `partition`, {_quote(offset_column)} AS `offset` "
        "FROM {source}"
    )
    doubled = _DOUBLED_SQL.format(duplicates=_statement("duplicates.sql", inner))
    return Deliveries(
        found=[
            row.asDict()
            for row in session.sql(_statement("missing.sql", inner), source=frame).collect()
        ],
        doubled=[row.asDict() for row in session.sql(doubled, source=frame).collect()],
    )


def _statement(file: str, inner: str) -> str:
    return (_SQL / file).read_text().replace(_SOURCE, inner)


def _format_of(path: str) -> str:
    local = Path(path.removeprefix("file://").removeprefix("file:"))
    return "delta" if (local / "_delta_log").is_dir() else "parquet"


def _quote(name: str) -> str:
    # The braces are for `session.sql`, which puts in what it is given by name.
    return "`" + name.replace("`", "``").replace("{", "{{").replace("}", "}}") + "`"
