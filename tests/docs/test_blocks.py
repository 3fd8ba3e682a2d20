"""The code of README, of every page and of every docstring is run, or its block says why not.

Of one page, in the order of its blocks, in an empty directory:

- `python` blocks run as one module. One that begins with `# name.py` is also saved under that name and
  imported, and its `strategy` is validated. Functions named `test_...` that need no fixture are called.
- `shell` blocks run as one script, after the files are saved, with a broker's free port in the environment.
  Each line of a `text` block must be in their output. They start processes: use them sparingly.
- `python in a notebook` blocks run after the `shell` blocks as one program, so they have their broker.
- `toml` blocks are read as settings of a worker, where they have the table `[kmr]`.
- Every command line that begins with `kmr` is parsed, in `shell` blocks and in indented ones, run or not.

The `python` block of a docstring runs as a module of its own; a `strategy` in it is validated.

A block that is not run says why after its language: ```` ```shell not run: it needs a cluster ````.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
import types
from contextlib import contextmanager
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from kmr.chaos.services import free_port
from kmr.cli.root import GROUP, _app
from kmr.settings import WORKER
from kmr.strategy import Strategy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cyclopts import App

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r" not run: \S.*")
CELL = " in a notebook"
INDENTED = re.compile(r"^ {4,}(kmr (?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE)
FILE = re.compile(r"# (\w+\.(?:py|toml))\n")
LANGUAGES = {"python", "shell", "toml", "text", "sql", "json", "yaml", "ini", "dockerfile"}


class Block(NamedTuple):
    language: str
    code: str
    is_run: bool
    is_cell: bool = False

    @property
    def file(self) -> str | None:
        found = FILE.match(self.code)
        return found and found[1]


def blocks_of(page: Path) -> list[Block]:
    found = []
    for language, info, code in FENCE.findall(page.read_text(encoding="utf-8")):
        assert language in LANGUAGES, f"{page.name}: a block is {language}, not {LANGUAGES}"
        cell = info == CELL and language == "python"
        assert not info or cell or NOT_RUN.fullmatch(info), f"{page.name}: ```{language}{info}"
        found.append(Block(language, code, not info, cell))
    return found


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def pages_with(language: str) -> list[Path]:
    return [
        page for page in PAGES if any(b.is_run and b.language == language for b in blocks_of(page))
    ]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory whose modules are found, and forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def save(page: Path, folder: Path) -> None:
    for block in blocks_of(page):
        if block.file is not None and block.is_run:
            (folder / block.file).write_text(block.code, encoding="utf-8")


@contextmanager
def as_module(name: str) -> Iterator[types.ModuleType]:
    """A module that is found by its name, where msgspec looks for the names of annotations."""
    module = sys.modules[name] = types.ModuleType(name)
    try:
        yield module
    finally:
        del sys.modules[name]


@pytest.mark.parametrize("page", pages_with("python"), ids=named)
def test_the_python_of_a_page_runs(page: Path, folder: Path) -> None:
    save(page, folder)
    with as_module("page") as module:
        for block in blocks_of(page):
            if block.language == "python" and block.is_run:
                exec(compile(block.code, named(page), "exec"), module.__dict__)
                if block.file is not None:
                    saved = importlib.import_module(block.file.removesuffix(".py"))
                    if isinstance(strategy := getattr(saved, "strategy", None), Strategy):
                        strategy.validate()
        for name, value in list(vars(module).items()):
            if name.startswith("test_") and not inspect.signature(value).parameters:
                value()


def docstring_examples() -> Iterator[tuple[str, str]]:
    """The place and the code of each `python` block in a docstring of the package."""
    for path in sorted([*(ROOT / "framework").rglob("*.py"), *(ROOT / "broker").rglob("*.py")]):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "```python" in text else ():
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                code = textwrap.dedent(ast.get_docstring(node) or "")
                for block in re.findall(r"^( *)```python\n(.*?)^\1```$", code, re.M | re.S):
                    yield (
                        f"{path.relative_to(ROOT)}:{getattr(node, 'name', '')}",
                        textwrap.dedent(block[1]),
                    )


@pytest.mark.parametrize(
    "code", [pytest.param(code, id=place) for place, code in docstring_examples()]
)
def test_the_example_of_a_docstring_runs(code: str, folder: Path) -> None:
    with as_module("example") as module:
        exec(compile(code, "docstring", "exec"), module.__dict__)
        if isinstance(strategy := getattr(module, "strategy", None), Strategy):
            strategy.validate()


@pytest.mark.parametrize("page", pages_with("toml"), ids=named)
def test_the_settings_of_a_page_are_valid(page: Path, folder: Path) -> None:
    for block in blocks_of(page):
        if block.language == "toml" and block.is_run and "kmr" in tomllib.loads(block.code):
            file = folder / "kmr.toml"
            file.write_text(block.code, encoding="utf-8")
            names = tomllib.loads(block.code)["kmr"]
            WORKER.load(file, {}, {"topics": ("t",), "group": "g"} if "group" not in names else {})


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_with("shell"), ids=named)
def test_the_commands_of_a_page_run_and_print_what_it_says(
    page: Path, folder: Path, request: pytest.FixtureRequest
) -> None:
    if "open_session(" in page.read_text(encoding="utf-8"):
        request.getfixturevalue("quick_jvms")
    save(page, folder)
    script, expected = [], []
    for block in blocks_of(page):
        if block.language == "shell" and block.is_run:
            script.append(block.code)
        elif block.language == "text" and block.is_run:
            expected += block.code.splitlines()
    cells = "\n".join(block.code for block in blocks_of(page) if block.is_cell)
    (folder / "cells.py").write_text(cells, encoding="utf-8")
    script.append("python cells.py\n")
    port = free_port()
    done = subprocess.run(
        ["bash", "-e", "-c", "trap 'kill $(jobs -p) && wait' EXIT\n" + "".join(script)],
        env={name: value for name, value in os.environ.items() if not name.startswith("KMR_")}
        | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "KMR_BROKER__PORT": str(port),
            "KMR_BOOTSTRAP_SERVERS": f"127.0.0.1:{port}",
            "KMR_LOG__LEVEL": "error",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,  # seconds; only so that nothing hangs
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for line in expected:
        assert line in done.stdout, done.stdout + done.stderr


def commands_of(page: Path) -> Iterator[list[str]]:
    """The arguments of each `kmr` of the page's shell blocks and of its indented ones."""
    text = page.read_text(encoding="utf-8")
    indented = INDENTED.findall(FENCE.sub("", text))
    shell = [block.code for block in blocks_of(page) if block.language == "shell"]
    for code in (*indented, *shell):
        code = re.sub(r"<<'(\w+)'(.*?)^\1$", "", code, flags=re.MULTILINE | re.DOTALL)
        for line in code.replace("\\\n", " ").splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            command: list[str] = []
            for token in [*lexer, ";"]:
                if not set(token) <= set("();<>|&"):
                    command.append(token)
                    continue
                while command and re.match(r"[A-Z_]+=", command[0]):
                    del command[0]
                if command[:1] == ["kmr"]:
                    yield command[1:]
                command = [] if set(token) <= set(";|&") else ["<"]  # the name of a file follows


@cache
def command(group: str) -> App:
    return _app([group], {each.name: each for each in entry_points(group=GROUP)})


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_command_line_of_a_page_parses(page: Path) -> None:
    for arguments in commands_of(page):
        if not {"--help", "--version"} & {*arguments} and "..." not in arguments:
            app = command(arguments[0])
            app.parse_args(arguments, exit_on_error=False, print_error=False)
