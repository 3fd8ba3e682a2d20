"""The flags of `kmr run --engine spark`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import Group, Parameter

from framework.errors import SettingsError

if TYPE_CHECKING:
    from framework.settings import Settings
    from framework.spark.settings import EngineSettings

__all__ = ["SparkFlags"]

_GROUP: Final = Group("Spark (--engine spark)", sort_key=6)


def _flag(text: str, name: str | None = None) -> Parameter:
    return Parameter(name=name, help=text, group=_GROUP, negative=())


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SparkFlags:
    """How a strategy runs on Spark; without `--engine spark` none of them may be given."""

    master: Annotated[
        str | None,
        _flag("local[N] or spark://host:port; default: what spark-submit says, else local[*]."),
    ] = None
    checkpoint: Annotated[
        str | None,
        _flag("Directory or URI that says what was delivered; must outlive the engine. Required."),
    ] = None
    spark_source: Annotated[
        Literal["python", "jvm"] | None,
        _flag("Who reads Kafka: our source, or Spark's own connector if it is on the class path."),
    ] = None
    trigger: Annotated[
        str | None,
        _flag(
            "Time between micro-batches, or available-now: what is there, then end. [default: 2s]"
        ),
    ] = None
    max_offsets_per_trigger: Annotated[
        int | None, _flag("Most offsets in one micro-batch. [default: 2000000]")
    ] = None
    min_partitions: Annotated[
        int | None, _flag("Divide a micro-batch into at least about so many tasks.")
    ] = None
    fail_on_data_loss: Annotated[
        bool | None,
        Parameter(
            help="Stop when records are gone before they were read. [default: yes]", group=_GROUP
        ),
    ] = None
    on_stop: Annotated[
        Literal["finish", "abandon"] | None,
        _flag("What a stop does with the micro-batch under way. [default: finish]"),
    ] = None
    spark_conf: Annotated[
        list[str] | None,
        Parameter(
            help="A setting of Spark's own, name=value; may be given more than once.",
            group=_GROUP,
            negative=(),
        ),
    ] = None

    def given(self) -> dict[str, object]:
        """Those that were given."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def refuse(self) -> None:
        """Raise SettingsError if one is given: they would have no effect."""
        if given := self.given():
            flag = next(iter(given)).replace("_", "-")
            raise SettingsError(f"--{flag} is for --engine spark")

    def settings(self, settings: "Settings") -> "EngineSettings":
        """The engine's settings. Raises SettingsError."""
        from framework.spark.settings import EngineSettings

        given = self.given()
        conf = dict(_pair(text) for text in self.spark_conf or ())
        given.pop("spark_conf", None)
        source = given.pop("spark_source", "python")
        given.setdefault("checkpoint", "")
        values: dict[str, object] = {**given, "source": source, "spark": conf}
        return EngineSettings(**values, name=f"kmr-{settings.group}")  # type: ignore[arg-type]


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise SettingsError(f"--spark-conf must be name=value, not {text!r}")
    return name, value
