"""The compiled walk over texts of JSON, without msgspec for the rows that it leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kmr.values.decoding.slot_decoding import CompiledDecoder, batch_of, run
from kmr.values.decoding.slots import Slots
from kmr.values.json import json_kernel
from kmr.values.json.json_columns import plan_of
from kmr.values.json.json_scalars import MISSING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class Walked(NamedTuple):
    """What a walk leaves: the slots, which kinds each slot column has, and the status of each row."""

    slots: Slots
    others: NDArray[Any]
    statuses: NDArray[Any]


def walk(cls: type, texts: Sequence[bytes]) -> Walked:
    """Walk texts that follow each other without a gap."""
    plan = plan_of(cls)
    assert plan is not None
    data = np.frombuffer(b"".join(texts), np.uint8)
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    batch = batch_of(data, len(data), offsets, np.zeros(len(texts), np.int64))
    slots = Slots(plan.layout, len(texts))
    slots.valid.fill(MISSING)
    scratch = json_kernel.scratch(len(plan.program.nodes), len(slots.bases), plan.maps)
    run(
        CompiledDecoder(json_kernel.kernel(), plan.program, scratch, data[:0], lambda *_: ""),
        batch,
        slots,
    )
    return Walked(slots, scratch.others, batch.statuses)
