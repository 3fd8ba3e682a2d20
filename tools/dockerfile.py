"""Run the instructions of a Dockerfile in an empty directory, where there is no container runtime.

    python tools/dockerfile.py [DOCKERFILE] [--keep DIRECTORY]

Each stage is a folder, and this machine's Python stands for the base image: FROM, COPY, ENV, ARG, WORKDIR and
RUN do what they say, with each absolute path that a stage makes moved into its folder. Then the size is
printed, a strategy is copied in, and a worker processes records of a broker, both in a mount that is
read-only (for that it must be root). What it does not check: the base image, and the isolation of a
container.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_MOVED: Final = re.compile(r"(?<![\w./}])/(?=(?:opt|src|app)\b)")
_BASE_MB: Final = 125  # python:3.13-slim: not measured here
_MOST_MB: Final = 500


def instructions(text: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile, in their order: the word, and its arguments."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = "\n".join(lines).replace("\\\n", " ")
    return [
        (word.upper(), rest.strip())
        for word, _, rest in (
            line.strip().partition(" ") for line in joined.splitlines() if line.strip()
        )
    ]


def included(ignore: Path) -> list[str]:
    """Return what a `.dockerignore` that begins with `*` lets in."""
    lines = ignore.read_text(encoding="utf-8").split()
    if lines[0] != "*":
        raise SystemExit(f"{ignore}: it must begin with *, and name what is copied")
    return [line[1:] for line in lines if line.startswith("!")]


@dataclass
class Stage:
    """One stage of a build: a folder that stands for its file system."""

    root: Path
    workdir: Path = field(default_factory=Path)
    variables: dict[str, str] = field(default_factory=dict)
    last: dict[str, str] = field(default_factory=dict)

    def at(self, text: str) -> str:
        """Move the absolute paths in a text into the folder."""
        return _MOVED.sub(f"{self.root}/", text)

    def expand(self, text: str) -> str:
        """Replace variables, and move paths."""
        known = {"PATH": os.environ["PATH"]} | self.variables
        return self.at(Template(text).safe_substitute(known))

    def copy(self, source: Path, target: str) -> None:
        """Copy a file or the contents of a folder."""
        to = self.workdir / self.at(target)
        if source.is_dir() and not source.is_symlink():
            skip = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, to, symlinks=True, dirs_exist_ok=True, ignore=skip)
        else:
            to = to / source.name if to.is_dir() else to
            shutil.copy2(source, to, follow_symlinks=False)

    def run(self, command: str) -> None:
        """Run a shell command; its failure ends the program."""
        print(f"  RUN {' '.join(command.split())}", flush=True)
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.root)} | self.variables
        done = subprocess.run(
            ["sh", "-ec", self.at(command)], cwd=self.workdir, env=environment, check=False
        )
        if done.returncode:
            raise SystemExit(f"exit code {done.returncode}")


def build(dockerfile: Path, directory: Path) -> Stage:
    """Run every instruction; return the last stage."""
    stages: dict[str, Stage] = {}
    stage = Stage(directory)
    for word, rest in instructions(dockerfile.read_text(encoding="utf-8")):
        if word == "FROM":
            name = rest.partition(" AS ")[2] or f"stage-{len(stages)}"
            print(f"FROM {rest}")
            stage = stages[name] = Stage(directory / name)
            stage.workdir = stage.root
            stage.root.mkdir(parents=True)
        elif word == "ARG":
            name, _, value = rest.partition("=")
            stage.variables[name] = value.strip('"')
        elif word == "ENV":
            for each in shlex.split(rest):
                name, _, value = each.partition("=")
                stage.variables[name] = stage.expand(value)
        elif word == "WORKDIR":
            stage.workdir = Path(stage.at(rest))
            stage.workdir.mkdir(parents=True, exist_ok=True)
        elif word == "COPY" and rest.startswith("--from="):
            origin, source, target = rest.removeprefix("--from=").split()
            moved = Path(stages[origin].at(source))
            # A virtual environment knows its own place: moved as a link, it stays whole.
            where = Path(stage.at(target))
            where.parent.mkdir(parents=True, exist_ok=True)
            where.symlink_to(moved)
        elif word == "COPY":
            for each in included(dockerfile.with_name(f"{dockerfile.name}.dockerignore")):
                source_path = ROOT / each
                if source_path.is_dir() and not source_path.is_symlink():
                    stage.copy(source_path, each)
                else:
                    stage.copy(source_path, ".")
        elif word == "RUN":
            stage.run(rest)
        else:
            stage.last[word] = rest
    return stage


_STRATEGY: Final = """
import msgspec

