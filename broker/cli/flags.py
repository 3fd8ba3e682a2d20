"""One flag for every setting of the broker."""

from __future__ import annotations

import functools
import inspect
import re
import types
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args, get_type_hints

import msgspec
from cyclopts import Group, Parameter

from broker.cli.quantities import read_bytes, read_seconds, show_bytes, show_seconds
from broker.settings import BrokerSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from cyclopts import Token

__all__ = ["HELP", "in_flags", "with_settings"]

_NAMES: Final = {
    "data_dir": "--data",
    "default_partitions": "--partitions",
    "users_file": "--users",
    "acl_file": "--acls",
}
"""Where the flag is not simply the name of the setting."""

NO_LIMIT: Final = object()
"""Typed as `none`, where a flag that was not given means the default."""

HELP: Final[dict[str, dict[str, str]]] = {
    "Address and data": {
        "data_dir": "Directory for all data; created if missing. One broker at a time can use it.",
        "node_id": "Id of this node, as clients see it; another one may be given at any start.",
        "host": "Address to listen on; 0.0.0.0 for every interface, which asks for TLS and users.",
        "port": "Port to listen on; 0 takes any free one.",
        "advertised_host": "Name that clients are told to connect to; default: the one they came to.",
        "advertised_port": "Port that clients are told to connect to; default: the bound one.",
        "http_port": "Port for /live, /ready and /metrics (Prometheus); 0 takes any free one.",
        "http_host": "Address to serve them on; any but loopback asks for --insecure.",
    },
    "Security": {
        "tls_certificate": "Certificate chain (PEM): connections must then be encrypted by TLS.",
        "tls_key": "The private key (PEM) of the certificate, without a passphrase.",
        "tls_client_ca": "Clients must have a certificate of these authorities (PEM): mutual TLS.",
        "users_file": "Users made by `kmr broker user add`: clients must authenticate by SASL.",
        "acl_file": "Rules made by `kmr broker acl allow`: what none of them allows is denied.",
        "insecure": (
            "Let other machines connect, or read the metrics, without encryption or authentication."
        ),
        "authentication_timeout": "Time that a client has for TLS, and again for SASL.",
        "max_unauthenticated_connections": "Most connections at a time that have not got so far.",
        "produce_quota_bytes": (
            "Bytes that each user, or client id without users, may produce per second."
        ),
        "fetch_quota_bytes": "The same for what is fetched.",
    },
    "Topics": {
        "auto_create_topics": "Create a topic when a client first asks for it.",
        "default_partitions": "Partitions of topics that are created without a number.",
        "max_partitions": "Most partitions of all topics together; each keeps files open.",
        "message_max_bytes": "Largest record batch that is accepted.",
        "retention_seconds": "Records older than this are deleted; none keeps them.",
        "retention_bytes": "Oldest records go when a partition has more than this; none keeps them.",
        "retention_check_interval": "Time between two searches for what is to be deleted.",
        "compaction_check_interval": "Time between two searches for what is to be compacted.",
        "segment_bytes": "Size of the files that a partition's records are kept in.",
        "segment_seconds": "Time after which a new file is begun.",
        "index_interval_bytes": "Bytes of records between two entries of the index.",
    },
    "Durability": {
        "fsync": (
            "When an acknowledged record is on disk: always (before the acknowledgement), interval, or"
            " os (when the operating system likes). All of them survive a kill of the broker; only"
            " always survives a power loss without loss."
        ),
        "fsync_interval": "Time between two syncs with --fsync interval.",
    },
    "Consumer groups": {
        "group_initial_rebalance_delay": "Time that an empty group waits for more members.",
        "group_min_session_timeout": "Shortest session timeout that a member may ask for.",
        "group_max_session_timeout": "Longest session timeout that a member may ask for.",
        "group_max_size": "Most members of one group.",
        "offsets_retention_seconds": "Time that offsets are kept after the last member has left.",
        "offset_metadata_max_bytes": "Longest metadata that may be committed with an offset.",
    },
    "Transactions": {
        "transaction_max_timeout": "Longest time that a producer may keep a transaction open.",
        "transactional_id_expiration_seconds": "Time that an unused transactional id is kept.",
        "producer_id_expiration_seconds": (
            "Time that a producer which sends nothing is remembered: what it sends twice is written"
            " once meanwhile."
        ),
    },
    "Connections": {
        "request_max_bytes": "A larger request closes its connection.",
        "control_request_max_bytes": "The same for all requests but those that produce records.",
        "request_memory_bytes": "Memory for all requests that are being received.",
        "fetch_max_bytes": "Largest fetch response, unless its first batch is larger.",
        "response_memory_bytes": "Memory for all fetch responses that are being sent.",
        "max_connections": "Most connections at a time.",
        "max_connections_per_address": "The same from one address.",
        "connection_idle_seconds": "A connection without a request for so long is closed.",
        "request_timeout": "The same while a request has begun to arrive and does not go on.",
        "response_timeout": "The same while a client does not read its response.",
        "shutdown_timeout": "Time for responses that are being sent when the broker stops.",
        "shutdown_deadline": (
            "Time for all of the stop, logs included; then the process ends, with exit code 3."
        ),
    },
}
"""What each setting is for, by group."""


