"""`MessagePack`: the same types and the same reasons as JSON."""

from __future__ import annotations

import datetime as dt

import msgspec
import pyarrow as pa

from kmr import MessagePack


class Hit(msgspec.Struct):
    ts: dt.datetime
    status: int
    ms: float | None = None


def test_maps_become_columns_and_one_that_does_not_fit_fails_alone() -> None:
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    good = msgspec.msgpack.encode({"ts": at, "status": 200, "unknown": [1]})
    bad = msgspec.msgpack.encode({"ts": at, "status": "x"})
    decoded = MessagePack(Hit).decode(pa.array([good, bad, b"\xc1", None], pa.binary()))
    assert decoded.columns.to_pylist()[0] == {"ts": at, "status": 200, "ms": None}
    assert decoded.failures[1] == "field status: expected int, got str: 'x'"
    assert list(decoded.failures) == [1, 2]


def test_a_key_that_is_no_text_is_named_as_a_key() -> None:
    values: pa.BinaryArray = pa.array([b"\x81\x05\x05"], pa.binary())
    assert MessagePack(Hit).decode(values).failures == {0: "field (a key): expected str, got int"}
