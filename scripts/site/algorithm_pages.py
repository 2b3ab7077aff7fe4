"""A page for each algorithm, from its code (docstring, fields, `about`) and from what docs/ says and measured of it."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from dataclasses import fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from scripts.site.tables import names_in, rows_of, table

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def algorithm_pages() -> dict[str, str]:
    """The text of each page, by algorithm."""
    kinds = algorithms()
    facts = Facts()
    return {name: _page(name, kind, facts) for name, kind in kinds.items()}


def algorithms() -> dict[str, type]:
    """personafl's own algorithms by name, without those of installed packages."""
    from personafl.algorithms import ALGORITHMS

    return {name: kind for name, kind in ALGORITHMS.items() if kind.__module__.startswith("personafl.")}


class Facts:
    """What the pages of docs/ say of every algorithm, in tables."""

    def __init__(self) -> None:
        names = ("algorithms", "choosing", "security", "methods-study")
        pages = {name: _from_below((DOCS / f"{name}.md").read_text("utf-8")) for name in names}
        self.traffic = table(pages["algorithms"], "algorithm", "up", "down")
        self.defaults = table(pages["algorithms"], "algorithm", "default", "from")
        self.oracles = table(pages["algorithms"], "algorithm", "known otherwise")
        self.differences = _bullets(pages["algorithms"], "## Where well-known code differs from its paper")
        self.families = table(pages["choosing"], "methods", "what they do")
        self.revealed = table(pages["security"], "algorithm", "goes up")
        self.accuracy = table(pages["methods-study"], "method", "mean rank", "mnist-practical")
        self.costs = table(pages["methods-study"], "method", "mean rank", "worse off")


def knobs(kind: type) -> list[tuple[str, str, str, str]]:
    """Name, type, default and meaning of each hyper-parameter; the meaning is the string below the field."""
    meanings: dict[str, str] = {}
    named: dict[str, Any] = {}  # a type may be the name of one
    for owner in reversed(kind.__mro__):
        if owner.__module__.startswith("personafl."):
            meanings |= _documented(owner)
            named |= vars(inspect.getmodule(owner))
    return [
        (
            field.name,
            str(named.get(str(field.type), field.type)),
            _shown(field.default),
            meanings.get(field.name, ""),
        )
        for field in fields(kind)
        if field.init
    ]


@cache
def _documented(owner: type) -> dict[str, str]:
    """The strings that stand below the annotated fields of a class."""
    body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0].body  # type: ignore[attr-defined]
    return {
        field.target.id: inspect.cleandoc(below.value.value).replace("\n", " ")
        for field, below in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(field.target, ast.Name)
    }


def _page(name: str, kind: Any, facts: Facts) -> str:
    parts = [
        f"# {kind.__name__}\n\n{inspect.cleandoc(kind.__doc__)}\n",
        _card(name, kind, facts),
        _use(name, kind),
        _equations(name, kind),
        _settings(name, kind, facts),
        _study(name, facts),
        _privacy(name, facts),
        _right(name, kind, facts),
        f"## In Python\n\n::: personafl.{kind.__name__}\n    options:\n      heading_level: 3\n      members: false\n"
        "      show_bases: false\n      show_docstring_description: false\n      show_docstring_attributes: false\n",
    ]
    return "\n".join(part for part in parts if part)


def _card(name: str, kind: Any, facts: Facts) -> str:
    (sent,) = rows_of(facts.traffic, name)
    (family,) = rows_of(facts.families, name)
    relatives = [other for other in names_in(family["methods"]) if other != name]
    lines = [
        ("In a config, on the command line", f"`{name}`"),
        ("Paper", kind.about.paper),
        ("Goes up, comes down", f"{sent['up']}, {sent['down']} (in model sizes, per active client and round)"),
        ("A client keeps", sent["a client keeps"]),
        ("Personalized model", sent["personalized model"]),
        ("A newcomer", sent["a newcomer"]),
        ("When to use it", f"{family['when to use them']} ([choosing a method](../choosing.md))"),
        ("Its family", f"{family['what they do']}: {', '.join(f'[`{other}`]({other}.md)' for other in relatives)}"
         if relatives else family["what they do"]),
    ]  # fmt: skip
    return "| | |\n|---|---|\n" + "".join(f"| {key} | {value} |\n" for key, value in lines)


def _use(name: str, kind: type) -> str:
    return (
        f"```python\nimport personafl as pf\n\nalgorithm = pf.{kind.__name__}()  # for pf.train and pf.compare\n"
        f'```\n\n```toml\n[algorithm]\nname = "{name}"\n```\n'
    )


def _equations(name: str, kind: type) -> str:
    """The docstring of the module: its first paragraph is the title, the rest is Markdown already."""
    text = inspect.getdoc(inspect.getmodule(kind)) or ""
    title, _, rest = text.partition("\n\n")
    if title.endswith(":"):
        rest = text
    others = [other for other, its in algorithms().items() if its.__module__ == kind.__module__ and other != name]
    also = f"This file has {_listed([f'[`{other}`]({other}.md)' for other in others])} too. " if others else ""
    path = Path(inspect.getfile(kind)).resolve().relative_to(ROOT)
    return f"## Equations and choices\n\n*{title}* {also}(`{path}`)\n\n{_linked(rest)}\n"


def _linked(text: str) -> str:
    return re.sub(r"docs/([\w-]+)\.md", r"[\1](../\1.md)", text)


