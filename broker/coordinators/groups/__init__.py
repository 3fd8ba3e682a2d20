"""Groups, each a state machine without wire or disk; `GroupCoordinator` calls them."""
