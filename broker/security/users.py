"""The users who may authenticate by SASL, in a file that has salted hashes only."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING, Final

import msgspec

from broker.errors import BrokerError
from broker.security.files import WatchedFile, read_private, write_private
from broker.security.scram import (
    DEFAULT_ITERATIONS,
    MIN_ITERATIONS,
    Credential,
    ScramMechanism,
    hash_password,
    password_matches,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["User", "Users", "make_user", "read_users", "write_users"]

_WHAT = "the file of users"
_PLAIN_CHECKED_BY: Final = "SCRAM-SHA-512"
_MAX_ITERATIONS = 1_000_000


class User(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The credentials of one user, one for each mechanism."""

    scram_sha_256: Credential
    scram_sha_512: Credential

    def credential(self, mechanism: ScramMechanism) -> Credential:
        return self.scram_sha_256 if mechanism == "SCRAM-SHA-256" else self.scram_sha_512


class _File(msgspec.Struct, forbid_unknown_fields=True):
    users: dict[str, User]


def make_user(password: str, *, iterations: int = DEFAULT_ITERATIONS) -> User:
    """A user with this password. Raises ValueError for one that is empty, or bad iterations."""
    if not password:
        raise ValueError("the password is empty")
    if not MIN_ITERATIONS <= iterations <= _MAX_ITERATIONS:
        raise ValueError(
            f"iterations must be between {MIN_ITERATIONS} and {_MAX_ITERATIONS}, not {iterations}"
        )
    return User(
        hash_password("SCRAM-SHA-256", password, iterations=iterations),
        hash_password("SCRAM-SHA-512", password, iterations=iterations),
    )


def read_users(path: Path) -> dict[str, User]:
    """The users in a file. Raises BrokerError."""
    return read_private(path, _parse, _WHAT)


def write_users(path: Path, users: Mapping[str, User]) -> None:
    """Create or replace a file of users, mode 0600. Raises BrokerError."""
    data = msgspec.json.format(msgspec.json.encode(_File(dict(sorted(users.items())))))
    try:
        write_private(path, data + b"\n")
    except OSError as error:
        raise BrokerError(f"{_WHAT} {path} cannot be written: {error.strerror}") from error


def _parse(data: bytes) -> dict[str, User]:
    return msgspec.json.decode(data, type=_File).users


class Users:
    """The users of a running broker; the file is looked at whenever somebody authenticates."""

    def __init__(self, path: Path) -> None:
        """Raises BrokerError."""
        self._file = WatchedFile(path, _parse, _WHAT)
        self._secret = secrets.token_bytes(32)

    def credential(self, name: str, mechanism: ScramMechanism) -> Credential:
        """The credential of a user.

        Who does not exist has one too, always the same and impossible to prove: nobody can find out
        by asking which names there are.
        """
        user = self._file.content.get(name)
        if user is not None:
            return user.credential(mechanism)
        salt = hmac.digest(self._secret, f"{mechanism}:{name}".encode(), "sha256")[:24]
        nothing = hashlib.sha512(self._secret + salt).digest()
        return Credential(salt, DEFAULT_ITERATIONS, nothing, nothing)

    def check_password(self, name: str, password: str) -> bool:
        """Whether it is this user's password; some 10 ms of computation, for unknown users too."""
        credential = self.credential(name, _PLAIN_CHECKED_BY)
        return password_matches(_PLAIN_CHECKED_BY, credential, password)
