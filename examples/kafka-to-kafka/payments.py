"""Payments from one topic to another, exactly once: rows and offsets are committed in one transaction."""

import msgspec

from kmr import Json, Record, Strategy
from kmr.sinks import DeadLetterWriter, KafkaWriter


class Payment(msgspec.Struct):
    """The value of a record."""

    id: str
    account: str
    amount: float


class Booking(msgspec.Struct):
    """A message of the output."""

    id: str
    account: str
    cents: int


def book(payment: Payment, record: Record) -> list[Booking]:
    """Return two bookings for each payment: both are in the output, or neither."""
    cents = round(payment.amount * 100)
    if cents <= 0:
        raise ValueError(f"amount {payment.amount} is not above 0")
    return [
        Booking(payment.id, payment.account, -cents),
        Booking(payment.id, "clearing", cents),
    ]


strategy = Strategy(
    value=Json(Payment),
    map=book,
    reduce=[KafkaWriter("bookings", key="account", delivery="exactly-once", max_age=0.5)],
    reduce_err=DeadLetterWriter("payments-dead"),
)
