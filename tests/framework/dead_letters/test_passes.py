"""Which letters a pass covers, and which ones are open."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kmr.dead_letters.letters import CONTROL_HEADER, Letters
from kmr.dead_letters.passes import Filter, Pass, covered, group_of, passes_among
from kmr.record import SCHEMA
from tests.examples import examples

REASONS = ("late", "no json", "too large")


def letters_of(rows: list[dict[str, Any]]) -> Letters:
    """Letters at offsets 0, 1, ... of their partition, a second after each other, unless a row says."""
    ends: dict[int, int] = {}
    filled = []
    for second, row in enumerate(rows):
        at = row.get("at", 0)
        filled.append(row | {"at": at, "place": ends.get(at, 0), "written": second * 1000})
        ends[at] = ends.get(at, 0) + 1

    def numbers(name: str, default: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.array([row.get(name, default) for row in filled], np.int64)

    def texts(name: str, default: str | None) -> pa.ChunkedArray[Any]:
        return pa.chunked_array([[row.get(name, default) for row in filled]], pa.string())

    return Letters(
        numbers("at", 0),
        numbers("place", 0),
        numbers("written", 0),
        {
            "topic": texts("topic", "t"),
            "group": texts("group", "g"),
            "strategy": texts("strategy", ""),
            "stage": texts("stage", "map"),
            "reason": texts("reason", "late"),
            "row": texts("row", None),
        },
        {
            "partition": numbers("partition", 0),
            "offset": numbers("offset", 0),
            "timestamp": numbers("timestamp", 0),
            "generation": numbers("generation", -1),
            "attempt": numbers("attempt", 1),
            "replays": numbers("replays", -1),
        },
    )


def pass_of(ends: dict[int, int], limit: int | None = None, **chosen: Any) -> Pass:
    return Pass(name="p", action="drop", begun=0, ends=ends, chosen=Filter(**chosen), limit=limit)


@pytest.mark.parametrize(
    ("chosen", "matching"),
    [
        ({}, [0, 1, 2, 3]),
        ({"reason": "json"}, [1]),
        ({"stage": "reduce-1"}, [2]),
        ({"topic": "u"}, [3]),
        ({"partition": 5}, [2]),
        ({"first": 11}, [1, 2, 3]),
        ({"last": 11}, [0, 1]),
        ({"first": 11, "last": 12}, [1, 2]),
        ({"since": 2000}, [2, 3]),
        ({"until": 2000}, [0, 1]),
        ({"group": "other"}, []),
    ],
)
def test_a_filter_matches_letters_for_which_every_condition_holds(
    chosen: dict[str, Any], matching: list[int]
) -> None:
    letters = letters_of(
        [
            {"offset": 10},
            {"offset": 11, "reason": "no json at all"},
            {"offset": 12, "stage": "reduce-1", "partition": 5},
            {"offset": 13, "topic": "u"},
        ]
    )
    assert np.flatnonzero(Filter(**chosen).matches(letters)).tolist() == matching


def test_a_letter_that_was_written_twice_is_open_once() -> None:
    letters = letters_of([{"offset": 1}, {"offset": 2}, {"offset": 1, "at": 3}, {"offset": 1}])
    open_, _ = covered(letters, [])
    assert open_.tolist() == [True, True, False, False]


@pytest.mark.parametrize("differs", ["generation", "replays", "partition"])
def test_a_later_failure_of_the_same_record_is_another_letter(differs: str) -> None:
    open_, _ = covered(letters_of([{"offset": 1}, {"offset": 1, differs: 3}]), [])
    assert open_.all()


def test_a_copy_stays_settled_when_its_first_letter_is() -> None:
    letters = letters_of([{"offset": 1}, {"offset": 1}])
    open_, _ = covered(letters, [pass_of({0: 1})])
    assert not open_.any()


def test_passes_are_read_from_the_records_of_the_topic() -> None:
    wanted = pass_of({0: 3}, 7, reason="late")
    rows = [
        {"topic": "dead", "partition": 0, "offset": 0, "value": b"a letter", "headers": None},
        {
            "topic": "dead",
            "partition": 0,
            "offset": 1,
            "value": msgspec.json.encode(wanted),
            "headers": [{"key": CONTROL_HEADER, "value": b"p"}],
        },
    ]
    assert passes_among(pa.RecordBatch.from_pylist(rows, schema=SCHEMA)) == [wanted]
    assert group_of("dead", "p") == "kmr-dlq.dead.p"


@settings(max_examples=examples(120))
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "offset": st.integers(0, 5),
                "at": st.integers(0, 2),
                "reason": st.sampled_from(REASONS),
            }
        ),
        max_size=20,
    ),
    st.lists(
        st.tuples(
            st.dictionaries(st.integers(0, 2), st.integers(0, 8)),
            st.one_of(st.none(), st.integers(1, 4)),
            st.one_of(st.none(), st.sampled_from(REASONS)),
        ),
        max_size=5,
    ),
)
def test_every_letter_is_open_or_covered_by_one_pass_whatever_is_written_later(
    rows: list[dict[str, Any]],
    passes: list[tuple[dict[int, int], int | None, str | None]],
) -> None:
    made = [pass_of(ends, limit, reason=reason) for ends, limit, reason in passes]
    letters = letters_of(rows)
    open_, masks = covered(letters, made)
    copies = ~covered(letters, [])[0]
    assert (sum(masks, open_.astype(int)) + copies == 1).all()
    for each, mask in zip(made, masks, strict=True):
        assert each.limit is None or mask.sum() <= each.limit
        assert (mask <= each.chosen.matches(letters)).all()
    # A pass that is resumed covers what it covered when it began.
    ends = {at: int((letters.partition == at).sum()) for at in range(3)}
    begun = pass_of(ends)
    _, before = covered(letters, [*made, begun])
    later = [*rows, *({"offset": 9, "at": at, "reason": "late"} for at in range(3))]
    _, after = covered(letters_of(later), [*made, begun])
    assert after[-1][: len(rows)].tolist() == before[-1].tolist()
    assert not after[-1][len(rows) :].any()
