"""Rows into ClickHouse. Start at `writer.py`."""