def _settings(name: str, kind: type, facts: Facts) -> str:
    known = knobs(kind)
    lines = ["## Settings\n"]
    if known:
        lines += ["| setting | default | values | what it is |", "|---|---|---|---|"]
        lines += [f"| `{key}` | `{default}` | {_values(kind_)} | {meaning} |" for key, kind_, default, meaning in known]
        lines.append("")
    else:
        lines.append("It has none of its own. Those of [local training](../local-training.md) matter all the more.\n")
    for row in rows_of(facts.defaults, name):
        change = row["change it when"]
        lines.append(
            f"Default: {row['default']}; from: {row['from']}." + (f" Change it when: {change}.\n" if change else "\n")
        )
    return "\n".join(lines)


def _study(name: str, facts: Facts) -> str:
    mine, cost = rows_of(facts.accuracy, name), rows_of(facts.costs, name)
    others = {key: rows_of(facts.accuracy, key)[0] for key in ("separate", "fedavg") if key != name}
    federations = [key for key in facts.accuracy[0] if key not in ("method", "mean rank")]
    ranked = [row for row in facts.accuracy if re.fullmatch(r"[\d.]+", row["mean rank"])]
    row = mine[0]
    head = "## Its rank in our study\n\n"
    if row in ranked:
        place = 1 + sum(float(other["mean rank"]) < float(row["mean rank"]) for other in ranked)
        head += (
            f"Mean rank **{row['mean rank']}**, place {place} of {len(ranked)}, over ten federations of real data at "
            f"size *small*: [all methods ranked](../methods-study.md), with what such a rank cannot say. "
        )
    else:
        head += "It is not ranked: it refuses most of the federations of [the study](../methods-study.md). "
    if cost:
        c = cost[0]
        p = {"separate": c["p, alone"], "fedavg": c["p, FedAvg"]}
        head += (
            f"Clients that did worse than alone: {c['worse off']}. Gradients, over FedAvg's: {c['gradients']}. "
            "p of the difference in mean rank, after Holm: "
            f"{_listed([f'{p[key]} from `{key}`' for key in others])}."
        )
    columns = " | ".join(f"`{key}`" for key in (name, *others))
    lines = [
        head.rstrip() + "\n",
        f"| % of test samples | {columns} | the best |",
        "|---|" + "--:|" * (len(others) + 2),
    ]
    for federation in federations:
        best = next(other for other in facts.accuracy if other[federation].startswith("**"))
        cells = [row[federation], *(other[federation] for other in others.values())]
        lines.append(f"| {federation} | " + " | ".join(cells) + f" | {best[federation].strip('*')}, {best['method']} |")
    return "\n".join(lines) + "\n"


def _privacy(name: str, facts: Facts) -> str:
    (row,) = rows_of(facts.revealed, name)
    return (
        "## What the server learns\n\n| | |\n|---|---|\n"
        f"| Goes up | {row['goes up']} |\n| What follows from it | {row['what follows from it']} |\n"
        f"| With `[privacy]` | {row['`[privacy]`']} |\n\nMore: [privacy and security](../security.md).\n"
    )


def _right(name: str, kind: type, facts: Facts) -> str:
    (row,) = rows_of(facts.oracles, name)
    stem = kind.__module__.rpartition(".")[2]
    test = ROOT / "tests" / "algorithms" / f"test_{stem}.py"
    lines = ["## How we know it is right\n", f"Its oracle: {row['known otherwise']}."]
    if test.exists():
        lines.append(f"The test is `{test.relative_to(ROOT)}`.")
    lines.append("What an oracle is: [algorithms](../algorithms.md#how-we-know-they-are-right).\n")
    found = [
        bullet
        for bullet in facts.differences
        if re.search(rf"\b{re.escape(_plain(name))}\b", _plain(bullet.partition(":")[0]))
    ]
    if found:
        lines.append("Where well-known code differs:\n\n" + "\n".join(f"- {bullet}" for bullet in found) + "\n")
    return "\n".join(lines) + "\n"


def _bullets(text: str, heading: str) -> list[str]:
    section = text.split(heading + "\n", 1)[1].split("\n## ", 1)[0]
    return [" ".join(bullet.split()) for bullet in re.split(r"^- ", section, flags=re.M)[1:]]


def _plain(text: str) -> str:
    """Words in small letters, without what punctuates them."""
    return re.sub(r"[^a-z0-9 ]", "", text.lower())


def _from_below(text: str) -> str:
    """Links of a page in docs/, from a folder below."""
    return re.sub(r"\]\((?!\.\./|http|#)([\w-]+\.md)", r"](../\1", text)


def _values(kind: str) -> str:
    if choices := re.findall(r"Literal\[(.*?)\]", kind):
        words = [f"`{json.dumps(ast.literal_eval(word.strip()))}`" for word in choices[0].split(",")]
        return " or ".join((["a number"] if "float" in kind else []) + words)
    words = {"float": "a number", "int": "a whole number", "bool": "`true` or `false`", "str": "text"}
    base, _, optional = kind.partition(" | ")
    said = {"f": "numbers", "i": "whole numbers", "s": "names"}[base[6]] if base.startswith("tuple") else words[base]
    return f"{said}, or left out" if optional == "None" else said


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value)) if isinstance(value, tuple) else f'"{value}"' if isinstance(value, str) else f"{value:g}"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
