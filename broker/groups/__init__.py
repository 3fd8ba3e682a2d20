"""Consumer group coordination: the classic group protocol and the committed offsets of groups."""
