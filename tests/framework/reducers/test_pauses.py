"""Pauses grow, and a reason is logged at first, when it changes, and each minute."""

from __future__ import annotations

from structlog.testing import capture_logs

from kmr.reducers.pauses import Pauses


def test_pauses_grow_to_half_a_minute_and_are_logged_at_first_and_each_minute() -> None:
    pauses = Pauses("map t-0", "it is away")
    now, ends = 100.0, []
    with capture_logs() as logs:
        for _ in range(16):
            ends.append(pauses.next("no answer", now))
            now += ends[-1]
        assert (pauses.reason, pauses.attempts) == ("no answer", 16)
        pauses.next("refused", now, after=7.0)
        pauses.over("it is back", now)
        pauses.over("it is back", now)
    limits = [min(30.0, 0.1 * 2**n) for n in range(16)]
    assert all(limit / 2 <= each <= limit for each, limit in zip(ends, limits, strict=True))
    assert pauses.reason is None
    texts = [(each["event"], each.get("reason"), each.get("attempts")) for each in logs]
    first, *again, other, back = texts
    assert first == ("it is away", "no answer", 1)
    assert 1 <= len(again) <= 3
    assert other == ("it is away", "refused", 17)
    assert back == ("it is back", None, None)
    with capture_logs() as logs:
        pauses.next("no answer", now)
    assert [each["attempts"] for each in logs] == [1]
