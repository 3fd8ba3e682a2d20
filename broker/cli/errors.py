"""How a command ends: with an exit code, and with one line on stderr when something is wrong."""

from __future__ import annotations

import functools
import os
import re
import signal
import sys
import traceback
from typing import TYPE_CHECKING, ParamSpec

import anyio
from aiokafka import errors as kafka
from aiokafka.errors import KafkaError

from broker.client.producer import ProduceError
from broker.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["EXPECTED", "CommandError", "UsageError", "complain", "explain", "reports", "runs"]


Arguments = ParamSpec("Arguments")


class CommandError(Exception):
    """A command cannot do what was asked; the message says what, where, and what to do."""


class UsageError(CommandError):
    """The command line makes no sense."""


CLEAN, FAILED, USAGE = 0, 1, 2
EXPECTED = (CommandError, BrokerError, KafkaError, ProduceError)
"""What can go wrong without a mistake in this program."""
_ADDRESS = re.compile(r"\('([^']+)', (\d+)")  # in the message of aiokafka


def runs(command: Callable[Arguments, Awaitable[int | None]]) -> Callable[Arguments, int]:
    """Make a command of an async function; its errors are those of `reports`."""

    @functools.wraps(command)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> int | None:
        async def call() -> int | None:
            return await command(*args, **kwargs)

        return anyio.run(call)

    return reports(run)


def reports(command: Callable[Arguments, int | None]) -> Callable[Arguments, int]:
    """Explain the errors of a command in one line, and return its exit code.

    0 clean, 1 failed, 2 wrong usage, 130 interrupted. With `kmr --debug` or KMR_DEBUG=1 errors show
    their traceback.
    """

    @functools.wraps(command)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> int:
        try:
            return command(*args, **kwargs) or CLEAN
        except EXPECTED as error:
            if "--debug" in sys.argv or os.environ.get("KMR_DEBUG", "") not in ("", "0"):
                traceback.print_exc()
            complain(explain(error))
            return USAGE if isinstance(error, UsageError) else FAILED
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        except BrokenPipeError:
            # Nobody reads our output any more (`... | head`); the interpreter must not write again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 128 + signal.SIGPIPE

    return run


def complain(message: str) -> None:
    """One line on stderr."""
    sys.stderr.write(f"kmr broker: {message}\n")


def explain(error: BaseException) -> str:
    """What an error means for who typed the command."""
    if isinstance(error, kafka.KafkaConnectionError):
        asked = ", ".join(f"{host}:{port}" for host, port in _ADDRESS.findall(str(error)))
        return (
            f"no Kafka broker answers at {asked or 'the given address'}; start one with"
            " `kmr broker serve --data DIR`, or name another with --bootstrap-servers"
        )
    if isinstance(error, kafka.UnknownTopicOrPartitionError):
        return "the topic or the partition does not exist"
    if isinstance(error, KafkaError):
        return _text(error)
    return str(error)


def _text(error: KafkaError) -> str:
    """The message of an error of aiokafka, without its class where it has words of its own."""
    words = [str(each) for each in error.args if each]
    return ": ".join(words) or getattr(error, "description", "") or type(error).__name__
