"""The kernels need numba only to be compiled."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa

from kmr import Avro, Json
from kmr.formats.batch_decoder import warm_up
from kmr.formats.columns import Row

from .encoding import GZIP, BatchSpec

FIELDS: Any = [("a", pa.string())]
TEXT = pa.schema(FIELDS)
WITHOUT_NUMBA = """
import sys
sys.modules["numba"] = None
import pyarrow as pa
from kmr import Avro, Json
from kmr.formats.batch_decoder import BatchDecoder, warm_up
warm_up()
batch = BatchDecoder().batch("topic", 3, bytes.fromhex(sys.argv[1]), 0)
batch.records.validate(full=True)
print(batch.records.to_pylist()[0]["headers"])
text = pa.schema([("a", pa.string())])
for format_, value in ((Json(text), b'{"a":"x"}'), (Avro(text), b"\\x02\\x02x")):
    print(format_.decode(pa.array([value], pa.binary())).columns.to_pylist())
"""


def test_once_compiled_the_decoder_works_without_numba() -> None:
    warm_up()
    for format_ in (Json(TEXT), Avro(TEXT)):
        format_.warm_up()
    rows = [Row(0, 0, 0, None, b"v", [("k", None)])]
    raw = BatchSpec(base=0, last=1, rows=rows, codec=GZIP).encode()
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_NUMBA, raw.hex()],
        capture_output=True,
        text=True,
        check=False,
    )
    expected = "[{'key': 'k', 'value': None}]\n" + "[{'a': 'x'}]\n" * 2
    assert (done.stdout, done.stderr) == (expected, "")
