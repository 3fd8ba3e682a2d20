"""Tools that act on a group without members: those of kmr, and foreign ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from .group import ModelGroup
    from .schedule import Event
    from .world import World

_PATIENCE: Final = 30.0  # seconds
_AGAIN: Final = 0.5  # seconds


class EmptyGroup:
    """Stops the members of a group, and waits until it has none.

    Args:
        stop: stops all members, as the event says.

    Attributes:
        waiting: the tools that wait. No member starts meanwhile.
    """

    def __init__(self, world: World, group: ModelGroup, stop: Callable[[Event], None]) -> None:
        self._world = world
        self._offsets = group.offsets
        self._stop = stop
        self.waiting = 0

    def then(self, event: Event, act: Callable[[], None]) -> None:
        """Stop the members, and act when the group has none; give up when it keeps some."""
        self.waiting += 1
        self._stop(event)
        self._try(act, self._world.loop.now + _PATIENCE)

    def _try(self, act: Callable[[], None], give_up: float) -> None:
        offsets = self._offsets
        if not offsets.members and not offsets.pending:
            self.waiting -= 1
            act()
        elif self._world.loop.now < give_up:
            self._world.later(_AGAIN, self._try, act, give_up)
        else:
            self.waiting -= 1
            self._world.note("test", "group", "the offsets are not moved: the group has members")
