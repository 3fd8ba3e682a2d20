"""The format `kmr-clickhouse` of Spark. Start at `clickhouse_source.py`."""

from ...._extras import require_extra

require_extra("spark", "ClickHouseSource")
