"""SCRAM by the examples of its RFCs, and against mistakes of clients."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.broker.authorization.scram import (
    Credential,
    ScramError,
    ScramExchange,
    hash_password,
    password_matches,
)

if TYPE_CHECKING:
    from kmr.broker.authorization.scram import ScramMechanism

# The example of RFC 7677.
SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
OUR_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
NONCE = f"rOprNGfwEbeRWgbNEkqO{OUR_NONCE}"
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
ANSWER = f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
FINAL = f"c=biws,r={NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
VERIFIER = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def exchange(password: str = "pencil", user: str = "user") -> ScramExchange:
    credential = hash_password("SCRAM-SHA-256", password, salt=SALT, iterations=4096)
    return ScramExchange("SCRAM-SHA-256", {user: credential}.__getitem__, nonce=OUR_NONCE)


def test_the_example_of_the_rfc_gets_the_responses_in_the_rfc() -> None:
    scram = exchange()
    assert scram.begin(FIRST) == ANSWER
    assert scram.user == "user"
    assert scram.finish(FINAL) == VERIFIER


def test_another_password_does_not_prove_anything() -> None:
    scram = exchange(password="pencils")
    scram.begin(FIRST)
    with pytest.raises(ScramError, match="proof is wrong"):
        scram.finish(FINAL)


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n,,",
        b"\xff",
        b"n,n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",  # channel binding
        b"n,a=other,n=user,r=abc",  # to act as another user
        b"n,,r=abc,n=user",
        b"n,,n=user",
        b"n,,n=,r=abc",
        b"n,,n=user,r=",
        b"n,,m=x,n=user,r=abc",  # an extension that must be understood
        b"n,,n=us=er,r=abc",
        b"n,,n=user,r=abc,r=def",
    ],
)
def test_a_malformed_first_message_is_refused(first: bytes) -> None:
    with pytest.raises(ScramError):
        exchange().begin(first)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"c=biws", b"c=eSws"),  # another header than in the first message
        (b"c=biws", b"c=%%"),
        (b"r=rOpr", b"r=xOpr"),
        (b",p=dHzb", b",p=dHzc"),
        (b",p=dHzb", b",p="),
        (FINAL[-46:], b""),
        (FINAL, b"\xff"),
    ],
)
def test_a_final_message_that_was_changed_is_refused(old: bytes, new: bytes) -> None:
    scram = exchange()
    scram.begin(FIRST)
    assert old in FINAL
    with pytest.raises(ScramError):
        scram.finish(FINAL.replace(old, new))


def test_a_final_message_without_a_first_one_is_refused() -> None:
    with pytest.raises(ScramError):
        exchange().finish(FINAL)


def test_names_may_have_commas_and_equals_signs() -> None:
    scram = exchange(user="a=b,c")
    scram.begin(b"n,,n=a=3Db=2Cc,r=rOprNGfwEbeRWgbNEkqO")
    assert scram.user == "a=b,c"


def test_a_user_may_name_itself_as_the_user_to_act_as() -> None:
    assert exchange().begin(b"n,a=user,n=user,r=rOprNGfwEbeRWgbNEkqO") == ANSWER


def client_final(
    mechanism: ScramMechanism, password: str, salt: bytes, iterations: int, first: str, answer: str
) -> bytes:
    """The proof of a client that knows the password (RFC 5802, section 3)."""
    name = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[mechanism]
    nonce = answer.split(",")[0]
    unproved = f"c=biws,{nonce}"
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)
    key = hmac.digest(salted, b"Client Key", name)
    signed = f"{first},{answer},{unproved}".encode()
    signature = hmac.digest(hashlib.new(name, key).digest(), signed, name)
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    return f"{unproved},p={b64encode(proof).decode()}".encode()


@given(
    password=st.text(min_size=1, max_size=20),
    tried=st.text(min_size=1, max_size=20),
    mechanism=st.sampled_from(["SCRAM-SHA-256", "SCRAM-SHA-512"]),
)
def test_only_the_password_itself_is_proved(
    password: str, tried: str, mechanism: ScramMechanism
) -> None:
    credential = hash_password(mechanism, password, iterations=2)
    for attempt in (password, tried):
        scram = ScramExchange(mechanism, lambda _: credential)
        answer = scram.begin(b"n,,n=u,r=abc").decode()
        final = client_final(mechanism, attempt, credential.salt, 2, "n=u,r=abc", answer)
        if attempt == password:
            assert scram.finish(final).startswith(b"v=")
        else:
            with pytest.raises(ScramError):
                scram.finish(final)
        assert password_matches(mechanism, credential, attempt) is (attempt == password)


def test_the_same_password_is_never_stored_the_same_way_twice() -> None:
    one, two = (hash_password("SCRAM-SHA-512", "secret") for _ in range(2))
    assert isinstance(one, Credential)
    assert (one.salt, one.stored_key, one.server_key) != (two.salt, two.stored_key, two.server_key)
    assert one.salt != two.salt
    assert one.stored_key != two.stored_key
