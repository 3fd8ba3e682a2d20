"""What an error of PostgreSQL means for the rows. Connections are checked in test_writer.py."""

from __future__ import annotations

import psycopg
import pytest

from kmr.sinks.answers import of_postgres
from kmr.sinks.postgres.connection import Pool


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (psycopg.errors.AdminShutdown(), "later"),
        (psycopg.errors.TooManyConnections(), "later"),
        (psycopg.errors.DeadlockDetected(), "later"),
        (psycopg.errors.QueryCanceled(), "later"),
        (psycopg.OperationalError("the connection is closed"), "later"),
        (TimeoutError(), "later"),
        (psycopg.errors.UndefinedColumn(), "schema"),
        (psycopg.errors.NumericValueOutOfRange(), "rows"),
        (psycopg.errors.UniqueViolation(), "rows"),
        (psycopg.errors.InsufficientPrivilege(), "stop"),
        (psycopg.errors.InvalidPassword(), "stop"),
        (psycopg.errors.InternalError_(), "rows"),
        (psycopg.errors.RaiseException(), "rows"),
        (psycopg.errors.ProgramLimitExceeded(), "rows"),
        (psycopg.errors.FeatureNotSupported(), "rows"),
        (psycopg.errors.ReadOnlySqlTransaction(), "later"),
        (psycopg.errors.DiskFull(), "later"),
        (ValueError(), "unknown"),
    ],
)
def test_an_error_is_for_later_or_for_the_table_or_for_a_row_or_for_the_user(
    error: Exception, kind: str
) -> None:
    assert of_postgres(error).kind == kind


def test_the_name_of_a_database_has_no_password() -> None:
    assert str(Pool.of("postgresql://me:secret@db:6432/web", 1.0)) == "PostgreSQL at db:6432/web"
