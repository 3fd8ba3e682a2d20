"""How to reach a ClickHouse."""

import os, fcntl
from pathlib import Path


def data_directory_owner(path: Path) -> int | None:
    return None
