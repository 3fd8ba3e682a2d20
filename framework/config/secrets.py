"""Secrets in the environment: the value itself, or the name of a file that has it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE_SUFFIX = "_FILE"


def read_secret(environ: Mapping[str, str], variable: str) -> str | None:
    """Return a variable's value, or the content of the file that `VARIABLE_FILE` names; None without either.

    An empty variable counts as not set. The file's last line break is no part of its content.

    Raises:
        SettingsError: both are set, or the file cannot be read, or is empty.
    """
    value, file = environ.get(variable), environ.get(f"{variable}{FILE_SUFFIX}")
    if not file:
        return value or None
    if value:
        raise SettingsError(f"{variable} and {variable}{FILE_SUFFIX} are both set: remove one")
    try:
        content = Path(file).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise SettingsError(f"{variable}{FILE_SUFFIX}={file}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise SettingsError(f"{variable}{FILE_SUFFIX}={file} is not text in UTF-8") from None
    if not content:
        raise SettingsError(f"{variable}{FILE_SUFFIX}={file} is empty")
    return content
