"""Rows into PostgreSQL. Start at `writer.py`."""

from ..._extras import require_extra

require_extra("postgres", "PostgresWriter")
