"""`Text` and `Bytes`: one column."""

from __future__ import annotations

import pyarrow as pa

from kmr import Bytes, Text


def test_text_is_utf8_and_other_bytes_fail_alone() -> None:
    decoded = Text().decode(pa.array([b"a", b"\xff", None, "ä".encode()], pa.binary()))
    assert decoded.columns.to_pydict() == {"value": ["a", None, None, "ä"]}
    assert decoded.failures == {1: "value: invalid UTF-8 at byte 0: invalid start byte"}


def test_bytes_are_the_values_themselves() -> None:
    values = pa.array([b"a", None], pa.binary())
    assert Bytes().decode(values).columns.column(0) is not None
    assert Bytes().decode_objects(values).objects == [b"a", None]
    assert str(Bytes()) == "Bytes"
