"""The parts of a site, and those that exist already."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chaos.workload import Workload


@dataclass(frozen=True)
class GroupSpec:
    """A consumer group: what it does, and with how many workers.

    Attributes:
        together: the workers are those of one command, `kmr run --workers`, instead of one each.
        engine: `spark`: each worker is an engine of its own, so there is one; it is no member of the group.
    """

    name: str
    workload: Workload
    workers: int = 2
    engine: Literal["worker", "spark"] = "worker"
    together: bool = False

    @property
    def commands(self) -> int:
        """How many commands run the workers."""
        return 1 if self.together else self.workers

    @property
    def stores_windows(self) -> bool:
        """Whether open windows are in files, so that the committed offset goes on without them."""
        return self.engine == "spark" and bool(self.workload.window)

    def with_suffix(self, suffix: str) -> GroupSpec:
        """The same under other names."""
        return replace(self, name=self.name + suffix, workload=self.workload.with_suffix(suffix))


@dataclass(frozen=True)
class Shape:
    """The parts of a site.

    Attributes:
        topics: how many topics there are; each group reads all of them.
        rate: records per second.
        links: whether workers reach broker and ClickHouse through proxies.
        poison_every: one record in so many fails in the map; 0: none.
        repeat_every: one record in so many has the id of an earlier one of its partition; 0: none.
        flags: more flags of `kmr run`.
        topic_configs: settings of the input topic.
        sample_every: seconds between two looks at what each process holds; 0: never.
    """

    groups: Sequence[GroupSpec]
    topics: int = 1
    partitions: int = 6
    rate: float = 2_500.0
    links: bool = False
    poison_every: int = 1_000
    repeat_every: int = 0
    flags: Sequence[str] = ()
    topic_configs: Mapping[str, str] = field(default_factory=dict)
    sample_every: float = 0.0


@dataclass(frozen=True)
class Outside:
    """Services that are there already; None: the site starts its own.

    Attributes:
        suffix: of topics, groups and tables, so that runs do not meet.
        replicas: how many brokers keep each record of the topics.
    """

    bootstrap_servers: str | None = None
    clickhouse_url: str | None = None
    suffix: str = ""
    replicas: int = 1
