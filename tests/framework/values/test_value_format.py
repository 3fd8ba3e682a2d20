"""The contract of value formats."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kmr.errors import StrategyError
from kmr.values.value_format import Decoded, ValueFormat


class Sizes(ValueFormat):
    """A format of a user: the size of each value."""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("size", pa.int64())])

    def decode(self, values: pa.BinaryArray) -> Decoded:
        sizes = [None if value is None else len(value) for value in values.to_pylist()]
        return Decoded(pa.RecordBatch.from_pydict({"size": sizes}, schema=self.schema), {})


def test_a_format_without_encode_cannot_be_written() -> None:
    with pytest.raises(StrategyError, match="Sizes cannot be written"):
        Sizes().encode(pa.table({"size": [1]}), "topic")
