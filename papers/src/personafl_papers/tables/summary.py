"""docs/reproduction.md: what reproduces, what does not, and why, from the kept results and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from personafl_papers.tables import TABLES, kept_text
from personafl_papers.tables.claims import VERDICTS
from personafl_papers.tables.results import PROTOCOL, judged, tally, unexplained
from personafl_papers.tables.show import cells, matrix, without_published

MARKS = {"holds": "✓", "does not hold": "✗", "not decided": "?", "not measured": "–"}
PAPERS = ("Self-FL", "FedAMP", "PersFL")
"""How the names of the papers begin; tables of ours make no claims that count."""
INTRO = """# What reproduces

Made from the files in `papers/results/` by `papers/scripts/reproduction_page.py`; do not edit. Each file is the
result of a full run, and its command makes it again: `personafl reproduce NAME --keep papers/results/`.

A claim is a sentence of a paper: an order, a gap, a shape. It is decided by our numbers alone: **✓** holds, **✗** does
not hold, **?** not decided, because the difference is within Student's one-sided 95% limit over seeds (paired by seed),
**–** not measured, because its data is not here or its table has not been run. Claims in *italics* are variations of
ours that no paper makes, and comparisons of unequal training; they are not counted in the first tables. Numbers are
mean ± standard error over seeds; published ones have in brackets the spread that the paper gives. Minutes are those
that the runs took; what a search tried and did not choose is not among runs and minutes.

Searches are on validation data. They begin at a stated point and go on where the best is at an end of what was tried,
until it is inside or at a stated limit; every method of a table has the same number of tries, and trials are as long
as the runs that they serve. Below each table is what was chosen, *at the limit* where a search ended at one, and
*out of tries* where it had not come inside with the most tries that its table has.
Tables with **†** were made before: with short grids, of which a search could choose an end, and some with shorter
trials. They have not been run again since.
"""


def read(folder: Path) -> list[dict[str, Any]]:
    """The kept results, in the order of `TABLES`."""
    files = {path.stem: path for path in sorted(folder.glob("*.json"))}
    order = [*(name for name in TABLES if name in files), *(name for name in files if name not in TABLES)]
    return [json.loads(files[name].read_text(encoding="utf-8")) for name in order]


def refreshed(value: dict[str, Any]) -> str:
    """The text of a result file with what its table says now; claims are decided by the numbers that it holds."""
    return kept_text(value if value["table"] not in TABLES or before(value) else judged(value, TABLES[value["table"]]))


def before(value: Mapping[str, Any]) -> bool:
    """Whether a result was made with an earlier protocol: it keeps the claims that it was made with."""
    return int(value.get("protocol", 1)) < PROTOCOL


def page(values: Sequence[Mapping[str, Any]]) -> str:
    """The page of these results."""
    return "\n".join(
        [INTRO, *_papers(values), *_glance(values), *(line for value in values for line in _section(value))]
    )


def _papers(values: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """How many claims of each paper held. Those of tables without results are not measured."""
    yield "| paper | held | did not | undecided | not measured | of these before the protocol changed (†) |"
    yield "|---|--:|--:|--:|--:|--:|"
    known = {value["table"]: value for value in values}
    for paper in PAPERS:
        names = dict.fromkeys([*(n for n in TABLES if TABLES[n].paper.startswith(paper)), *(
            n for n, value in known.items() if value["paper"].startswith(paper)
        )])  # fmt: skip
        counts = dict.fromkeys(VERDICTS, 0)
        old = 0
        for name in names:
            if name in known:
                counted = tally(claim for claim in known[name]["claims"] if claim["should_hold"])
                old += sum(counted.values()) if before(known[name]) else 0
            else:
                counted = {"not measured": sum(claim.should_hold for claim in TABLES[name].claims)}
            counts = {verdict: counts[verdict] + counted.get(verdict, 0) for verdict in VERDICTS}
        yield f"| {paper} | {' | '.join(map(str, counts.values()))} | {old} |"
    yield ""


def _glance(values: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| table | paper | ✓ | ✗ | ? | – | runs | seeds | minutes of training |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|--:|"
    for value in values:
        counts = tally(claim for claim in value["claims"] if claim["should_hold"])
        shown = " | ".join(str(counts.get(verdict, "")) for verdict in VERDICTS)
        link = f"[{value['table']}](#{value['table']}){' †' if before(value) else ''}"
        minutes = f"{value['training_seconds'] / 60:.0f}" if value["runs"] else ""
        yield f"| {link} | {value['paper']} | {shown} | {value['runs']} | {len(value['seeds'])} | {minutes} |"
    yield ""
    if lacking := [name for name in TABLES if name not in {value["table"] for value in values}]:
        yield f"Not run yet: {', '.join(lacking)}.\n"
    if open_ := {v["table"]: len(found) for v in values if not before(v) and (found := unexplained(v))}:
        listed = ", ".join(f"{name} ({count})" for name, count in open_.items())
        yield f"Claims that did not hold, and no experiment shows why yet, † apart: {listed}.\n"


def _section(value: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {value['table']}\n"
    yield f"{value['about']}. {value['paper']}.\n"
    if before(value):
        yield "**†** Made before the search protocol changed, and not run again since.\n"
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
            mark = " (shows why claims do not hold)" if note.get("explains") else ""
            yield f"- **{note['why']}**{mark}: {note['what']} How we know: {note['known_by']}"
        yield ""
    if value["cut"]:
        yield f"Cut to fit the time: {value['cut']}\n"
    for search in value["searches"]:
        yield _search(search)
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


def _search(search: Mapping[str, Any]) -> str:
    """What was chosen, of what, and where the search ended; a grid of before knows nothing beyond its ends."""
    said = f"- Searched on validation data for {search['method']} ({search['part']}): **{_settings(search['chosen'])}**"
    if "ends" not in search:
        return f"{said} of {'; '.join(_settings(trial['settings']) for trial in search['trials'])}"
    ranges = ", ".join(f"{_key(key)} {low:g} to {high:g}" for key, (low, high) in search["limits"].items())
    ended = [f"{_key(key)} *{end}*" for key, end in search["ends"].items() if end != "inside"]
    where = f"; {', '.join(ended)}" if ended else "; inside"
    return f"{said}, best of {len(search['trials'])} tries within {ranges}{where}"


def _key(key: str) -> str:
    return key.removeprefix("algorithm.").removeprefix("local.")


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{_key(key)} = {value}" for key, value in settings.items())


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
