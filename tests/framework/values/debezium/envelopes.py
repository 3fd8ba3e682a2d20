"""Change events as Debezium's documentation describes them, for each connector."""

from __future__ import annotations

from typing import Any

import msgspec

SOURCES: dict[str, dict[str, Any]] = {
    "postgresql": {
        "version": "3.0.0.Final",
        "connector": "postgresql",
        "name": "server",
        "ts_ms": 1_700_000_000_123,
        "snapshot": "false",
        "db": "shop",
        "sequence": '["24023119","24023128"]',
        "schema": "public",
        "table": "customers",
        "txId": 555,
        "lsn": 24_023_128,
        "xmin": None,
    },
    "mysql": {
        "version": "3.0.0.Final",
        "connector": "mysql",
        "name": "server",
        "ts_ms": 1_700_000_000_123,
        "snapshot": "false",
        "db": "shop",
        "table": "customers",
        "server_id": 223_344,
        "gtid": None,
        "file": "mysql-bin.000003",
        "pos": 484,
        "row": 2,
        "thread": 7,
        "query": None,
    },
    "sqlserver": {
        "version": "3.0.0.Final",
        "connector": "sqlserver",
        "name": "server",
        "ts_ms": 1_700_000_000_123,
        "snapshot": "false",
        "db": "shop",
        "schema": "dbo",
        "table": "customers",
        "change_lsn": "00000027:00000758:0003",
        "commit_lsn": "00000027:00000758:0005",
        "event_serial_no": 1,
    },
    "mongodb": {
        "version": "3.0.0.Final",
        "connector": "mongodb",
        "name": "server",
        "ts_ms": 1_700_000_000_000,
        "snapshot": "false",
        "db": "shop",
        "rs": "rs0",
        "collection": "customers",
        "ord": 31,
        "lsid": None,
        "txnNumber": None,
    },
}


def event(
    op: str,
    before: Any = None,
    after: Any = None,
    *,
    connector: str = "postgresql",
    schema: Any = None,
    **source: Any,
) -> bytes:
    """One change event in JSON; `source` changes fields of the source."""
    payload = {
        "before": before,
        "after": after,
        "source": SOURCES[connector] | source,
        "transaction": {"id": "555:24023128", "total_order": 1, "data_collection_order": 1},
        "op": op,
        "ts_ms": 1_700_000_000_500,
    }
    if schema is not None:
        return msgspec.json.encode({"schema": schema, "payload": payload})
    return msgspec.json.encode(payload)


def schema_of(*fields: dict[str, Any]) -> dict[str, Any]:
    """The schema of an envelope whose rows have these fields."""
    row = {"type": "struct", "fields": list(fields), "optional": True, "name": "server.Value"}
    return {
        "type": "struct",
        "fields": [{**row, "field": "before"}, {**row, "field": "after"}],
        "optional": False,
        "name": "server.Envelope",
    }


def field(name: str, kind: str, encoding: str | None = None, **parameters: str) -> dict[str, Any]:
    """One field of a row in a schema."""
    named = {} if encoding is None else {"name": encoding, "version": 1}
    given = {"parameters": parameters} if parameters else {}
    return {"type": kind, "optional": True, "field": name, **named, **given}


HEARTBEAT = b'{"ts_ms":1700000000000}'
BEGIN = (
    b'{"status":"BEGIN","id":"571:53195829","ts_ms":1,"event_count":null,"data_collections":null}'
)
SCHEMA_CHANGE = (
    b'{"source":{"connector":"mysql","ts_ms":1,"file":"mysql-bin.3","pos":2},"ts_ms":1,'
    b'"databaseName":"shop","schemaName":null,"ddl":"ALTER TABLE customers ADD x int","tableChanges":[]}'
)
MESSAGE = (
    b'{"op":"m","ts_ms":1,"source":{"connector":"postgresql","ts_ms":1,"lsn":9},'
    b'"message":{"prefix":"audit","content":"AAEC"}}'
)
