"""docs/reproduction.md: what reproduces, what does not, and why, from the kept results and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from personafl_papers.tables import TABLES, kept_text
from personafl_papers.tables.claims import VERDICTS
from personafl_papers.tables.results import judged, tally
from personafl_papers.tables.show import cells, matrix, without_published

MARKS = {"holds": "✓", "does not hold": "✗", "not decided": "?", "not measured": "–"}
INTRO = """# What reproduces

Made from the files in `papers/results/` by `papers/scripts/reproduction_page.py`; do not edit. Each file is the
result of a full run, and its command makes it again: `personafl reproduce NAME --keep papers/results/`.

A claim is a sentence of a paper: an order, a gap, a shape. It is decided by our numbers alone: **✓** holds, **✗** does
not hold, **?** not decided, because the difference is within Student's one-sided 95% limit over seeds (paired by seed),
**–** not measured, because its data is not here. Claims in *italics* are variations of ours that no paper makes, and
are not counted in the first table. Numbers are mean ± standard error over seeds; published ones have in brackets the
spread that the paper gives. Minutes are those that the runs took, two at a time on two cores (fedamp-tables: one after
the other on both); what a search tried and did not choose is not among runs and minutes.
"""


def read(folder: Path) -> list[dict[str, Any]]:
    """The kept results, in the order of `TABLES`."""
    files = {path.stem: path for path in sorted(folder.glob("*.json"))}
    order = [*(name for name in TABLES if name in files), *(name for name in files if name not in TABLES)]
    return [json.loads(files[name].read_text(encoding="utf-8")) for name in order]


def refreshed(value: dict[str, Any]) -> str:
    """The text of a result file with what its table says now; claims are decided by the numbers that it holds."""
    return kept_text(judged(value, TABLES[value["table"]]) if value["table"] in TABLES else value)


def page(values: Sequence[Mapping[str, Any]]) -> str:
    """The page of these results."""
    return "\n".join([INTRO, *_glance(values), *(line for value in values for line in _section(value))])


def _glance(values: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| table | paper | ✓ | ✗ | ? | – | runs | seeds | minutes of training |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|--:|"
    for value in values:
        counts = tally(claim for claim in value["claims"] if claim["should_hold"])
        shown = " | ".join(str(counts.get(verdict, "")) for verdict in VERDICTS)
        link = f"[{value['table']}](#{value['table']})"
        minutes = f"{value['training_seconds'] / 60:.0f}" if value["runs"] else ""
        yield f"| {link} | {value['paper']} | {shown} | {value['runs']} | {len(value['seeds'])} | {minutes} |"
    yield ""


def _section(value: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {value['table']}\n"
    yield f"{value['about']}. {value['paper']}.\n"
    if value["claims"]:
        yield "| | claim | where | figures |\n|---|---|---|---|"
        for claim in value["claims"]:
            text = _cell(claim["claim"]) if claim["should_hold"] else f"*{_cell(claim['claim'])}*"
            yield f"| {MARKS[claim['verdict']]} | {text} | {_cell(claim['place'])} | {_cell(claim['figures'])} |"
        yield ""
    for key, part in value["parts"].items():
        listed = [entry for entry in value["numbers"] if entry["part"] == key and entry["count"]]
        if listed:
            yield from _numbers(part, listed)
    if value["notes"]:
        yield "Why numbers differ:\n"
        for note in value["notes"]:
            yield f"- **{note['why']}**: {note['what']} How we know: {note['known_by']}"
        yield ""
    if value["cut"]:
        yield f"Cut to fit the time: {value['cut']}\n"
    for search in value["searches"]:
        tried = "; ".join(_settings(trial["settings"]) for trial in search["trials"])
        yield (
            f"- Searched on validation data for {search['method']} ({search['part']}): "
            f"**{_settings(search['chosen'])}** of {tried}"
        )
    if value["searches"]:
        yield ""
    for failure in value["failures"]:
        yield f"- {failure['method']} with seed {failure['seed']} failed: {failure['why']}"
    versions = ", ".join(f"{name} {version}" for name, version in value["versions"].items())
    seeds = f"seeds {', '.join(map(str, value['seeds']))}"
    yield f"`{value['command']}`, {seeds}, {value['cores']} cores; {versions}.\n"


def _numbers(part: Mapping[str, Any], listed: list[dict[str, Any]]) -> Iterator[str]:
    yield f"**{part['title']}** ({part['place']}).{' ' + part['other_data'] + '.' if part['other_data'] else ''}\n"
    if without_published(listed):
        columns, rows = matrix(listed)
        yield f"| | {' | '.join(columns)} |\n|---|{'--:|' * len(columns)}"
        for row, written in rows.items():
            yield f"| {row} | {' | '.join(written)} |"
    else:
        yield "| | | published | ours | difference |\n|---|---|--:|--:|--:|"
        for entry in listed:
            yield f"| {entry['row']} | {entry['column']} | {' | '.join(cells(entry))} |"
    yield ""


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key.removeprefix('algorithm.')} = {value}" for key, value in settings.items())


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
