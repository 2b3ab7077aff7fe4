"""`personafl list`."""

from __future__ import annotations

from dataclasses import MISSING, fields
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer
from rich.table import Table

from personafl.cli.console import Json, out, print_json

_ELSEWHERE = {
    "auto": "Times the ones above on this model and machine and takes the fastest.",
    "ray": "Has the clients in actors of a Ray cluster, this machine's or another.",
    "flower-sim": "Has them in Flower's simulator. For real sites: personafl deploy.",
}


def list_(
    what: Annotated[
        str, typer.Argument(help="algorithms, data, partitions, models, engines, or tables.", metavar="WHAT")
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
    from personafl.algorithms import ALGORITHMS
    from personafl.data import PARTITIONS, SOURCES
    from personafl.engines import ENGINES
    from personafl.errors import ConfigError
    from personafl.models import MODELS

    engines: dict[str, Any] = {**ENGINES}
    kinds: dict[str, dict[str, Any]] = {
        "algorithms": dict(ALGORITHMS), "data": dict(SOURCES), "partitions": dict(PARTITIONS), "models": dict(MODELS),
        "engines": engines,
    }  # fmt: skip
    installed = {point.name: point for point in entry_points(group="personafl.lists")}
    if what not in (*kinds, *installed):
        raise ConfigError(f"cannot list {what!r}: known are {', '.join((*kinds, *installed))}")
    if what in installed:
        kinds[what] = installed[what].load()
    if name is not None and name not in kinds[what]:
        raise ConfigError(f"there is no {name!r} among the {what}: known are {', '.join(kinds[what])}")
    rows = [_describe(key, kind) for key, kind in kinds[what].items() if name in (None, key)]
    if what == "engines" and name is None:
        rows += [{"name": key, "about": about} for key, about in _ELSEWHERE.items()]
    if as_json:
        print_json(rows)
        return
    if name is not None:
        about = Table(show_header=False, box=None)
        for key, value in rows[0].items():
            about.add_row(key.replace("_", " "), _cell(value))
        out.print(about)
        return
    shown = list(rows[0])
    if what == "algorithms":  # the rest is in --json and in docs/algorithms.md
        shown = ["name", "up", "down", "client_keeps", "personalized_model"]
    if what == "partitions":
        shown = ["name", "about", "paper"]
    table = Table(title=what, title_justify="left")
    for column in shown:
        table.add_column(column.replace("_", " "), no_wrap=column == "name", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row[column]) for column in shown))
    out.print(table)


def _describe(name: str, kind: Any) -> dict[str, Any]:
    if hasattr(kind, "listed"):  # what an installed package lists says itself what there is to say
        return {"name": name, **kind.listed()}
    from personafl.algorithms import About

    about = next(line for line in (kind.__doc__ or "").strip().splitlines())
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
    return str(value)