def with_settings(function: Callable[..., int]) -> Callable[..., int]:
    """A command with a flag for every setting; `function` gets those that were given as `settings`."""
    described = {
        name: Group(group, sort_key=order)
        for order, (group, names) in enumerate(HELP.items(), 1)
        for name in names
    }
    hints = get_type_hints(BrokerSettings)
    fields = {field.name: field for field in msgspec.structs.fields(BrokerSettings)}
    added = [
        _flag(fields[name], hints[name], group, HELP[str(group.name)][name])
        for name, group in described.items()
    ]

    @functools.wraps(function)
    def command(**options: Any) -> int:
        given = {name: options.pop(name) for name in described if options.get(name) is not None}
        given = {name: None if value is NO_LIMIT else value for name, value in given.items()}
        return function(settings=given, **options)

    own = [p for p in inspect.signature(function).parameters.values() if p.name != "settings"]
    command.__signature__ = inspect.Signature([*added, *own])  # type: ignore[attr-defined]
    own_hints = get_type_hints(function, include_extras=True)
    command.__annotations__ = {p.name: p.annotation for p in added} | {
        p.name: own_hints[p.name] for p in own
    }
    return command


def in_flags(message: str) -> str:
    """A message about settings in the words of the command line."""
    for names in HELP.values():
        for name in names:
            message = re.sub(rf"\b{name}\b", _flag_name(name), message)
    return message


def _flag_name(setting: str) -> str:
    return _NAMES.get(setting, f"--{setting.replace('_', '-')}")


def _flag(
    field: msgspec.structs.FieldInfo, hint: Any, group: Group, text: str
) -> inspect.Parameter:
    """The flag of one setting; not given means that the setting keeps its default."""
    kinds = [each for each in get_args(hint) if each is not types.NoneType]
    kind = kinds[0] if len(kinds) < len(get_args(hint)) else hint
    required = field.required
    parameter = Parameter(
        name=_flag_name(field.name),
        env_var=f"KMR_BROKER__{field.name.upper()}",
        help=text,
        group=group,
        metavar=_metavar(field.name, kind),
        converter=_converter(field.name, kind, optional=kind is not hint),
        show_default=False if required else _shown(field.name, kind, field.default),
    )
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if required else None,
        annotation=Annotated[kind if kind is hint else kind | None, parameter],
    )


def _shown(name: str, kind: Any, default: Any) -> Any:
    """The default for the help, by a function, as cyclopts asks for; False: not to be shown."""
    if name.startswith("advertised"):
        return False  # its text says what it is
    if kind is bool:
        shown = ("--" if default else "--no-") + name.replace("_", "-")
    elif default is None:
        shown = "none"
    elif name.endswith("_bytes"):
        shown = show_bytes(default)
    else:
        shown = show_seconds(default) if kind is float else str(default)
    return lambda _: shown


def _metavar(name: str, kind: Any) -> str | None:
    """What the help calls the value; None where cyclopts knows better."""
    if name.endswith("_bytes"):
        return "BYTES"
    return "SECONDS" if kind is float else None


def _converter(name: str, kind: Any, *, optional: bool) -> Callable[[Any, Any], Any] | None:
    """Reads a size or a time; None where cyclopts knows better."""
    if name.endswith("_bytes"):
        read: Callable[[str], float] = read_bytes
    elif kind is float:
        read = read_seconds
    else:
        return None

    def convert(_: Any, tokens: tuple[Token, ...]) -> Any:
        text = tokens[0].value
        return NO_LIMIT if optional and text.lower() == "none" else read(text)

    return convert
