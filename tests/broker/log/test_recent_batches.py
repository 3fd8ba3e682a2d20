"""The places of the newest batches, beside a plain list of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from kmr.broker.log import recent_batches
from kmr.broker.log.recent_batches import RecentBatches

if TYPE_CHECKING:
    import pytest

sizes = st.lists(st.tuples(st.integers(1, 5), st.integers(61, 200)), min_size=1, max_size=20)


@given(sizes, st.data())
def test_the_batches_up_to_a_limit_and_a_size_are_found(
    batches: list[tuple[int, int]], data: st.DataObject
) -> None:
    recent = RecentBatches()
    offsets, positions = [7], [1000]
    for records, size in batches:
        recent.add(offsets[-1], positions[-1])
        offsets.append(offsets[-1] + records)
        positions.append(positions[-1] + size)
    cut = data.draw(st.integers(1, len(batches)))
    recent.cut(offsets[cut])  # the write of the others failed
    offset = data.draw(st.integers(0, offsets[cut] - 1))
    limit = data.draw(st.sampled_from([each for each in offsets[: cut + 1] if each > offset]))
    most_bytes = data.draw(st.integers(0, 1000))
    found = recent.find(offset, limit, most_bytes, positions[cut])
    first = max((at for at, each in enumerate(offsets) if each <= offset), default=None)
    fitting = [
        at
        for at in range(first or 0, cut + 1)
        if offsets[at] <= limit and positions[at] - positions[first or 0] <= most_bytes
    ]
    if first is None or fitting[-1] == first:
        assert found is None
    else:
        last = fitting[-1]
        assert found == (positions[first], positions[last], offsets[first], offsets[last])


def test_of_many_batches_the_newest_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_batches, "MOST_BATCHES", 4)
    recent = RecentBatches()
    for number in range(7):
        recent.add(number, 100 * number)
    assert recent.find(3, 7, 1000, 700) is None
    assert recent.find(4, 7, 1000, 700) == (400, 700, 4, 7)
    recent.clear()
    assert recent.find(6, 7, 1000, 700) is None
