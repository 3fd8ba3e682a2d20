"""The users who may authenticate by SASL, in a file that holds salted hashes only.

`kmr broker user` changes it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from .private_files import PrivateFormat, WatchedFile
from .scram import (
    DEFAULT_ITERATIONS,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    Credential,
    ScramMechanism,
    hash_password,
    password_matches,
)

if TYPE_CHECKING:
    from pathlib import Path

_PLAIN_CHECKED_BY: Final[tuple[ScramMechanism, ...]] = ("SCRAM-SHA-512", "SCRAM-SHA-256")
_FIELDS: Final[Mapping[ScramMechanism, str]] = {
    "SCRAM-SHA-256": "scram_sha_256",
    "SCRAM-SHA-512": "scram_sha_512",
}


class User(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The credentials of one user, for one mechanism or both. Raise ValueError for none."""

    scram_sha_256: Credential | None = None
    scram_sha_512: Credential | None = None

    def __post_init__(self) -> None:
        if not self.credentials:
            raise ValueError("the user has no credential; give one for at least one mechanism")

    @property
    def credentials(self) -> dict[ScramMechanism, Credential]:
        return {
            mechanism: credential
            for mechanism, field in _FIELDS.items()
            if (credential := getattr(self, field)) is not None
        }


class _UsersFile(msgspec.Struct, forbid_unknown_fields=True):
    users: dict[str, User]


def is_user_name(name: str) -> bool:
    """Whether a user can have this name: SASL PLAIN ends names at a NUL."""
    return name != "" and "\0" not in name


def make_user(password: str, *, iterations: int = DEFAULT_ITERATIONS) -> User:
    """Return a user with this password. Raise ValueError if it is empty or iterations are out of range."""
    if not password:
        raise ValueError("the password is empty")
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise ValueError(
            f"iterations must be between {MIN_ITERATIONS} and {MAX_ITERATIONS}, not {iterations}"
        )
    return User(
        hash_password("SCRAM-SHA-256", password, iterations=iterations),
        hash_password("SCRAM-SHA-512", password, iterations=iterations),
    )


_FORMAT: Final = PrivateFormat[Mapping[str, User]](
    "the file of users",
    parse=lambda data: msgspec.json.decode(data, type=_UsersFile).users,
    document=lambda users: _UsersFile(dict(sorted(users.items()))),
    empty={},
)
read_users, write_users, change_users = _FORMAT.read, _FORMAT.write, _FORMAT.change


class Users:
    """The users of a running broker; the file is checked for changes at every authentication.

    Attributes:
        expire: whether they must authenticate again after a time, if the broker's settings say so.
    """

    expire = True

    def __init__(self, path: Path) -> None:
        """Raise BrokerError if the file cannot be read."""
        self._path = path
        self._file = WatchedFile(path, _FORMAT)
        self.secret = secrets.token_bytes(32)
        """Makes the salts of users that do not exist: a broker sets one that stays the same after a restart,
        as the salts of users do."""

    @property
    def by_name(self) -> Mapping[str, User]:
        """The users as the file has them now."""
        return self._file.content

    def credential(self, name: str, mechanism: ScramMechanism) -> Credential:
        """Return the credential of a user.

        A user that has none for this mechanism, or does not exist, gets one that cannot be proved, always
        the same: so clients cannot find out which users exist, as long as credentials have the default
        iterations.
        """
        user = self.by_name.get(name)
        credential = None if user is None else user.credentials.get(mechanism)
        if credential is not None:
            return credential
        salt = hmac.digest(self.secret, f"{mechanism}:{name}".encode(), "sha256")[:24]
        nothing = hashlib.sha512(self.secret + salt).digest()
        return Credential(salt, DEFAULT_ITERATIONS, nothing, nothing)

    def fingerprint(self, name: str, password: str) -> bytes:
        """Return what tells apart passwords that were checked already, without keeping them."""
        return hmac.digest(self.secret, f"{name}\0{password}".encode(), "sha256")

    def check_password(self, name: str, password: str) -> bool:
        """Whether it is this user's password, for at least one mechanism.

        Takes about 10 ms of CPU, twice that for a wrong password, also for unknown users.
        """
        return any(
            password_matches(mechanism, self.credential(name, mechanism), password)
            for mechanism in _PLAIN_CHECKED_BY
        )


class OneUser(Users):
    """A user who is in no file, and belongs to the broker."""

    expire = False

    def __init__(self, name: str, password: str) -> None:
        self._only = {name: make_user(password, iterations=MIN_ITERATIONS)}
        self.secret = secrets.token_bytes(32)

    @property
    def by_name(self) -> Mapping[str, User]:
        return self._only
