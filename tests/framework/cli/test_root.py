"""The root of the command line: groups, errors, exit codes."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points, version
from typing import TYPE_CHECKING, Any

import pytest

from kmr.cli import main
from kmr.cli.root import GROUP, run_command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OURS = '''
"""`kmr ours`: the first line of the module.

And more.
"""
from kmr.errors import KmrError, SettingsError

def ours(what: str = "clean") -> int | None:
    """What ours does.

    In detail.
    """
    if what == "failed":
        raise KmrError("it went wrong")
    if what == "settings":
        raise SettingsError("a setting is wrong")
    if what == "interrupted":
        raise KeyboardInterrupt
    if what == "bug":
        raise ZeroDivisionError("a bug")
    return 3 if what == "three" else None

app = object()
'''


@pytest.fixture
def groups(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """Groups of commands: one that works, one that breaks when imported, one that is not there."""
    (folder / "ours.py").write_text(OURS, encoding="utf-8")
    (folder / "broken.py").write_text('"""Breaks."""\nimport absent_library\n', encoding="utf-8")
    (folder / "garbled.py").write_text("def (", encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    named = {
        "ours": "ours:ours",
        "module": "ours:app",
        "broken": "broken:app",
        "garbled": "garbled:app",
        "absent": "absent_module:app",
    }
    return [EntryPoint(name, value, GROUP) for name, value in named.items()]


def test_help_lists_every_group_without_importing_any(
    groups: list[EntryPoint], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["--help"], groups) == 0
    lines = capsys.readouterr().out
    for name, summary in {
        "ours": "What ours does.",
        "module": "The first line of the module.",
        "broken": "Breaks.",
        "garbled": "(cannot be loaded)",
        "absent": "(not installed)",
    }.items():
        (line,) = [line for line in lines.splitlines() if line.startswith(f"│ {name} ")]
        assert summary in line
    assert not {"ours", "broken", "garbled"} & set(sys.modules)


def test_help_does_not_import_the_package_around_a_group(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = folder / "heavy"
    (package / "cli").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    (package / "cli" / "__init__.py").write_text('"""Light."""', encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    assert run_command(["--help"], [EntryPoint("heavy", "heavy.cli:app", GROUP)]) == 0
    assert "Light." in capsys.readouterr().out
    assert "heavy" not in sys.modules


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 0, ""),
        (["three"], 3, ""),
        (["failed"], 1, "kmr: it went wrong\n"),
        (["settings"], 2, "kmr: a setting is wrong\n"),
        (["--colour", "red"], 2, "kmr: Unknown option: --colour"),
        (["interrupted"], 130, ""),
    ],
)
def test_the_exit_code_says_how_it_ended(
    groups: list[EntryPoint],
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    assert run_command(["ours", *arguments], groups) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(message)
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("way", ["flag first", "flag last", "variable"])
def test_debug_shows_the_traceback(
    groups: list[EntryPoint],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    arguments = ["ours", "failed"]
    if way == "variable":
        monkeypatch.setenv("KMR_DEBUG", "1")
    else:
        arguments.insert(0 if way == "flag first" else 2, "--debug")
    assert run_command(arguments, groups) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("kmr: it went wrong\n")


def test_an_unexpected_exception_is_not_hidden(groups: list[EntryPoint]) -> None:
    with pytest.raises(ZeroDivisionError):
        run_command(["ours", "bug"], groups)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "broken",
            (
                "kmr: the command broken (broken:app) cannot be loaded: ModuleNotFoundError: "
                "No module named 'absent_library'"
            ),
        ),
        ("garbled", "kmr: the command garbled (garbled:app) cannot be loaded: SyntaxError"),
        ("absent", "kmr: the command absent (absent_module:app) cannot be loaded"),
    ],
)
def test_a_group_that_cannot_be_loaded_says_why_and_breaks_no_other(
    groups: list[EntryPoint], capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    assert run_command([name], groups) == 1
    assert capsys.readouterr().err.startswith(message)
    assert run_command(["ours"], groups) == 0


def test_an_argument_too_many_is_named(
    groups: list[EntryPoint], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["ours", "clean", "more"], groups) == 2
    said = capsys.readouterr().err
    assert said == "kmr: too many arguments: more; --help shows those that there are\n"


def test_a_mistyped_command_suggests_the_nearest(kmr: Callable[..., Any]) -> None:
    output = kmr("vlidate")
    assert output.code == 2
    assert 'Did you mean "validate"?' in output.err


def test_the_version_is_that_of_the_distribution(kmr: Callable[..., Any]) -> None:
    assert kmr("--version").out.strip() == version("kafka-map-reduce")


def test_the_commands_of_the_framework_can_all_be_loaded() -> None:
    ours = [
        group
        for group in entry_points(group=GROUP)
        if group.module.startswith("kmr.") and not group.module.startswith("kmr.broker")
    ]
    assert {"run", "validate", "graph", "offsets", "top", "check", "config"} <= {
        group.name for group in ours
    }
    for group in ours:
        group.load()


def test_a_closed_pipe_ends_the_command_quietly(folder: Path) -> None:
    program = (
        "import sys; from kmr.cli.root import run_command; "
        "from importlib.metadata import EntryPoint; "
        "sys.exit(run_command(['flood'], [EntryPoint('flood', 'flood:flood', 'g')]))"
    )
    (folder / "flood.py").write_text(
        "def flood() -> None:\n    while True:\n        print('x' * 1000)\n", encoding="utf-8"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == 141
        assert process.stderr.read() == b""


def test_an_interrupt_while_the_command_is_imported_ends_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupt:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "kmr.cli.root":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "kmr.cli.root")
    monkeypatch.setattr(sys, "meta_path", [Interrupt(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130


def test_the_help_of_run_is_short_and_all_of_it_can_be_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    groups = entry_points(group=GROUP)
    assert run_command(["run", "--help"], groups) == 0
    short = capsys.readouterr().out
    assert run_command(["run", "--help-all"], groups) == 0
    whole = capsys.readouterr().out
    assert "--until-caught-up" in short
    assert "--session-timeout" not in short
    assert "--session-timeout" in whole
    assert len(short.splitlines()) < 80 < len(whole.splitlines())


@pytest.mark.parametrize(
    "command", [["offsets", "reset"], ["peek"], ["broker", "serve"], ["doctor"]]
)
def test_the_help_of_each_command_leaves_out_what_few_need_and_breaks_no_name(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    groups = entry_points(group=GROUP)
    sizes = []
    for ask in ("--help", "--help-all", "--help"):
        assert run_command([*command, ask], groups) == 0
        shown = capsys.readouterr().out
        assert "…" not in shown
        sizes.append(len(shown.splitlines()))
        if ask == "--help-all":
            flags = {word for word in shown.split() if word.startswith("--")}
            assert flags & {
                "--security-oauth-token-provider",
                "--transactional-id-expiration-seconds",
            }
    assert sizes[0] == sizes[2] < 80 < sizes[1]


@pytest.mark.parametrize("command", [["run", "--hepl"], ["--hepl"]])
def test_a_mistyped_help_is_understood(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(command, entry_points(group=GROUP)) == 2
    assert "Did you mean --help?" in capsys.readouterr().err
