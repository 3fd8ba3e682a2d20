"""The types that reducers, formats and sinks of your own are made of; a strategy needs none of them."""

from typing import TYPE_CHECKING

from ._lazy import lazy_exports

if TYPE_CHECKING:
    from .delivery.announcement import Announcement as Announcement
    from .delivery.error_limit import OnLimit as OnLimit
    from .record import SCHEMA as SCHEMA
    from .record import Batch as Batch
    from .record import Header as Header
    from .record import Range as Range
    from .record import Rows as Rows
    from .record import TopicPartition as TopicPartition
    from .reducers.finding import Finding as Finding
    from .reducers.reducer import Context as Context
    from .reducers.reducer import Limits as Limits
    from .reducers.reducer import OnError as OnError
    from .reducers.reducer import OnShutdown as OnShutdown
    from .reducers.reducer import Policies as Policies
    from .reducers.reducer import Reducer as Reducer
    from .reducers.reducer import Retry as Retry
    from .reducers.reducer import SizeLimits as SizeLimits
    from .reducers.reducer import WhenFull as WhenFull
    from .reducers.sink import Capabilities as Capabilities
    from .reducers.sink import Delivery as Delivery
    from .reducers.sink import Refusal as Refusal
    from .reducers.sink import RowsRefused as RowsRefused
    from .reducers.sink import Write as Write
    from .values.value_format import Decoded as Decoded
    from .values.value_format import ValueFormat as ValueFormat

__getattr__, __dir__ = lazy_exports(__name__)
