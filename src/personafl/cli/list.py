"""`personafl list`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from personafl.cli.console import Json, print_json, say

if TYPE_CHECKING:
    from personafl.registry import Registry

_ELSEWHERE = {
    "auto": "Times the ones above on this model and machine and takes the fastest.",
    "ray": "Has the clients in actors of a Ray cluster, this machine's or another.",
    "flower-sim": "Has them in Flower's simulator. For real sites: personafl deploy.",
}


def list_(
    what: Annotated[
        str,
        typer.Argument(
            help="algorithms, data, partitions, models, engines, or what an installed package lists, such as tables.",
            metavar="WHAT",
        ),
    ],
    name: Annotated[str | None, typer.Argument(help="Show all about one of them.", metavar="NAME")] = None,
    as_json: Json = False,
) -> None:
    """Show what there is to choose from.

    With a name, all about it: its settings, their defaults, its paper.

    Examples:

      personafl list algorithms

      personafl list algorithms fedamp
    """
    from rich.table import Table

    from personafl.cli.console import err, out
    from personafl.errors import ConfigError

    kinds, notes = _kinds(what)
    if name is not None and name not in kinds:
        if name in notes:
            raise ConfigError(notes[name])
        raise ConfigError(f"there is no {name!r} among the {what}: known are {', '.join(kinds)}")
    rows = [_describe(key, kind) for key, kind in kinds.items() if name in (None, key)]
    if what == "engines" and name is None:
        rows += [{"name": key, "about": about} for key, about in _ELSEWHERE.items()]
    if as_json:
        print_json(rows + [{"name": key, "error": note} for key, note in notes.items() if name is None])
        return
    if name is not None:
        about = Table(show_header=False, box=None)
        for key, value in rows[0].items():
            about.add_row(key.replace("_", " "), _cell(value))
        out.print(about)
        return
    shown = list(rows[0]) if rows else ["name"]
    if what == "algorithms":  # the rest is in --json and in docs/algorithms.md
        shown = ["name", "up", "down", "client_keeps", "personalized_model"]
    if what == "partitions":
        shown = ["name", "about", "paper"]
    table = Table(title=what, title_justify="left")
    for column in shown:
        table.add_column(column.replace("_", " "), no_wrap=column == "name", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in shown))
    out.print(table)
    for note in notes.values():
        say(err, f"warning: {note}")


def _kinds(what: str) -> tuple[dict[str, Any], dict[str, str]]:
    """What is to be listed, by name, and notes on plug-ins that cannot be used."""
    from personafl.algorithms import ALGORITHMS
    from personafl.data import PARTITIONS, SOURCES
    from personafl.engines import ENGINES
    from personafl.errors import ConfigError, PluginError
    from personafl.models import MODELS
    from personafl.plugins import installed
    from personafl.tasks import TASKS

    registries: dict[str, Registry] = {
        "algorithms": ALGORITHMS, "data": SOURCES, "partitions": PARTITIONS, "tasks": TASKS, "models": MODELS,
    }  # fmt: skip
    if what in registries:
        good, bad = registries[what].usable()
        ours = {
            name: f"{plugin.kind} {name!r} of the package {plugin.packages} is not used: the name is personafl's own"
            for name, plugin in registries[what].unused.items()
        }
        return good, bad | ours
    if what == "engines":
        return dict(ENGINES), {}
    lists = installed("list", "personafl.lists", (*registries, "engines"))[0]
    if what not in lists:
        raise ConfigError(f"cannot list {what!r}: known are {', '.join((*registries, 'engines', *lists))}")
    found = lists[what].load()
    if not isinstance(found, Mapping):
        raise PluginError(f"list {what!r} of the installed package {lists[what].packages} is not a mapping by name")
    return dict(found), {}


def _describe(name: str, kind: Any) -> dict[str, Any]:
    if hasattr(kind, "listed"):  # what an installed package lists says itself what there is to say
        return {"name": name, **kind.listed()}
    from personafl.algorithms import About

    about = ((kind.__doc__ or "").strip().splitlines() or [""])[0]
    if not hasattr(kind, "__dataclass_fields__"):
        return {"name": name, "about": about}
    settings = {f.name: None if f.default is MISSING else f.default for f in fields(kind)}
    row = {"name": name, "about": about, "settings": settings}
    if isinstance(words := getattr(kind, "about", None), About):
        row |= {
            "up": words.traffic[0], "down": words.traffic[1], "client_keeps": words.keeps,
            "personalized_model": words.personalized, "newcomer": words.newcomer, "paper": words.paper,
        }  # fmt: skip
    elif hasattr(kind, "paper"):  # a partition; its splits are the paper's, or else the data's
        row |= {"paper": kind.paper, "splits": getattr(kind, "splits", None)}
    return row


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{key} = {default!r}" for key, default in value.items())
    return "–" if value is None else str(value)
