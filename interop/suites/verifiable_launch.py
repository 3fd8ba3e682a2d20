"""`python -m interop.suites.verifiable_launch SCRIPT ARGUMENTS`: a verifiable client of confluent-kafka.

The scripts that confluent-kafka ships are for Python 2 in two places: they ask a dict for `iteritems`, and
they write bytes as JSON. Both are met here; everything else is theirs.
"""

from __future__ import annotations

import json
import runpy
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

__all__ = ["main"]


class _Arguments(dict[str, Any]):
    def iteritems(self) -> Any:
        return self.items()


def main() -> None:
    """Run the script as if it was called itself."""
    script = Path(sys.argv[1])
    sys.path.insert(0, str(script.parent))
    import verifiable_client  # type: ignore[import-not-found]

    client = verifiable_client.VerifiableClient
    set_config = client.set_config
    client.set_config = staticmethod(lambda conf, args: set_config(conf, _Arguments(args)))
    verifiable_client.json = SimpleNamespace(dumps=partial(json.dumps, default=bytes.decode))
    sys.argv = sys.argv[1:]
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
