"""Consumer groups as pure state machines: no wire, no disk, no event loop."""

from broker.membership.group import Group
from broker.membership.types import GroupError, GroupSettings, GroupState

__all__ = ["Group", "GroupError", "GroupSettings", "GroupState"]
