"""What mkdocs does not do itself: pages made from README and from the code, links out of docs/, llms.txt.

The pages below `reference/` are made at each build, so they cannot differ from the code.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
_FENCE = re.compile(r"^```(\w+) (?:not run: [^\n]*|in a notebook)$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?://|#|mailto:)([^)#\s]+)(#[^)]*)?\)")
_AT_THE_TOP = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
_markdown: dict[str, str] = {}


def _pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from _pages(part)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    made = {page: (ROOT / name).read_text(encoding="utf-8") for name, page in _AT_THE_TOP.items()}
    made |= {f"reference/{name}.md": page() for name, page in _REFERENCE.items()}
    made |= {f"reference/{name}.md": text for name, text in _api_pages().items()}
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Resolve links as they are in the checkout; drop the reasons why blocks are not run."""
    source = page.file.src_uri
    top = {made: name for name, made in _AT_THE_TOP.items()}
    folder = ROOT if source in top else (ROOT / "docs" / source).parent

    def link(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        at = (folder / target).resolve()
        if source.startswith("reference/") or not at.is_relative_to(ROOT):
            return match[0]
        name = str(at.relative_to(ROOT))
        if name in _AT_THE_TOP:
            return f"[{text}]({_AT_THE_TOP[name]}{anchor})"
        if name.startswith("docs/"):
            return f"[{text}]({name.removeprefix('docs/')}{anchor})"
        return text if text.startswith("`") else f"{text} (`{name}`)"

    found = _FENCE.sub(r"```\1", _LINK.sub(link, markdown))
    _markdown[source] = found
    return found


def on_post_build(config: MkDocsConfig) -> None:
    """Write llms.txt, a list of all pages with their first sentence, and llms-full.txt, all of their text."""
    assert config.nav is not None
    lines, full = [f"# {config.site_name}", "", f"> {config.site_description}", ""], []
    for part in config.nav:
        for title, pages in part.items():
            lines += [f"## {title}", ""]
            for source in _pages(pages):
                text = _markdown[source]
                heading, _, rest = text.partition("\n")
                first = next((p for p in rest.split("\n\n") if re.match(r"\s*[`A-Z]", p)), "")
                sentence = re.split(r"(?<=[.:])\s", " ".join(first.split()))[0]
                lines.append(f"- [{heading.lstrip('# ')}]({source}): {sentence}")
                full.append(text)
            lines.append("")
    site = Path(config.site_dir)
    (site / "llms.txt").write_text("\n".join(lines), encoding="utf-8")
    (site / "llms-full.txt").write_text("\n\n".join(full), encoding="utf-8")
    for source, text in _markdown.items():  # what llms.txt links to
        (site / source).parent.mkdir(parents=True, exist_ok=True)
        (site / source).write_text(text, encoding="utf-8")


_TOPICS: Final = {
    "strategy": ("Strategy and maps", "A strategy says how records become rows. Begin here."),
    "values": (
        "Values",
        "Formats of the keys and values of records: `Strategy(value=Json(Order))`.",
    ),
    "reducers": (
        "Reducers",
        "What collects rows and hands them on, and what your own reducer extends.",
    ),
    "databases": ("Databases", "What writes rows to ClickHouse and PostgreSQL."),
    "sinks": ("Topics, files, Spark", "What writes rows elsewhere."),
    "own-sinks": ("Your own sink", "What a writer of your own extends and raises."),
    "testing": (
        "Testing",
        "Tools for tests. [Testing](../../testing.md) has the fixtures for pytest.",
    ),
    "running": ("Running", "Run a worker, read a topic, or start a broker from Python."),
    "errors": (
        "Errors",
        "Every error that a user can meet. All but `BrokerError` are `KmrError`s.",
    ),
}
# The topic of a public name: by its module, else by the first room of the file that it comes from.
_OF_MODULES: Final = {
    "kmr.sinks": "sinks",
    "kmr.testing": "testing",
    "kmr.errors": "errors",
    "kmr.settings": "running",
    "kmr.broker": "running",
    "kmr.spark": "running",
}
_OF_ROOMS: Final = {
    "values": "values",
    "reducers": "reducers",
    "memory": "reducers",
    "delivery": "own-sinks",
    "running": "running",
    "peeking": "running",
}
_OF_NAMES: Final = {
    **dict.fromkeys(("ClickHouseWriter", "PostgresWriter"), "databases"),
    **dict.fromkeys(
        (
            *("Range", "Capabilities", "Delivery", "Refusal", "RowsRefused", "Write"),
            *("Sink", "RangeWriter", "RangeRows", "Collecting", "one_table"),
        ),
        "own-sinks",
    ),
    **dict.fromkeys(("ErrorLimit", "OnLimit"), "strategy"),
    "BrokerError": "errors",
}
_FIRST: Final = (
    "Strategy",
    "TopicMap",
    "ErrorLimit",
    "Record",
    "map_record",
    "map_batch",
    "Json",
    "run",
)


_CALLED: Final = {
    "Strategy": ("with_tables", "validate"),
    "LookupTable": ("get", "join", "to_arrow"),
    "Record": ("timestamp", "timestamp_ms"),
    "Change": ("to",),
    "ClickHouseWriter": ("create_statement",),
}
"""The methods that users call, of classes that they construct; the engines call the others."""


def _public() -> Iterator[tuple[str, str, str]]:
    """The topic of each public name, the module from which users import it, and the name."""
    for module in ("kmr", "kmr.sinks", "kmr.types", *_OF_MODULES):
        for room, name in _exported(module):
            topic = _OF_NAMES.get(name) or _OF_MODULES.get(module)
            yield topic or _OF_ROOMS.get(room, "strategy"), module, name


def _exported(module: str) -> Iterator[tuple[str, str]]:
    """The room and the name of each export of a module: of its lazy imports, else of its `__all__`."""
    path = ROOT / module.replace(".", "/")
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    blocks = [n for n in ast.parse(source.read_text("utf-8")).body if isinstance(n, ast.If)]
    found = [
        ((node.module or "").split(".")[0], alias.name)
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    ]
    # Lazy modules make `__all__` on demand; the others have a list.
    yield from [
        ("", name) for name in vars(importlib.import_module(module)).get("__all__", ())
    ] or found


def _rank(item: tuple[str, str]) -> tuple[bool, int]:
    """Names of `kmr.types` come last; the others as they are needed, then as they are in their module."""
    module, name = item
    return module == "kmr.types", _FIRST.index(name) if name in _FIRST else len(_FIRST)


def _api_pages() -> dict[str, str]:
    """The reference by topic: each public name is on one page, under the name that users import."""
    of_topics: dict[str, list[tuple[str, str]]] = {topic: [] for topic in _TOPICS}
    for topic, module, name in dict.fromkeys(_public()):
        if not any(name == other for _, other in of_topics[topic]):
            of_topics[topic].append((module, name))
    index = [
        "# API",
        "Every public name, by topic. What is not here is internal, and changes without notice.",
    ]
    pages = {}
    for topic, (title, about) in _TOPICS.items():
        names = sorted(of_topics[topic], key=_rank)
        parts = [f"# {title}", about]
        for module in dict.fromkeys(module for module, _ in names):
            parts += [f"## from {module} import"]
            parts += [_entry(module, name, topic) for of, name in names if of == module]
        pages[f"api/{topic}"] = "\n\n".join(parts) + "\n"
        links = (f"[`{name}`]({topic}.md#{module}.{name})" for module, name in names)
        index += [f"## [{title}]({topic}.md)", about, " · ".join(links)]
    return {"api/index": "\n\n".join(index) + "\n"} | pages


def _entry(module: str, name: str, topic: str) -> str:
    """Return the directive for a name: all methods of what users extend or call, else `_CALLED`."""
    directive = f"::: {module}.{name}"
    if topic in ("own-sinks", "testing", "running", "errors") or module == "kmr.types":
        return directive
    return f"{directive}\n    options:\n      members: [{', '.join(_CALLED.get(name, ()))}]"


_ABOUT_SETTINGS = """# Settings

Defaults, then the TOML file, then variables, then flags: the later one counts. Times are in seconds, sizes in
bytes, and may carry a unit: `500ms`, `16MiB`."""


def _settings() -> str:
    """Every setting of a worker and of the broker."""
    from kmr.broker.settings import BROKER
    from kmr.settings import WORKER

    out = [_ABOUT_SETTINGS]
    for title, layers in (("Of a worker", WORKER), ("Of the broker", BROKER)):
        out += [f"## {title}", _list(layers)]
    return "\n\n".join(out) + "\n"


def _list(layers: Any) -> str:
    from kmr.config.schema import show_quantity

    items = []  # a table of these does not fit a phone
    for setting in layers.settings:
        default = "**Needed.**"
        if "default:" in setting.description:
            default = ""
        elif not setting.required:
            text = setting.default
            if isinstance(text, tuple):
                text = ",".join(map(str, text))
            if text in (None, ""):
                text = "none"
            elif setting.unit is not None:
                text = show_quantity(text, setting.unit)
            default = f"Default: `{text}`."
        names = f"**`{setting.name}`** · `--{setting.flag}` · `{layers.variable(setting)}`"
        about = (
            f"{setting.description} {default} *{setting.allowed[:1].upper()}{setting.allowed[1:]}.*"
        )
        items.append(f"- {names}<br>{about}")
    return "\n".join(items)


_BRACKETS: Final = re.compile(r"(?<!\\)\[((?:default|env var|choices|required)[^\]]*)\]")


def _cli() -> str:
    """Every command, as its `--help` has it."""
    if os.environ.get("KMR_SITE_WHOLE") == "false":
        return "# Commands\n\nSee `kmr --help`.\n"
    from kmr.cli.completion import whole_app

    app = whole_app("Exit codes and errors have [a page of their own](errors.md).")
    text = app.generate_docs(output_format="markdown")
    text = _shared_flags(text)
    text = _BRACKETS.sub(r"\\[\1\\]", text)  # else Markdown takes them for links
    return re.sub(r"^# kmr$", "# Commands", text, count=1, flags=re.MULTILINE).replace(
        "```console", "```text"
    )


_FLAGS: Final = re.compile(r"^\*\*([A-Z][^*\n]*)\*\*:\n\n((?:\* .*\n)+)", re.MULTILINE)

_SHARED: Final = ("Connection", "Security", "Fetching", "HTTP", "Logs")


def _shared_flags(text: str) -> str:
    """Describe a group of flags that many commands have once, at the end, and link to it."""
    groups = Counter((match[1], match[2]) for match in _FLAGS.finditer(text))
    shared = {
        group: f"{group[0]} flags{'' if group[0] != 'Connection' else ' of kmr broker'}"
        for group, count in groups.items()
        if count > 1 and group[0] in _SHARED
    }

    def link(match: re.Match[str]) -> str:
        title = shared.get((match[1], match[2]))
        return match[0] if title is None else f"**{match[1]}**: [{title}](#{_anchor(title)}).\n"

    text = _FLAGS.sub(link, text)
    parts = [f"## {title}\n\n{flags}" for (_, flags), title in shared.items()]
    return "\n\n".join([text.rstrip(), *parts]) + "\n"


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


_ABOUT_ERRORS = """# Exit codes and errors

A command that fails prints one message: its subject, the fact, and what to do. `--debug` or `KMR_DEBUG=1`
adds the traceback.

## Exit codes

| code | |
| --- | --- |
| 0 | clean: for a worker, everything in flight was delivered and committed |
| 1 | failed; the message says why. For `kmr check`: records are missing or doubled |
| 2 | wrong usage: an unknown flag, a wrong setting, no such module or strategy |
| 3 | a worker did not drain within `shutdown_deadline`; the message names the offsets |
| 130, 143 | a second SIGINT or SIGTERM ended it at once |

## Errors

All are in `kmr.errors`. The class in brackets is the base: `except ConsumerError` catches every
error of the Kafka client.
"""


def _errors() -> str:
    """Exit codes and every error that a user can meet."""
    from kmr import errors

    rows = [_ABOUT_ERRORS, "| error | |", "| --- | --- |"]
    for name in errors.__all__:
        value = getattr(errors, name)
        if isinstance(value, type):
            first = (inspect.getdoc(value) or "").splitlines()[0]
            rows.append(f"| `{name}` ({value.__bases__[0].__name__}) | {first} |")
    return "\n".join(rows)


def _broker_apis() -> str:
    """The APIs that the bundled broker serves, and what it lacks."""
    from kmr.broker.apis.catalogue import SERVED, advertised_versions
    from kmr.broker.cli.features import _served, unsupported_table

    rows = ["| API | key | from | to | newest in Kafka |", "| --- | ---: | ---: | ---: | ---: |"]
    served = map(_served, advertised_versions(SERVED))
    rows += [f"| {' | '.join(map(str, versions))} |" for versions in served]
    return "\n\n".join(
        [
            "# APIs of the bundled broker",
            "`kmr broker features` prints these tables. [The bundled broker](../broker.md) has the rest.",
            "\n".join(rows),
            "## What it lacks",
            unsupported_table(),
        ]
    )


_REFERENCE = {
    "settings": _settings,
    "cli": _cli,
    "errors": _errors,
    "broker-apis": _broker_apis,
}
