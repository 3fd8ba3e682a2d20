"""Values that turn out to be wrong after the kernel has run are left out; the others are decoded again."""

from __future__ import annotations

import pyarrow as pa

from kmr import Avro


def test_rows_that_are_wrong_after_decoding_fail_and_their_neighbours_are_as_before() -> None:
    format_ = Avro({"type": "array", "items": "string"})
    good, bad = b"\2\4ab\0", b"\4\2a\2\xff\0"
    decoded = format_.decode(pa.array([good, bad, None, b"\2", good], pa.binary()))
    assert decoded.columns.to_pylist() == [
        {"value": ["ab"]}, {"value": None}, {"value": None}, {"value": None}, {"value": ["ab"]}
    ]  # fmt: skip
    assert decoded.failures == {
        1: "field value: the text is not UTF-8",
        3: "field value: its number of items (1) is impossible",
    }
