"""Reference pages that are made from the code while the site is built.

A page holds `<!-- generated: NAME -->`; the site shows what `GENERATED[NAME]()` returns
in its place. So nothing has to be regenerated, and nothing can be out of date.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)


# Pages that are shown once they are written, and under which heading.
_WHEN_THERE = {
    "fleet.md": ("How to", "Set up a fleet"),
    "fleet-device.md": ("How to", "Guard a device"),
}


def on_config(config: Any) -> Any:
    """Add the pages that are there; mkdocs calls this before it builds."""
    for name, (heading, title) in _WHEN_THERE.items():
        if (Path(config["docs_dir"]) / name).exists():
            section = next(part[heading] for part in config["nav"] if heading in part)
            section.append({title: name})
    return config


# Pages whose tables need the room of the list of headings.
_WIDE = ("results.md",)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Fill in a page, and unlink files that are not part of the site."""
    if page.file.src_uri in _WIDE:
        page.meta["hide"] = ["toc"]
    filled = _MARK.sub(lambda mark: GENERATED[mark[1]](), markdown)
    out = r"\.\./" * (1 + page.file.src_uri.count("/"))
    return re.sub(rf"\[([^\]]+)\]\({out}[^)]*\)", r"\1", filled)


def commands() -> str:
    """Describe every command and every option, from the application itself."""
    import typer

    from fedbudget.cli.app import app

    group: Any = typer.main.get_command(app)
    return "\n".join(_commands(group, "fedbudget", level=2))


def _commands(group: Any, path: str, *, level: int) -> Iterator[str]:
    for name, command in group.commands.items():
        full = f"{path} {name}"
        yield f"{'#' * level} `{full}`\n\n{inspect.cleandoc(command.help or '')}\n"
        if hasattr(command, "commands"):
            yield from _commands(command, full, level=level + 1)
        else:
            yield from _options(command)


def _options(command: Any) -> Iterator[str]:
    panels: dict[str, list[str]] = {}
    for option in command.params:
        help_text = getattr(option, "help", None)
        if help_text is None or getattr(option, "hidden", False):
            continue
        panel = getattr(option, "rich_help_panel", None) or "Options"
        if not option.opts[0].startswith("-"):
            panel = "Arguments"
        panels.setdefault(panel, []).append(_option(option, help_text))
    for panel, rows in panels.items():
        yield f"| {panel} | | default |\n|---|---|---|"
        yield "\n".join(rows) + "\n"


def _option(option: Any, help_text: str) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    shown = getattr(option, "show_default", True) and option.default is not None
    default = "" if not shown or callable(option.default) else f"`{option.default}`"
    if option.required:
        default = "required"
    return f"| {names} | {_cell(help_text)} | {default} |"


# Headings of the library's page, and the modules whose names come under them.
_PARTS = {
    "The question": ("budget", "problem"),
    "Planning": ("planning",),
    "Data": ("data",),
    "Training": ("training", "release", "simulation", "record", "ledger"),
    "Reports": ("reporting",),
    "scikit-learn estimators": ("estimators",),
    "Privacy": ("privacy",),
    "Errors and warnings": ("errors",),
}


def library() -> str:
    """Ask mkdocstrings for every public name, by what it is for."""
    import fedbudget

    public = [name for name in fedbudget.__all__ if name != "__version__"]
    paths = {
        name: f"{value.__module__}.{value.__qualname__}"
        for name in public
        for value in [getattr(fedbudget, name)]
    }
    lines = []
    for title, modules in (*_PARTS.items(), ("More", ())):
        mine = [n for n, path in paths.items() if path.split(".")[1] in modules]
        if title == "More":
            mine = list(paths)
        if mine:
            lines.append(f"## {title}\n")
            lines += [f"::: {paths.pop(name)}\n" for name in mine]
    return "\n".join(lines)


def config() -> str:
    """List the keys of fedbudget.toml and the options that they stand for."""
    import typer

    from fedbudget.cli.app import app
    from fedbudget.cli.config import _DEVICE_KEYS, _KEYS

    group: Any = typer.main.get_command(app)
    options = {p.name: p for p in group.commands["train"].params if p.name}
    head = "\n\n| key | is | meaning |\n|---|---|---|"
    lines, rows = [], {}
    for section, keys in _KEYS.items():
        lines.append(f"\n### `[{section}]`{head}")
        for key, (kind, name) in keys.items():
            option = options.get(name)
            help_text = getattr(option, "help", None) or _OTHER_KEYS.get(key, "")
            metavar = getattr(option, "metavar", None) or ""
            if "|" in metavar:  # these values and no other
                kind = ", ".join(f'`"{value}"`' for value in metavar.split("|"))
            rows[key] = f"| `{key}` | {kind} | {_cell(help_text)} |"
            lines.append(rows[key])
    lines.append(f'\n### `[devices."NAME"]`\n\n{_DEVICES}{head}')
    lines += [rows[key] for key in _DEVICE_KEYS]
    return "\n".join(lines)


_DEVICES = (
    "Budgets and prices of a single device, which stand before those of all. Its name "
    "is a value of the device column, in quotes; one section for each such device."
)


_OTHER_KEYS = {
    "table": "The table; a relative path is relative to the file.",
    "intercept": "Whether a constant column is added.",
    "public_bounds": "Set it to true once the bounds and categories are public ones; "
    "until then every command warns.",
}


def wire() -> str:
    """Describe every message, field by field, from the messages' own source."""
    from fedbudget.fleet.wire import (
        codec,
        framing as chunks,
        messages,
        secure_messages as secure,
        signing,
        topics,
    )

    kinds = (
        messages.Declaration,
        messages.RunOffer,
        messages.RoundOrder,
        messages.Reply,
        chunks.Chunk,
        *(secure.SumTerms, secure.Introduction, *secure.ORDERS, *secure.REPLIES),
    )
    parts = [f"```text\n{inspect.getdoc(topics)}\n```"]
    for kind in kinds:
        parts.append(
            f"### {kind.__name__}\n\nKind `{kind.kind}`. {inspect.getdoc(kind)}"
        )
        parts.append("| field | type | |\n|---|---|---|\n" + "\n".join(_fields(kind)))
    codes = re.search(r"REFUSALS = \((.*?)\n\)", inspect.getsource(messages), re.DOTALL)
    assert codes is not None
    listed = re.findall(r'"([\w-]+)",(?:  # (.*))?', codes[1])
    rows = [f"| `{code}` | {_cell(help_text)} |" for code, help_text in listed]
    parts.append("### Refusals\n\n| code | |\n|---|---|\n" + "\n".join(rows))
    for module, title in (
        (codec, "Bytes"),
        (signing, "Signatures"),
        (chunks, "Chunks"),
    ):
        parts.append(f"### {title}\n\n{inspect.getdoc(module)}")
    return "\n\n".join(parts)


def _fields(kind: type) -> Iterator[str]:
    field = re.compile(
        r"^    (\w+): ([^=#]+?)(?: = [^#]+?)?(?:  # (.*))?$", re.MULTILINE
    )
    bases = reversed([base for base in kind.__mro__ if hasattr(base, "to_bytes")])
    source = "\n".join(inspect.getsource(base) for base in bases)
    for name, annotation, text in field.findall(source):
        if not annotation.startswith("ClassVar"):
            yield f"| `{name}` | `{annotation.replace('|', 'or')}` | {_cell(text)} |"


def _cell(text: str) -> str:
    """Return a text that a table's cell can hold."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


GENERATED: dict[str, Callable[[], str]] = {
    "commands": commands,
    "config": config,
    "library": library,
    "wire": wire,
}
