"""The completion scripts are those of the whole command."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

from kmr.cli.completion import completion

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_bash_completes_with_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    completion("bash")
    (tmp_path / "kmr.bash").write_text(capsys.readouterr().out)
    program = "source kmr.bash; COMP_WORDS=(kmr offs); COMP_CWORD=1; _kmr; echo ${COMPREPLY[@]}"
    done = subprocess.run(
        ["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["offsets"]


def test_zsh_loads_the_script_from_a_file_of_the_name_in_the_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    completion("zsh")
    script = capsys.readouterr().out
    assert script.startswith("#compdef kmr\n")
    # zsh calls the function that has the name of the file.
    name = re.search(r"~/\.zfunc/(\w+)", completion.__doc__ or "")
    assert name is not None
    assert f"\n{name[1]}() {{\n" in script
