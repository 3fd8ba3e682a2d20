"""ClickHouse as a library (chDB), and an HTTP server for it."""
