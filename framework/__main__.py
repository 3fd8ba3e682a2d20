"""`python -m kmr` is the command `kmr`."""

import sys

from kmr.cli import main  # the processes of `executor = "process"` run this as a file

if __name__ == "__main__":
    sys.exit(main())
