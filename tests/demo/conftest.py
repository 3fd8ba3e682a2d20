"""The embedded ClickHouse of the package's own tests."""

from tests.framework.embedded.conftest import ask, server

__all__ = ["ask", "server"]
