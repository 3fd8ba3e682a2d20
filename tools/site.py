"""What mkdocs does not do itself: pages made from README and from the code, links out of docs/, llms.txt.

The pages below `reference/` are made at each build, so they cannot differ from the code.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
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


def _api() -> str:
    """Every public name, by the package that exports it."""
    out = [
        "# API",
        "Every public name. What is not here is internal, and changes without notice.",
    ]
    for module, about in (
        ("kmr", "What a strategy needs."),
        ("kmr.sinks", "The writers, and what a writer of your own extends."),
        ("kmr.types", "The types that reducers, formats and sinks of your own are made of."),
    ):
        out += [f"## {module}", about]
        path = ROOT / module.replace(".", "/")
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        package = "kmr.sinks" if module == "kmr.sinks" else "kmr"
        block = next(n for n in ast.parse(path.read_text("utf-8")).body if isinstance(n, ast.If))
        names = [node for node in block.body if isinstance(node, ast.ImportFrom)]
        for node in sorted(names, key=_rank):
            parents = package.split(".")
            source = ".".join([*parents[: len(parents) + 1 - node.level], node.module or ""])
            out += [f"::: {source}.{alias.name}" for alias in node.names]
    for module, about in (
        ("kmr.settings", "The settings of a worker."),
        ("kmr.errors", "Every error that a user can meet."),
        ("kmr.testing", "Tools for tests. `docs/testing.md` has the fixtures for pytest."),
        ("kmr.broker", "The bundled broker, inside your process."),
        ("kmr.spark", "The Spark engine."),
    ):
        out += [f"## {module}", about, *_exported(module)]
    return "\n\n".join(out) + "\n"


def _rank(node: ast.ImportFrom) -> int:
    """Strategies come first, errors last; the others as they are in the package."""
    return {"strategy": 0, "mapping": 1, "errors": 3}.get((node.module or "").split(".")[0], 2)


def _exported(module: str) -> Iterator[str]:
    path = ROOT / module.replace(".", "/")
    if not path.is_dir():
        import importlib

        for name in importlib.import_module(module).__all__:
            yield f"::: {module}.{name}"
        return
    source = (path / "__init__.py").read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.ImportFrom)
            and node.level == 1
            and not (node.module or "_").startswith("_")
        ):
            yield from (f"::: {module}.{node.module}.{alias.name}" for alias in node.names)


_ABOUT_SETTINGS = """# Settings

Defaults, then the TOML file, then variables, then flags: the later one counts. Times are in seconds, sizes in
bytes, and may carry a unit: `500ms`, `16MiB`."""


def _settings() -> str:
    """Every setting of a worker and of the broker."""
    from kmr.broker.settings import BROKER
    from kmr.settings import WORKER

    out = [_ABOUT_SETTINGS]
    for title, layers in (("Of a worker", WORKER), ("Of the broker", BROKER)):
        out += [f"## {title}", _table(layers)]
    return "\n\n".join(out) + "\n"


def _table(layers: Any) -> str:
    from kmr.config.schema import show_quantity

    rows = ["| setting | default | |", "| --- | --- | --- |"]
    for setting in layers.settings:
        default = "**needed**"
        if not setting.required:
            text = setting.default
            if isinstance(text, tuple):
                text = ",".join(map(str, text))
            if text in (None, ""):
                text = "none"
            elif setting.unit is not None:
                text = show_quantity(text, setting.unit)
            default = f"`{text}`"
        allowed = setting.allowed.replace("|", "\\|")
        names = f"`{setting.name}`<br>`--{setting.flag}`<br>`{layers.variable(setting)}`"
        rows.append(f"| {names} | {default} | {setting.description}<br>*{allowed}* |")
    return "\n".join(rows)


_BRACKETS: Final = re.compile(r"(?<!\\)\[((?:default|env var|choices|required)[^\]]*)\]")


def _cli() -> str:
    """Every command, as its `--help` has it."""
    if os.environ.get("KMR_SITE_WHOLE") == "false":
        return "# Commands\n\nSee `kmr --help`.\n"
    from kmr.cli.completion import whole_app

    app = whole_app("Exit codes and errors have [a page of their own](errors.md).")
    text = app.generate_docs(output_format="markdown")
    text = _BRACKETS.sub(r"\\[\1\\]", text)  # else Markdown takes them for links
    return re.sub(r"^# kmr$", "# Commands", text, count=1, flags=re.MULTILINE).replace(
        "```console", "```text"
    )


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
    "api": _api,
    "settings": _settings,
    "cli": _cli,
    "errors": _errors,
    "broker-apis": _broker_apis,
}
