"""A broker in one process that speaks Kafka's protocol and keeps its log on disk."""

from typing import TYPE_CHECKING

from kmr._lazy import lazy_exports

if TYPE_CHECKING:
    from .broker import Broker as Broker
    from .errors import BrokerError as BrokerError
    from .server.faults import Fault as Fault
    from .server.faults import Faults as Faults
    from .server.faults import InjectedFault as InjectedFault
    from .settings import BrokerSettings as BrokerSettings

__getattr__, __dir__ = lazy_exports(__name__)
