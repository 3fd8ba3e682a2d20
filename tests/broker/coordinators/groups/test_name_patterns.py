"""Regular expressions of subscriptions."""

from __future__ import annotations

import pytest

from kmr.broker.coordinators.groups.name_patterns import InvalidPattern, matching_names

NAMES = ["orders", "orders-eu", "old-orders", "clicks"]


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("orders", ("orders",)),
        ("orders.*", ("orders", "orders-eu")),
        ("clicks|orders", ("clicks", "orders")),
        (".*-.*", ("old-orders", "orders-eu")),
        ("none", ()),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, matched: tuple[str, ...]) -> None:
    assert matching_names(pattern, NAMES) == matched


@pytest.mark.parametrize("pattern", ["(", "a)|(b", "(?=x)", "\\1"])
def test_what_re2_does_not_know_is_no_pattern(pattern: str) -> None:
    with pytest.raises(InvalidPattern):
        matching_names(pattern, NAMES)
