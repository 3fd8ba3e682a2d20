"""What repeats itself is said once in a while."""

from service.repetition import Repetition


def test_it_is_said_at_once_and_then_once_in_ten_seconds_with_its_number() -> None:
    now = 0.0
    repetition = Repetition(lambda: now)
    assert [repetition.times("a") for _ in range(3)] == [1, 0, 0]
    assert repetition.times("b") == 1, "another one"
    now = 9.9
    assert repetition.times("a") == 0
    now = 10.0
    assert repetition.times("a") == 4, "three that were not said, and this one"
    assert repetition.times("a") == 0
    now = 100.0
    assert repetition.times("a") == 2
