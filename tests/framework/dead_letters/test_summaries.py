"""Letters in groups."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kmr.dead_letters.letters import Letters, letters_among
from kmr.dead_letters.summaries import summaries
from kmr.record import SCHEMA


def letters_of(*reasons: str) -> Letters:
    """Letters of the records 0, 1, ... of a partition."""
    headers = [
        [
            {"key": "kmr.offset", "value": b"%d" % offset},
            {"key": "kmr.reason", "value": reason.encode()},
        ]
        for offset, reason in enumerate(reasons)
    ]
    rows = [
        {"topic": "dead", "partition": 0, "offset": at, "timestamp": 0, "headers": each}
        for at, each in enumerate(headers)
    ]
    return Letters.of([letters_among(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))])


def test_reasons_that_differ_in_numbers_and_quoted_text_are_one() -> None:
    letters = letters_of(
        "no row of the key 7", "no row of the key 'x'", "no row of the key -1.5e3", "no row"
    )
    every = np.ones(len(letters), np.bool_)
    found = {each.common["reason"]: each.letters for each in summaries(letters, every)}
    assert found == {"no row of the key 7": 3, "no row": 1}


def test_a_group_has_the_place_of_its_oldest_letter_that_counts() -> None:
    letters = letters_of("late", "late", "early")
    (late, early) = summaries(letters, np.array([False, True, True]), ("reason",))
    assert sorted((each.common["reason"], each.place) for each in (late, early)) == [
        ("early", "0:2"),
        ("late", "0:1"),
    ]
