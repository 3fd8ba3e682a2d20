"""The principal in a client's certificate."""

import pytest

from kmr.broker.server.tls import certificate_principal


@pytest.mark.parametrize(
    ("subject", "principal"),
    [
        ((), "User:"),
        (((("commonName", "alice"),),), "User:CN=alice"),
        (
            ((("organizationName", "Example"),), (("commonName", "alice"),)),
            "User:CN=alice,O=Example",
        ),
        (((("commonName", "a"), ("userId", "1")),), "User:CN=a+UID=1"),
        (((("unknownName", "x"),),), "User:unknownName=x"),
        (((("commonName", 'a,b+"c'),),), 'User:CN=a\\,b\\+\\"c'),
        (((("commonName", " a "),),), "User:CN=\\ a\\ "),
        (((("commonName", "#a"),),), "User:CN=\\#a"),
    ],
)
def test_the_principal_is_the_subject_as_kafka_writes_it(
    subject: tuple[tuple[tuple[str, str], ...], ...], principal: str
) -> None:
    assert certificate_principal({"subject": subject}) == principal
