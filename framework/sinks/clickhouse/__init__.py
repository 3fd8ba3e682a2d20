"""Rows into ClickHouse."""