from kmr import Json, Strategy, map_record
from kmr.sinks import StreamWriter

class Number(msgspec.Struct):
    n: int

@map_record
def double(number: Number) -> Number:
    return Number(number.n * 2)

strategy = Strategy(value=Json(Number), map=double, reduce=[StreamWriter("ROWS")])
"""
_SETTINGS: Final = """
[kmr]
strategy = "strategy"
topics = ["numbers"]
group = "numbers"
"""
_READ_ONLY: Final = """
mount --bind "$1" "$1" && mount -o remount,bind,ro "$1"
if touch "$1/file" 2>/dev/null; then echo "$1 is not read-only"; exit 1; fi
shift
exec "$@"
"""


def try_image(stage: Stage, directory: Path, scratch: Path) -> None:
    """Process two records by a worker of the image, whose folder is read-only."""
    rows = scratch / "rows.jsonl"
    (stage.workdir / "strategy.py").write_text(_STRATEGY.replace("ROWS", str(rows)))
    (stage.workdir / "kmr.toml").write_text(_SETTINGS)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = stage.variables | {
        **dict.fromkeys(("HOME", "TMPDIR"), str(scratch)),
        "NUMBA_CACHE_DIR": str(scratch / "kmr"),
        "KMR_HTTP__PORT": "0",
        "KMR_BOOTSTRAP_SERVERS": address,
    }

    def start(words: list[str], stdin: int | None = None) -> subprocess.Popen[bytes]:
        guarded = ["unshare", "--mount", "sh", "-ec", _READ_ONLY, "sh", str(directory), *words]
        return subprocess.Popen(guarded, cwd=stage.workdir, env=environment, stdin=stdin)

    port = address.rpartition(":")[2]
    broker = start(["kmr", "broker", "serve", "--port", port, "--data", str(scratch / "broker")])
    try:
        for _ in range(30):  # until the broker listens
            produced = start(["kmr", "broker", "produce", "numbers"], stdin=subprocess.PIPE)
            produced.communicate(b'{"n": 1}\n{"n": 2}\n', timeout=60)
            if produced.returncode == 0:
                break
        words = [*json.loads(stage.at(stage.last["ENTRYPOINT"])), *json.loads(stage.last["CMD"])]
        print(shlex.join(words), flush=True)
        began = time.monotonic()
        if start([*words, "--until-caught-up"]).wait(120) != 0:
            raise SystemExit("the worker failed")
        print(f"the worker ended after {time.monotonic() - began:.1f} s and wrote:")
        print(rows.read_text(), end="")
    finally:
        broker.terminate()
        broker.wait(60)


def main() -> None:
    """Build, measure and try."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "dockerfile", nargs="?", type=Path, default=ROOT / "deploy/docker/Dockerfile"
    )
    parser.add_argument("--keep", type=Path, help="build here, and leave it")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as temporary,
        tempfile.TemporaryDirectory() as scratch,
    ):
        directory = given.keep or Path(temporary)
        stage = build(given.dockerfile, directory)
        size = sum(
            path.lstat().st_size
            for top in (stage.root / "opt").iterdir()
            for path in top.resolve().rglob("*")
            if path.is_file() and not path.is_symlink()
        )
        print(f"{size / 1e6:.0f} MB, and about {_BASE_MB} MB of the base image", flush=True)
        if size / 1e6 + _BASE_MB > _MOST_MB:
            raise SystemExit(f"more than {_MOST_MB} MB")
        try_image(stage, directory, Path(scratch))


if __name__ == "__main__":
    main()
