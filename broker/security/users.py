"""The users who may authenticate by SASL, in a file that has salted hashes only."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING, Final, NamedTuple

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

__all__ = [
    "Alteration",
    "User",
    "Users",
    "altered",
    "is_user_name",
    "make_user",
    "read_users",
    "write_users",
]

_WHAT = "the file of users"
_PLAIN_CHECKED_BY: Final[tuple[ScramMechanism, ...]] = ("SCRAM-SHA-512", "SCRAM-SHA-256")
_MAX_ITERATIONS = 1_000_000
_FIELDS: Final[Mapping[ScramMechanism, str]] = {
    "SCRAM-SHA-256": "scram_sha_256",
    "SCRAM-SHA-512": "scram_sha_512",
}


class User(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The credentials of one user, for one mechanism or both. Raises ValueError for none."""

    scram_sha_256: Credential | None = None
    scram_sha_512: Credential | None = None

    def __post_init__(self) -> None:
        if not self.credentials:
            raise ValueError("a user has a credential for one mechanism at least")

    @property
    def credentials(self) -> dict[ScramMechanism, Credential]:
        """Those that there are."""
        return {
            mechanism: credential
            for mechanism, field in _FIELDS.items()
            if (credential := getattr(self, field)) is not None
        }


class Alteration(NamedTuple):
    """The credential for a mechanism that a user gets in place of what there was; None: it has none."""

    mechanism: ScramMechanism
    credential: Credential | None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    users: dict[str, User]


def is_user_name(name: str) -> bool:
    """Whether somebody can be called so: SASL PLAIN ends names at a NUL."""
    return name != "" and "\0" not in name


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


def altered(users: Mapping[str, User], alterations: Mapping[str, Alteration]) -> dict[str, User]:
    """The users after this, by name; who has no credential any more is none of them."""
    changed = dict(users)
    for name, (mechanism, credential) in alterations.items():
        user = changed.pop(name, None)
        credentials = {} if user is None else user.credentials
        credentials.pop(mechanism, None)
        if credential is not None:
            credentials[mechanism] = credential
        if credentials:
            changed[name] = User(**{_FIELDS[each]: kept for each, kept in credentials.items()})
    return changed


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
        self._path = path
        self._file = WatchedFile(path, _parse, _WHAT)
        self._secret = secrets.token_bytes(32)

    @property
    def by_name(self) -> Mapping[str, User]:
        """Those who may authenticate, from a look into the file at this moment."""
        return self._file.content

    def alter(self, alterations: Mapping[str, Alteration]) -> None:
        """Change what the file says of these users; it holds at once, for who authenticates from now on.

        Raises BrokerError: the file cannot be written, or makes no sense, and is left as it is.
        """
        write_users(self._path, altered(read_users(self._path), alterations))
        self._file.look()

    def credential(self, name: str, mechanism: ScramMechanism) -> Credential:
        """The credential of a user.

        Who has none for this mechanism, or does not exist, gets one too, always the same and impossible
        to prove: nobody can find out by asking which names there are, as long as the credentials of
        others have the default iterations.
        """
        user = self.by_name.get(name)
        credential = None if user is None else user.credentials.get(mechanism)
        if credential is not None:
            return credential
        salt = hmac.digest(self._secret, f"{mechanism}:{name}".encode(), "sha256")[:24]
        nothing = hashlib.sha512(self._secret + salt).digest()
        return Credential(salt, DEFAULT_ITERATIONS, nothing, nothing)

    def check_password(self, name: str, password: str) -> bool:
        """Whether it is this user's password, for one mechanism at least.

        Some 10 ms of computation, twice that for a wrong one, for unknown users too.
        """
        return any(
            password_matches(mechanism, self.credential(name, mechanism), password)
            for mechanism in _PLAIN_CHECKED_BY
        )
