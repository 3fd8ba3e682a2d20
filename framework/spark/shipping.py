"""The code that executors need: our package, and the modules of the strategy that are not installed."""

from __future__ import annotations

import hashlib
import os
import pickletools
import shlex
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from .._extras import require_extra
from ..errors import StrategyError, reason_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from pyspark.sql import SparkSession

    from ..strategy import Strategy

_log = structlog.get_logger(__name__)

_INSTALLED: Final = tuple(sysconfig.get_paths()[n] for n in ("stdlib", "purelib", "platlib"))
_OWN: Final = Path(__file__).parents[1]
_OWN_DIRECTORIES: Final = tuple(path.resolve() for path in (_OWN, _OWN / "broker", _OWN / "sql"))
"""Where our own code is: in a checkout, `kmr` and these two are links."""


def pickled(strategy: object) -> bytes:
    """Return the form in which a strategy, or something that has one, is sent to executors.

    Raises:
        MissingExtra: pyspark is not installed.
        StrategyError: it cannot be pickled.
    """
    require_extra("spark", "Spark")
    from pyspark import cloudpickle

    try:
        form: bytes = cloudpickle.dumps(strategy)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise StrategyError(
            f"the strategy cannot be sent to Spark's executors: {reason_of(error)}; "
            "open connections in Reducer.open, not in __init__"
        ) from error
    return form


def strategy_modules(strategy: Strategy) -> dict[str, Path]:
    """Return the files of the strategy's modules, by their names in an archive.

    These are all imported modules from the directories of the strategy's own modules, except installed
    ones: executors have installed packages, but not the user's current directory. Its own modules are those
    that its pickled form names: of the map, the sinks, the types of values and tables, and whatever they use.

    Raises:
        MissingExtra: pyspark is not installed.
        StrategyError: it cannot be pickled.
    """
    form = pickled(strategy)
    texts = {text for _, text, _ in pickletools.genops(form) if isinstance(text, str)}
    names = texts & sys.modules.keys()
    roots = {root for name in names if (root := _root(sys.modules.get(name))) is not None}
    found: dict[str, Path] = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file is None or module.__name__ == "__main__" or _is_installed(Path(file)):
            continue
        path = Path(file).resolve()
        if not path.is_file():
            continue  # in an archive, which --py-files has sent to executors
        for root in roots:
            if path.is_relative_to(root) and _root(module) == root:
                found[path.relative_to(root).as_posix()] = path
                _add_packages(found, path, root)
    return found


def _root(module: ModuleType | None) -> Path | None:
    """Return the entry of `sys.path` that a module of the user's was imported from."""
    file = getattr(module, "__file__", None)
    if module is None or file is None or module.__name__ == "__main__" or _is_installed(Path(file)):
        return None
    path = Path(file).resolve()
    depth = module.__name__.count(".") + (1 if path.name == "__init__.py" else 0)
    return path.parents[depth]


def _is_installed(path: Path) -> bool:
    resolved = path.resolve()
    return str(resolved).startswith(_INSTALLED) or any(
        map(resolved.is_relative_to, _OWN_DIRECTORIES)
    )


def _add_packages(found: dict[str, Path], path: Path, root: Path) -> None:
    for parent in path.relative_to(root).parents:
        init = root / parent / "__init__.py"
        if parent != Path() and init.exists():
            found[(parent / "__init__.py").as_posix()] = init


def pack_modules(files: dict[str, Path], archive: Path) -> Path:
    """Write files into a zip archive for Python; the same files give the same bytes."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, path in sorted(files.items()):
            packed.writestr(zipfile.ZipInfo(name), path.read_bytes())
    return archive


def ship_modules(session: SparkSession, strategy: Strategy, directory: Path) -> list[str]:
    """Send the strategy's modules to executors; return their names in the archive.

    Args:
        directory: for the archive; keep it while the session runs, executors that start later read it.
    """
    files = strategy_modules(strategy)
    if files:
        digest = hashlib.sha256("\0".join(f"{n}={p}" for n, p in files.items()).encode())
        archive = pack_modules(files, directory / f"kmr-{digest.hexdigest()[:12]}.zip")
        session.sparkContext.addPyFile(str(archive))
        _log.debug("modules sent to executors", modules=sorted(files))
    return sorted(files)


_SUFFIXES: Final = (".py", ".html", ".sql", ".typed")
_MAIN: Final = '''"""Runs a strategy on Spark: for spark-submit, written by `kmr spark package`."""

import sys
from importlib.metadata import EntryPoint

from kmr.cli.root import run_command

RUN = EntryPoint("run", "kmr.cli.run:run", "kmr.commands")

if __name__ == "__main__":
    sys.exit(run_command(["run", *sys.argv[1:]], [RUN]))
'''


@dataclass(frozen=True, slots=True)
class Package:
    """The files that `write_package` wrote.

    Attributes:
        main: the program.
        modules: an archive with our code and the strategy's modules.
        contents: the names of the strategy's modules in it.
    """

    main: Path
    modules: Path
    contents: tuple[str, ...]

    def command(self, strategy: str, master: str, flags: Sequence[str]) -> str:
        """Return the command that runs it, quoted for a shell."""
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
    """Write the program and the archive into a directory, and replace older ones.

    Raises:
        OSError: the directory cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files = strategy_modules(strategy)
    own = {
        path.relative_to(_OWN.parent).as_posix(): path
        for parent, _, names in os.walk(_OWN, followlinks=True)
        for path in (Path(parent, name) for name in names)
        if path.suffix in _SUFFIXES
    }
    modules = pack_modules(own | files, directory / "modules.zip")
    main = directory / "main.py"
    main.write_text(_MAIN)
    return Package(main.absolute(), modules.absolute(), tuple(sorted(files)))
