"""Rates of bytes, with a clock to turn; and limits of connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.security.admission import Admission
from broker.security.exposure import is_loopback
from broker.security.quotas import MAX_THROTTLE, Rate

if TYPE_CHECKING:
    from collections.abc import Sequence


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_client_may_use_what_one_second_allows_at_once() -> None:
    rate = Rate(100, Clock())
    assert rate.use("a", 60) == 0
    assert rate.use("a", 40) == 0
    assert rate.use("a", 50) == pytest.approx(0.5)
    assert rate.wait("a") == pytest.approx(0.5)


def test_clients_do_not_use_up_what_others_may() -> None:
    rate = Rate(100, Clock())
    assert rate.use("a", 300) == pytest.approx(2)
    assert rate.use("b", 100) == 0


def test_waiting_pays() -> None:
    clock = Clock()
    rate = Rate(100, clock)
    rate.use("a", 300)
    clock.now += 2
    assert rate.wait("a") == 0
    assert rate.use("a", 10) == pytest.approx(0.1)


def test_what_was_not_used_long_ago_is_lost() -> None:
    clock = Clock()
    rate = Rate(100, clock)
    rate.use("a", 1)
    clock.now += 3600
    assert rate.use("a", 200) == pytest.approx(1)


def test_nobody_waits_so_long_that_it_gives_up_and_nothing_is_forgiven() -> None:
    clock = Clock()
    rate = Rate(1, clock)
    assert rate.use("a", 100) == MAX_THROTTLE
    clock.now += MAX_THROTTLE
    assert rate.wait("a") == MAX_THROTTLE


def test_names_without_end_do_not_fill_the_memory() -> None:
    clock = Clock()
    rate = Rate(1, clock)
    rate.use("debtor", 10**6)
    for number in range(25_000):
        rate.use(f"client {number}", 1)
    assert len(rate._even_at) <= 10_000
    assert rate.wait("debtor") == MAX_THROTTLE


@given(st.lists(st.tuples(st.integers(0, 500), st.floats(0, 3)), min_size=1))
def test_who_waits_as_told_never_exceeds_its_rate(
    steps: Sequence[tuple[int, float]],
) -> None:
    clock = Clock()
    rate = Rate(100, clock)
    begin, used = clock.now, 0
    for size, pause in steps:
        wait = rate.use("a", size)
        used += size
        clock.now += max(wait, pause)
        assert used <= 100 * (clock.now - begin + 1) + 1e-6


def test_connections_are_limited_in_all_by_address_and_before_they_are_settled() -> None:
    admission = Admission(total=4, per_address=2, unsettled=2)
    assert admission.admit("a") is None
    assert admission.admit("b") is None
    assert admission.admit("c") == ("max_unauthenticated_connections", 2)
    admission.settled()
    admission.settled()
    assert admission.admit("a") is None
    assert admission.admit("a") == ("max_connections_per_address", 2)
    assert admission.admit("c") is None
    assert str(admission.admit("d")) == "there are more than max_connections (4)"
    admission.left("a", settled=False)
    assert admission.admit("d") is None
    admission.left("a", settled=True)
    admission.settled()
    assert admission.admit("a") is None


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("10.0.0.1", False),
        ("kafka.example", False),
    ],
)
def test_only_loopback_is_out_of_reach_of_others(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
