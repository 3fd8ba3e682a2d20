"""The user's own modules, on their way to executors."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from types import ModuleType

    from pyspark.sql import SparkSession

    from framework.strategy import Strategy

__all__ = ["OWN_PACKAGES", "pack_modules", "ship_modules", "users_modules"]

_log = structlog.get_logger(__name__)

_INSTALLED: Final = tuple(sysconfig.get_paths()[n] for n in ("stdlib", "purelib", "platlib"))
OWN_PACKAGES: Final = (Path(__file__).parents[1], Path(__file__).parents[2] / "service")
"""The directories of what a worker and the Spark engine consist of."""


def users_modules(strategy: Strategy) -> dict[str, Path]:
    """The files of modules that the strategy came from, by their names in an archive.

    These are all that are imported from the directories of the strategy's own modules, unless they are
    installed: executors have installed packages, but not a person's current directory.
    """
    parts = [strategy.map, *strategy.reduce, strategy.reduce_err]
    names = {getattr(part, "__module__", None) or type(part).__module__ for part in parts}
    names |= {type(part).__module__ for part in parts}
    roots = {root for name in names if (root := _root(sys.modules.get(name))) is not None}
    found: dict[str, Path] = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file is None or module.__name__ == "__main__" or _is_installed(Path(file)):
            continue
        path = Path(file).resolve()
        if not path.is_file():
            continue  # in an archive: it came by --py-files, as it does to executors
        for root in roots:
            if path.is_relative_to(root) and _root(module) == root:
                found[path.relative_to(root).as_posix()] = path
                _add_packages(found, path, root)
    return found


def _root(module: ModuleType | None) -> Path | None:
    """The directory on the path of modules that a module of the user's was found in."""
    file = getattr(module, "__file__", None)
    if module is None or file is None or module.__name__ == "__main__" or _is_installed(Path(file)):
        return None
    path = Path(file).resolve()
    depth = module.__name__.count(".") + (1 if path.name == "__init__.py" else 0)
    return path.parents[depth]


def _is_installed(path: Path) -> bool:
    resolved = path.resolve()
    return str(resolved).startswith(_INSTALLED) or any(map(resolved.is_relative_to, OWN_PACKAGES))


def _add_packages(found: dict[str, Path], path: Path, root: Path) -> None:
    for parent in path.relative_to(root).parents:
        init = root / parent / "__init__.py"
        if parent != Path() and init.exists():
            found[(parent / "__init__.py").as_posix()] = init


def pack_modules(files: dict[str, Path], archive: Path) -> Path:
    """Write files into a zip archive that Python imports from; the same files give the same bytes."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, path in sorted(files.items()):
            packed.writestr(zipfile.ZipInfo(name), path.read_bytes())
    return archive


def ship_modules(session: SparkSession, strategy: Strategy, directory: Path) -> list[str]:
    """Send the strategy's modules to executors; returns their names in the archive.

    Args:
        directory: holds the archive; executors that start later read it too.
    """
    files = users_modules(strategy)
    if files:
        digest = hashlib.sha256("\0".join(f"{n}={p}" for n, p in files.items()).encode())
        archive = pack_modules(files, directory / f"kmr-{digest.hexdigest()[:12]}.zip")
        session.sparkContext.addPyFile(str(archive))
        _log.debug("modules sent to executors", modules=sorted(files))
    return sorted(files)
