"""`kmr broker user`: users in the file of a broker that runs with --users."""

from __future__ import annotations

import sys
from getpass import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from ..authorization.scram import DEFAULT_ITERATIONS
from ..authorization.users import change_users, is_user_name, make_user, read_users
from .terminal import CommandError, Flag, UsageError, reports, required, say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..authorization.users import User

app = App(name="user")

UsersFile = Annotated[
    Path,
    Parameter(
        "--users",
        env_var="KMR_BROKER__USERS_FILE",
        help="The file of users, with salted hashes; only its owner can read it.",
    ),
]


@app.command
@reports
def add(
    name: str, *, users: UsersFile, iterations: int = DEFAULT_ITERATIONS, replace: Flag = False
) -> None:
    """Add a user for PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512.

    Prompts for the password on a terminal; otherwise reads it from the first line of stdin.

    Parameters
    ----------
    name
        Name of the user; rules of `kmr broker acl` call it User:NAME.
    iterations
        Hash iterations, at least 4096; more make a stolen file less useful.
    replace
        Set a new password for an existing user.
    """
    if not is_user_name(name):
        raise UsageError("the name of a user must not be empty")

    def with_user(existing: Mapping[str, User]) -> Mapping[str, User]:
        if name in existing and not replace:
            raise CommandError(f"user {name}: already exists; --replace sets a new password")
        try:
            return {**existing, name: make_user(_password(name), iterations=iterations)}
        except ValueError as error:
            raise UsageError(str(error)) from error

    change_users(users, with_user, create=True)
    say(f"{name}: added")


@app.command
@reports
def remove(*names: str, users: UsersFile) -> None:
    """Remove users; their open connections stay open."""

    def without_users(existing: Mapping[str, User]) -> Mapping[str, User]:
        for name in required(names, "user"):
            if name not in existing:
                raise CommandError(f"user {name}: does not exist in {users}")
        return {name: user for name, user in existing.items() if name not in names}

    change_users(users, without_users)
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
    if getpass("Repeat it: ") != password:
        raise UsageError("the passwords differ")
    return password
