"""Listeners: the addresses at which a broker is reached, each with its own security, as Kafka's listeners."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_LISTENER: Final = re.compile(
    r"(?:(?P<name>[A-Za-z][A-Za-z0-9_.-]*)=)?(?P<protocol>[A-Za-z_]+)://"
    r"(?P<host>\[[^\[\]]+\]|[^:/\[\]]+):(?P<port>\d{1,5})"
)
_ADVERTISED: Final = re.compile(
    r"(?P<name>[A-Za-z][A-Za-z0-9_.-]*)=(?P<host>\[[^\[\]]+\]|[^:/\[\]]+):(?P<port>\d{1,5})"
)
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_LARGEST_PORT: Final = 65_535


@dataclass(frozen=True, slots=True)
class Listener:
    """An address to listen on.

    Attributes:
        name: for people, and for the settings that clients can read.
        protocol: what clients must speak there, in Kafka's words: `PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or
            `SASL_SSL`.
        host, port: where it listens; port 0 takes any free one.
        advertised_host, advertised_port: where its clients connect to; None: where they connected first.
    """

    name: str
    protocol: str
    host: str
    port: int
    advertised_host: str | None = None
    advertised_port: int | None = None

    @property
    def is_encrypted(self) -> bool:
        """Whether connections are encrypted by TLS."""
        return self.protocol.endswith("SSL")

    @property
    def is_authenticated(self) -> bool:
        """Whether clients authenticate by SASL."""
        return self.protocol.startswith("SASL")

    @property
    def bound(self) -> str:
        """`HOST:PORT` that it listens on."""
        return _joined(self.host, self.port)

    @property
    def address(self) -> str:
        """`HOST:PORT` for its clients, unless the host stands for every interface."""
        return _joined(self.advertised_host or self.host, self.advertised_port or self.port)


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_listeners(listeners: Iterable[str], advertised: Iterable[str] = ()) -> list[Listener]:
    """Read listeners such as `EXTERNAL=sasl_ssl://0.0.0.0:9093`, and addresses such as `EXTERNAL=host:9093`.

    Each text may have several, with commas between them. A listener without a name is named as its protocol.

    Raises:
        ValueError: one of them cannot be read, or two do not go together.
    """
    found: dict[str, Listener] = {}
    for text in _single(listeners):
        listener = _listener(text)
        if listener.name in found:
            raise ValueError(
                f"two listeners are named {listener.name}; give each a name of its own"
            )
        same = [
            each
            for each in found.values()
            if listener.port and (each.host, each.port) == (listener.host, listener.port)
        ]
        if same:
            raise ValueError(f"listeners {same[0].name} and {listener.name} have the same address")
        found[listener.name] = listener
    for text in _single(advertised):
        match = _ADVERTISED.fullmatch(text)
        if match is None or not 0 < int(match["port"]) <= _LARGEST_PORT:
            raise ValueError(
                f"{text!r} is no advertised address; use NAME=HOST:PORT, such as "
                "EXTERNAL=kafka.example.com:9093"
            )
        name = match["name"].upper()
        if name not in found:
            raise ValueError(f"{text!r}: no listener is named {name}, only {', '.join(found)}")
        found[name] = replace(
            found[name],
            advertised_host=match["host"].strip("[]"),
            advertised_port=int(match["port"]),
        )
    return list(found.values())


def _single(texts: Iterable[str]) -> list[str]:
    return [each.strip() for text in texts for each in text.split(",") if each.strip()]


def _listener(text: str) -> Listener:
    match = _LISTENER.fullmatch(text)
    if match is None or int(match["port"]) > _LARGEST_PORT:
        raise ValueError(
            f"{text!r} is no listener; use NAME=PROTOCOL://HOST:PORT, such as "
            "EXTERNAL=sasl_ssl://0.0.0.0:9093"
        )
    protocol = match["protocol"].upper()
    if protocol not in _PROTOCOLS:
        allowed = ", ".join(each.lower() for each in _PROTOCOLS)
        raise ValueError(
            f"{text!r}: protocol {match['protocol']!r} is unknown; use one of {allowed}"
        )
    name = (match["name"] or protocol).upper()
    return Listener(name, protocol, match["host"].strip("[]"), int(match["port"]))
