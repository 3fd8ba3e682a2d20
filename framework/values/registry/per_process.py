"""What each process makes for itself, of what the registry says."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class PerProcess(Generic[T]):
    """A value that is made when it is first needed, once for all threads; a copy by pickle has none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: list[T] = []

    @property
    def is_made(self) -> bool:
        return bool(self._made)

    def get(self, make: Callable[[], T]) -> T:
        """Return the value. Raises what `make` raises, which the next caller tries again."""
        with self._lock:
            if not self._made:
                self._made.append(make())
            return self._made[0]

    def __reduce__(self) -> tuple[type[PerProcess[T]], tuple[()]]:
        return type(self), ()
