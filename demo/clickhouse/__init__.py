"""The embedded ClickHouse over HTTP, for several processes, and its command line: `kmr clickhouse`."""
