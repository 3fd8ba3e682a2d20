"""SCRAM, the server's side (RFC 5802, RFC 7677): clients prove a password without sending it.

Names and passwords are compared as UTF-8, without SASLprep, which Kafka's clients do not apply either.
As in Kafka, there is no channel binding.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

ScramMechanism = Literal["SCRAM-SHA-256", "SCRAM-SHA-512"]

HASHES: Final[dict[ScramMechanism, str]] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MIN_ITERATIONS = 4096
"""Clients refuse fewer."""
DEFAULT_ITERATIONS = 16_384
"""Kafka's maximum, about 10 ms of CPU on each side."""
MAX_ITERATIONS = 1_000_000
"""About 0.6 s of CPU for each password that is checked."""

_SALT_BYTES = 24


class Credential(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stored form of a password: it can check a proof, and cannot make one."""

    salt: bytes
    iterations: Annotated[int, msgspec.Meta(ge=MIN_ITERATIONS, le=MAX_ITERATIONS)]
    stored_key: bytes
    server_key: bytes


class ScramError(Exception):
    """The client's message is malformed, or its proof is wrong."""


def hash_password(
    mechanism: ScramMechanism,
    password: str,
    *,
    salt: bytes | None = None,
    iterations: int = DEFAULT_ITERATIONS,
) -> Credential:
    """Return the credential of a password, by default with a new random salt."""
    salt = secrets.token_bytes(_SALT_BYTES) if salt is None else salt
    salted = hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)
    name = HASHES[mechanism]
    client_key = hmac.digest(salted, b"Client Key", name)
    stored_key = hashlib.new(name, client_key).digest()
    server_key = hmac.digest(salted, b"Server Key", name)
    return Credential(salt, iterations, stored_key, server_key)


def password_matches(mechanism: ScramMechanism, credential: Credential, password: str) -> bool:
    """Whether the credential was made from this password; takes as long as making it."""
    made = hash_password(
        mechanism, password, salt=credential.salt, iterations=credential.iterations
    )
    return hmac.compare_digest(made.stored_key, credential.stored_key)


class ScramExchange:
    """One authentication: the client's first message, then its final one."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        find: Callable[[str], Credential],
        *,
        nonce: str | None = None,
    ) -> None:
        """`find` returns the credential of a user; for unknown users, one that nothing can prove.

        `nonce` is the server's half of the nonce, for tests with known messages.
        """
        self.user = ""
        self._hash = HASHES[mechanism]
        self._find = find
        self._nonce = secrets.token_urlsafe(_SALT_BYTES) if nonce is None else nonce
        self._binding = b""
        self._first = ""  # both first messages, as the signature covers them
        self._credential: Credential | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the client's first message was answered."""
        return self._credential is not None

    def begin(self, message: bytes) -> bytes:
        """Answer the client's first message. Raise ScramError."""
        text = _text(message)
        parts = text.split(",", 2)
        if len(parts) != 3:
            raise ScramError("the message has no header")
        flag, authorization, bare = parts
        if flag not in ("n", "y"):
            raise ScramError("channel binding is not served")
        attributes = _attributes(bare, "nr")
        self.user = _name(attributes["n"])
        if authorization and authorization != f"a={attributes['n']}":
            raise ScramError("a user cannot act as another user")
        self._binding = f"{flag},{authorization},".encode()
        self._nonce = attributes["r"] + self._nonce
        credential = self._credential = self._find(self.user)
        salt = b64encode(credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={credential.iterations}"
        self._first = f"{bare},{answer}"
        return answer.encode()

    def finish(self, message: bytes) -> bytes:
        """Check the client's final message, and prove the server's knowledge. Raise ScramError."""
        credential = self._credential
        if credential is None:
            raise ScramError("the first message is missing")
        text = _text(message)
        unproved, _, _ = text.rpartition(",p=")
        attributes = _attributes(text, "crp")
        if _decoded(attributes["c"]) != self._binding or attributes["r"] != self._nonce:
            raise ScramError("the final message does not belong to the first one")
        signed = f"{self._first},{unproved}".encode()
        signature = hmac.digest(credential.stored_key, signed, self._hash)
        proof = _decoded(attributes["p"])
        if len(proof) != len(signature):
            raise ScramError("the proof has a wrong length")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        stored_key = hashlib.new(self._hash, client_key).digest()
        if not hmac.compare_digest(stored_key, credential.stored_key):
            raise ScramError("the proof is wrong")
        verifier = hmac.digest(credential.server_key, signed, self._hash)
        return b"v=" + b64encode(verifier)


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramError("the message is not UTF-8") from None


def _attributes(text: str, names: str) -> dict[str, str]:
    """Return the attributes of a message, which must begin with the first two and have all, once each."""
    pairs = [each.partition("=") for each in text.split(",")]
    found = {name: value for name, _, value in pairs}
    order = [name for name, _, _ in pairs]
    if (
        order[:2] != list(names[:2])
        or not all(found.get(name) for name in names)
        or len(found) != len(order)
    ):
        raise ScramError(f"the message must have the attributes {', '.join(names)}")
    return found


def _name(escaped: str) -> str:
    """Decode a user's name, in which `,` is sent as `=2C` and `=` as `=3D`."""
    if escaped.count("=") != escaped.count("=2C") + escaped.count("=3D"):
        raise ScramError("the name has a = that is not escaped")
    return escaped.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError):
        raise ScramError("an attribute is not base64") from None
