"""A broker in one process that speaks Kafka's wire protocol."""

from broker.broker import Broker
from broker.errors import BrokerError
from broker.settings import BrokerSettings

__all__ = ["Broker", "BrokerError", "BrokerSettings"]
