"""The `kmr` command: finds its groups by entry points, loads the one that is asked for, reports errors."""

import sys
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command line of this process and exit; see `kmr.cli.root.main`.

    It is imported here, because Ctrl-C may come while it is: imports are most of the start.
    """
    try:
        from .root import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
