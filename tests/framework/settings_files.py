"""A settings file for a test, and the message of settings that are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kmr.errors import SettingsError
from kmr.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

MINIMAL = {"topics": ("flights",), "group": "g"}


def write(folder: Path, text: str) -> Path:
    config = folder / "kmr.toml"
    config.write_text(text, encoding="utf-8")
    return config


def refusal(**layers: object) -> str:
    with pytest.raises(SettingsError) as error:
        Settings.load(**layers)  # type: ignore[arg-type]
    return str(error.value)
