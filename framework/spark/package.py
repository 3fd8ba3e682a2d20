"""What `spark-submit` needs to run a strategy where this machine's directories are not."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from framework.spark.shipping import OWN_PACKAGES, pack_modules, users_modules

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from framework.strategy import Strategy

__all__ = ["Package", "write_package"]

_SUFFIXES: Final = (".py", ".html", ".sql", ".typed")
_MAIN: Final = '''"""Runs a strategy on Spark: for spark-submit, written by `kmr spark package`."""

import sys
from importlib.metadata import EntryPoint

from framework.cli.root import run_command

RUN = EntryPoint("run", "framework.cli.run:run", "kmr.commands")

if __name__ == "__main__":
    sys.exit(run_command(["run", *sys.argv[1:]], [RUN]))
'''


@dataclass(frozen=True, slots=True)
class Package:
    """What was written.

    Attributes:
        main: the program.
        modules: an archive with our code and the strategy's modules.
        contents: the strategy's modules in it.
    """

    main: Path
    modules: Path
    contents: tuple[str, ...]

    def command(self, strategy: str, master: str, flags: Sequence[str]) -> str:
        """The command that runs it, for a shell."""
        words = [
            "spark-submit",
            "--master",
            master,
            "--py-files",
            str(self.modules),
            str(self.main),
        ]
        return shlex.join([*words, strategy, "--engine", "spark", *flags])


def write_package(strategy: Strategy, directory: Path) -> Package:
    """Write the program and the archive into a directory, in place of older ones.

    Raises:
        OSError: it cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files = users_modules(strategy)
    own = {
        path.relative_to(package.parent).as_posix(): path
        for package in OWN_PACKAGES
        for path in package.rglob("*")
        if path.suffix in _SUFFIXES
    }
    modules = pack_modules(own | files, directory / "modules.zip")
    main = directory / "main.py"
    main.write_text(_MAIN)
    return Package(main.absolute(), modules.absolute(), tuple(sorted(files)))
