"""Results for a terminal: published, ours, difference; then every claim."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table as Shown
from rich.text import Text

from personafl_papers.tables.results import tally

QUICK = "A quick run, to see that it works: its numbers say nothing of the paper."
VARIATION = "a variation"
COLOURS = {"holds": "green", "does not hold": "red", "not decided": "yellow", "not measured": "dim"}


def tables(value: Mapping[str, Any]) -> Iterator[Shown]:
    """A table for each part that was measured, and one of the claims."""
    for key, part in value["parts"].items():
        listed = [entry for entry in value["numbers"] if entry["part"] == key and entry["count"]]
        if not listed:
            continue
        if without_published(listed):
            yield _matrix(part, listed)
            continue
        table = Shown(
            title=f"{part['title']} ({part['place']})", title_justify="left", box=box.SIMPLE_HEAD,
            caption=part["other_data"] or None, caption_justify="left", padding=(0, 0, 0, 1),
        )  # fmt: skip
        table.add_column("", overflow="fold")
        table.add_column("", overflow="fold")
        for title in ("published", "ours", "difference"):
            table.add_column(title, justify="right", no_wrap=True)
        before = None
        for entry in listed:
            row = "" if entry["row"] == before else entry["row"]
            table.add_row(Text(row), Text(entry["column"]), *cells(entry))
            before = entry["row"]
        yield table
    claims = Shown(title="Claims", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), show_lines=True)
    claims.add_column("", no_wrap=True)
    claims.add_column("claim, and the figures that decide it", overflow="fold")
    for claim in value["claims"]:
        what = Text(f"{claimed(claim)}\n{claim['figures']}")
        claims.add_row(Text(claim["verdict"], style=COLOURS[claim["verdict"]]), what)
    if value["claims"]:
        yield claims


def _matrix(part: Mapping[str, Any], listed: list[dict[str, Any]]) -> Shown:
    """Rows and columns of what is measured, where the paper has no numbers."""
    columns, rows = matrix(listed)
    table = Shown(
        title=f"{part['title']} ({part['place']}, without numbers there)", title_justify="left", box=box.SIMPLE_HEAD,
        caption=part["other_data"] or None, caption_justify="left", padding=(0, 0, 0, 1),
    )  # fmt: skip
    table.add_column("", overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=len(column) < 10)
    for row, written in rows.items():
        table.add_row(Text(row), *(cell.replace(" ", "") for cell in written))
    return table


def matrix(listed: Sequence[Mapping[str, Any]]) -> tuple[list[str], dict[str, list[str]]]:
    """Columns, and for each row what is written under them: ours."""
    columns = list(dict.fromkeys(entry["column"] for entry in listed))
    found = {(entry["row"], entry["column"]): cells(entry)[1] for entry in listed}
    return columns, {row: [found.get((row, column), "") for column in columns] for row, _ in found}


def without_published(listed: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the paper has no numbers for these: they are then shown as a matrix."""
    return all(entry["published"] is None for entry in listed)


def cells(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    """Published, ours and the difference, as they are written."""
    published, ours, difference = "–", "–", ""
    if entry["published"] is not None:
        published = f"{entry['published']:g}" + ("" if entry["spread"] is None else f" ({entry['spread']:g})")
    if entry["mean"] is not None:
        error = entry["standard_error"]
        places = _places(entry["mean"])
        ours = f"{entry['mean']:.{places}f}" + ("" if error is None else f" ± {error:.{places}f}")
    if entry["difference"] is not None:
        difference = f"{entry['difference']:+.{_places(entry['mean'])}f}"
    return published, ours, difference


def claimed(claim: Mapping[str, Any]) -> str:
    """A claim and where it is from; a variation is called one."""
    place = claim["place"]
    return f"{claim['claim']} ({place if claim['should_hold'] or place == VARIATION else f'{VARIATION} of {place}'})"


def sentence(value: Mapping[str, Any]) -> str:
    """How many of the paper's claims hold, and of our variations of them.

    >>> claim = {"verdict": "holds", "should_hold": True}
    >>> sentence({"claims": [claim, claim, claim | {"verdict": "not decided"}, claim | {"should_hold": False}]})
    'Of 3 claims 2 hold, 1 not decided; of 1 variation 1 holds.'
    """
    kinds = [
        ("claim", [claim for claim in value["claims"] if claim["should_hold"]]),
        ("variation", [claim for claim in value["claims"] if not claim["should_hold"]]),
    ]
    counted = "; ".join(f"of {len(of)} {kind}{'s' * (len(of) > 1)} {_counts(of)}" for kind, of in kinds if of)
    said = f"{counted[0].upper()}{counted[1:]}." if counted else "There are no claims to check."
    return f"{said} {QUICK}" if value.get("quick") else said


def _counts(claims: Sequence[Mapping[str, Any]]) -> str:
    several = {"holds": "hold", "does not hold": "do not hold"}
    return ", ".join(
        f"{count} {verdict if count == 1 else several.get(verdict, verdict)}"
        for verdict, count in tally(claims).items()
    )


def _places(value: float) -> int:
    return 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2
