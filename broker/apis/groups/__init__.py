"""Groups: their members and their committed offsets."""
