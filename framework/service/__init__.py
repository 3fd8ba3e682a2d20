"""Parts of any long-running process, worker or broker: HTTP endpoints, logs, memory."""

from typing import Literal

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["console", "json"]
