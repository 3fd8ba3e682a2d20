"""The completion scripts are those of the whole command."""

from __future__ import annotations

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
