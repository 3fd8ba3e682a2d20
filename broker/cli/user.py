"""`kmr broker user`: who may connect to a broker that is started with --users."""

from __future__ import annotations

import sys
from getpass import getpass
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from broker.cli.errors import CommandError, UsageError, reports
from broker.cli.text import required, say
from broker.security.scram import DEFAULT_ITERATIONS
from broker.security.users import is_user_name, make_user, read_users, write_users

__all__ = ["app"]

app = App(
    name="user",
    help="Users of a broker that is started with --users FILE; it reads the file again by itself.",
)

UsersFile = Annotated[
    Path,
    Parameter(
        "--users",
        env_var="KMR_BROKER__USERS_FILE",
        help="The file of users; it has salted hashes, and is for its owner only.",
    ),
]


@app.command
@reports
def add(
    name: str,
    *,
    users: UsersFile,
    iterations: int = DEFAULT_ITERATIONS,
    replace: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> None:
    """Add a user, for PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512.

    Asks for the password on a terminal; otherwise it is the first line of stdin.

    Parameters
    ----------
    name
        What the user is called; in rules of `kmr broker acl` it is User:NAME.
    iterations
        Work to check one password, 4096 at least; more makes a stolen file less useful.
    replace
        Give a user that exists already a new password.
    """
    if not is_user_name(name):
        raise UsageError("the name of a user must not be empty")
    existing = read_users(users) if users.exists() else {}
    if name in existing and not replace:
        raise CommandError(f"user {name}: exists already; --replace gives it a new password")
    try:
        existing[name] = make_user(_password(name), iterations=iterations)
    except ValueError as error:
        raise UsageError(str(error)) from error
    write_users(users, existing)
    say(f"{name}: added")


@app.command
@reports
def remove(*names: str, users: UsersFile) -> None:
    """Remove users; connections that they have go on until they are closed."""
    existing = read_users(users)
    for name in required(names, "user"):
        if name not in existing:
            raise CommandError(f"user {name}: does not exist in {users}")
        del existing[name]
    write_users(users, existing)
    say(*(f"{name}: removed" for name in names))


@app.command(name="list")
@reports
def list_users(*, users: UsersFile) -> None:
    """List the users."""
    say(*sorted(read_users(users)))


def _password(name: str) -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    password = getpass(f"Password of {name}: ")
    if getpass("Once more: ") != password:
        raise UsageError("these were two different passwords")
    return password
