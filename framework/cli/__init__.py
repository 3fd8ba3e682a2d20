"""The `kmr` command: finds its groups by entry points, loads the one that is asked for, reports errors."""

from .root import main

__all__ = ["main"]
