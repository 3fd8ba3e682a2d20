"""The `kmr` command: finds its groups by entry points, loads the one that is asked for, reports errors."""

import sys
from typing import NoReturn

from ..service.hangups import hold_hangups


def main() -> NoReturn:
    """Run the command line of this process and exit.

    Everything is imported here, because signals may come meanwhile: imports are most of the start.
    """
    try:
        if sys.argv[1:2] == ["run"]:
            hold_hangups()
        from .root import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
