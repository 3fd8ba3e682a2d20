"""`python -m kmr` is the command `kmr`."""

import sys

if __name__ == "__main__":
    # Not above: the processes of `executor = "process"` run this as a file, which has no neighbours.
    from .cli import main

    sys.exit(main())
