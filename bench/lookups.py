"""`python -m bench.lookups`: what a look-up table of 1,000,000 rows costs, without a broker.

Printed is processor time: to load it, to join orders with it in batches of 5,000, and to get rows one by one;
of newest rows, and of versions by the time of the orders.
"""

from __future__ import annotations

import itertools
import resource
import time
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from rich.console import Console

from kmr import Json, Lookup
from kmr.lookups.columns_table import ColumnsStore
from kmr.lookups.objects_table import ObjectsStore
from kmr.lookups.versions import RECORD_TIME

ROWS, BATCH, ORDERS = 1_000_000, 10_000, 5_000


class Customer(msgspec.Struct):
    id: int
    name: str
    country: str


def records(first: int) -> pa.RecordBatch:
    """A batch of the topic."""
    numbers = range(first, first + BATCH)
    value = b'{"id":%d,"name":"customer %d","country":"PT"}'
    return pa.RecordBatch.from_arrays(
        [
            pa.array([str(n).encode() for n in numbers], pa.binary()),
            pa.array([value % (n, n) for n in numbers], pa.binary()),
            pa.array(numbers, pa.int64()),
            pa.array(numbers, pa.timestamp("us", "UTC")),
            pa.array([0] * BATCH, pa.int32()),
        ],
        names=["key", "value", "offset", "timestamp", "partition"],
    )


def main() -> None:
    console = Console()
    newest = Lookup("customers", key="id", value=Json(Customer))
    by_time = Lookup("customers", key="id", value=Json(Customer), as_of="record", keep="1d")
    batches = [records(first) for first in range(0, ROWS, BATCH)]
    rng = np.random.default_rng(1)
    times = pa.array(rng.integers(0, 2 * ROWS, ORDERS), pa.timestamp("us", "UTC"))
    orders = pa.RecordBatch.from_pydict(
        {"customer": rng.integers(0, ROWS, ORDERS), "timestamp": times}
    )
    for make, lookup in itertools.product((ColumnsStore, ObjectsStore), (newest, by_time)):
        store: Any = make("customers", lookup)
        store.apply(batches[0])  # compiles
        before, begun = _peak(), time.process_time()
        for batch in batches:
            store.apply(batch)
        seconds, table = time.process_time() - begun, store.table()
        kind = "versions" if lookup.as_of else "newest rows"
        console.print(
            f"{make.__name__}, {kind}: loaded in {seconds:.1f} s, {_peak() - before:,} MiB more"
        )
        begun = time.process_time()
        if make is ColumnsStore:
            for _ in range(40):
                table.join(orders, on="customer")
            rate = 40 * ORDERS / (time.process_time() - begun)
            console.print(f"  {rate:,.0f} orders/s are joined")
        else:
            RECORD_TIME.set(ROWS)
            for key in range(ROWS):
                table.get(key)
            rate = ROWS / (time.process_time() - begun)
            console.print(f"  {rate:,.0f} rows/s are got")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    main()
