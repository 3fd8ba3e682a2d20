"""What is said of a server whose clock differs."""

from __future__ import annotations

import pytest

from kmr.reducers.finding import compare_clocks


@pytest.mark.parametrize(
    ("theirs", "text"),
    [(101.0, "its clock agrees"), (90.0, "its clock is 10 s behind"), (122.0, "is 20 s ahead of")],
)
def test_clocks_are_compared_beside_the_time_of_the_question(theirs: float, text: str) -> None:
    assert text in compare_clocks("server", theirs, 100.0, 102.0).text
