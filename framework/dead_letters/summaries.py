"""Letters in groups: how many fail for one reason, in one stage, of one topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .letters import Letters

_VARIES: Final = r"""'[^']*'|"[^"]*"|[+-]?\d+(?:[.,]\d+)*(?:[eE][+-]?\d+)?"""

By = Literal["topic", "group", "strategy", "strategy-version", "stage", "reason", "exception"]


class LetterGroup(NamedTuple):
    """Letters that have these headers in common; times in milliseconds since 1970.

    Attributes:
        common: the headers of the oldest of them; reasons that differ in numbers and quoted text are one.
        place: PARTITION:OFFSET of the oldest.
    """

    common: dict[str, str]
    letters: int
    replays: int
    first: int
    last: int
    place: str

    def as_json(self) -> dict[str, object]:
        """Return the headers beside the counts."""
        counts = self._asdict()
        del counts["common"]
        return {**self.common, **counts}


def summaries(
    letters: Letters, mask: NDArray[np.bool_], by: Sequence[By] = ("stage", "reason")
) -> list[LetterGroup]:
    """Group letters by headers, the most frequent group first.

    Args:
        mask: of the letters that count.
        by: the headers.
    """
    kinds = {f"kind {name}": letters.texts[name] for name in by}
    if "reason" in by:
        kinds["kind reason"] = pc.replace_substring_regex(
            letters.texts["reason"], pattern=_VARIES, replacement="?"
        )
    columns: dict[str, Any] = {
        "row": np.arange(len(letters)),
        "replays": letters.numbers["replays"],
        "written": letters.written,
    }
    table = pa.table(kinds | columns).filter(pa.array(mask))
    grouped = table.group_by(list(kinds)).aggregate(
        [
            ("row", "min"),
            ("row", "count"),
            ("replays", "max"),
            ("written", "min"),
            ("written", "max"),
        ]
    )
    found = [
        LetterGroup(
            {name: letters.texts[name][oldest].as_py() or "" for name in by},
            row["row_count"],
            max(0, row["replays_max"]),
            row["written_min"],
            row["written_max"],
            f"{letters.partition[oldest]}:{letters.offset[oldest]}",
        )
        for row in grouped.to_pylist()
        for oldest in (row["row_min"],)
    ]
    return sorted(found, key=lambda each: (-each.letters, *each.common.values()))
