"""Values that each process makes once."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from kmr.values.registry.registry import PerProcess


def test_the_value_is_made_once_for_all_threads() -> None:
    value: PerProcess[object] = PerProcess()
    begin = Barrier(8)
    assert not value.is_made

    def get(_: int) -> object:
        begin.wait()
        return value.get(object)

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(get, range(8)))) == 1
    assert value.is_made


def test_a_value_that_cannot_be_made_is_tried_again() -> None:
    value: PerProcess[int] = PerProcess()
    with pytest.raises(ZeroDivisionError):
        value.get(lambda: 1 // 0)
    assert value.get(lambda: 7) == 7


def test_a_copy_by_pickle_has_no_value() -> None:
    value: PerProcess[int] = PerProcess()
    value.get(lambda: 7)
    assert not pickle.loads(pickle.dumps(value)).is_made
