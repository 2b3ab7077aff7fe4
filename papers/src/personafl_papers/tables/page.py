"""Results as a page: one HTML file in the report's style that needs nothing else; its figures are files, too."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from personafl.files import write_atomically, write_text
from personafl.report.figures import FORMATS, STYLE
from personafl.report.page import policy_hash, style_sheet
from personafl_papers.tables.show import cells, claimed, matrix, sentence, without_published

_MORE = """
.verdict { font-weight: 600; white-space: nowrap; }
.holds { color: var(--good); } .does-not-hold { color: var(--bad); } .not-decided, .not-measured { color: var(--soft); }
table.claims td { text-align: left; white-space: normal; vertical-align: top; }
table.claims td:first-child { min-width: 8rem; }
.figures { color: var(--soft); font-size: .9em; }
figure { margin-bottom: 2rem; } figure img { max-width: 100%; background: #fff; }
table.beside :is(td, th):nth-child(2) { text-align: left; }
"""


def write_page(value: Mapping[str, Any], figures: Mapping[str, tuple[Figure, str]], folder: Path) -> None:
    """report.html, and each figure as PNG and PDF."""
    pictures = []
    with matplotlib.rc_context(STYLE):
        for name, (figure, caption) in figures.items():
            for suffix, metadata in FORMATS.items():
                save = partial(figure.savefig, dpi=150, format=suffix[1:], metadata=metadata, bbox_inches="tight")
                write_atomically(folder / f"{name}{suffix}", save)
            pictures.append(((folder / f"{name}.png").read_bytes(), caption))
    write_text(folder / "report.html", page(value, pictures))


def page(value: Mapping[str, Any], pictures: list[tuple[bytes, str]]) -> str:
    """The page; pictures are PNG files with captions. There is no script in it, and none would be allowed to run."""
    style = style_sheet() + _MORE
    policy = f"default-src 'none'; style-src '{policy_hash(style)}'; img-src data:; base-uri 'none'; form-action 'none'"
    title = html.escape(value["table"])
    body = io.StringIO()
    for line in _body(value, pictures):
        body.write(f"{line}\n")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="generator" content="personafl reproduce">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title} – personafl reproduce</title>
<style>{style}</style>
</head>
<body>
{body.getvalue()}</body>
</html>
"""


def _body(value: Mapping[str, Any], pictures: list[tuple[bytes, str]]) -> Iterator[str]:
    text = html.escape
    yield '<header class="top"><p class="kicker">personafl reproduce</p>'
    yield f'<h1>{text(value["table"])}</h1><p class="lede">{text(value["about"])}. {text(sentence(value))}</p>'
    yield "</header><main>"
    yield "<section><h2>Claims</h2>"
    yield from _claims(value)
    yield "</section><section><h2>Published and ours</h2>"
    for key, part in value["parts"].items():
        listed = [entry for entry in value["numbers"] if entry["part"] == key and entry["count"]]
        if listed:
            yield from _numbers(part, listed)
    yield "</section>"
    if pictures:
        yield "<section><h2>Figures</h2>"
        for image, caption in pictures:
            data = base64.b64encode(image).decode()
            yield f'<figure><img src="data:image/png;base64,{data}" alt="{text(caption)}">'
            yield f"<figcaption>{text(caption)}</figcaption></figure>"
        yield "</section>"
    if value["notes"] or value["cut"]:
        yield "<section><h2>Why numbers differ</h2>"
        if value["cut"]:
            yield f"<p>Cut to fit the time: {text(value['cut'])}</p>"
        for note in value["notes"]:
            yield f"<p><b>{text(note['why'])}:</b> {text(note['what'])}"
            yield f"<i>How we know:</i> {text(note['known_by'])}</p>"
        yield "</section>"
    yield "<section><h2>What was run</h2>"
    yield from _origin(value)
    yield "</section></main>"


def _claims(value: Mapping[str, Any]) -> Iterator[str]:
    if not value["claims"]:
        yield "<p>There are no claims to check.</p>"
        return
    yield '<div class="scroll"><table class="claims"><tbody>'
    for claim in value["claims"]:
        kind = claim["verdict"].replace(" ", "-")
        yield f'<tr><td class="verdict {kind}">{html.escape(claim["verdict"])}</td>'
        yield f"<td>{html.escape(claimed(claim))}"
        yield f'<br><span class="figures">{html.escape(claim["figures"])}</span></td></tr>'
    yield "</tbody></table></div>"


def _numbers(part: Mapping[str, Any], listed: list[dict[str, Any]]) -> Iterator[str]:
    yield f"<h3>{html.escape(part['title'])} ({html.escape(part['place'])})</h3>"
    if part["other_data"]:
        yield f'<p class="caption">{html.escape(part["other_data"])}</p>'
    if without_published(listed):
        columns, rows = matrix(listed)
        titles = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
        yield f'<div class="scroll"><table class="matrix"><thead><tr><th></th>{titles}</tr></thead><tbody>'
        for row, ours in rows.items():
            yield f"<tr><th>{html.escape(row)}</th>{''.join(f'<td>{html.escape(cell)}</td>' for cell in ours)}</tr>"
        yield "</tbody></table></div>"
        return
    yield '<div class="scroll"><table class="beside"><thead><tr><th></th><th></th>'
    yield "<th>published</th><th>ours ± standard error</th><th>difference</th></tr></thead><tbody>"
    for entry in listed:
        written = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells(entry))
        yield f"<tr><th>{html.escape(entry['row'])}</th><td>{html.escape(entry['column'])}</td>{written}</tr>"
    yield "</tbody></table></div>"


def _origin(value: Mapping[str, Any]) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in value["versions"].items())
    facts = {
        "paper": value["paper"],
        "command": value["command"],
        "seeds": ", ".join(map(str, value["seeds"])),
        "runs": f"{value['runs']}, {value['training_seconds'] / 60:.1f} minutes of training, rejected trials apart",
        "machine": f"{value['cores']} cores",
        "versions": versions,
    }
    for search in value["searches"]:
        chosen = ", ".join(f"{key} = {setting}" for key, setting in search["chosen"].items())
        facts[f"searched for {search['method']}, {search['part']}"] = (
            f"{chosen}: the best of {len(search['trials'])} on validation data"
            + "".join(f"; {key} {end}" for key, end in search["ends"].items() if end != "inside")
        )
    yield '<dl class="facts">'
    for name, fact in facts.items():
        yield f"<dt>{html.escape(name)}</dt><dd>{html.escape(str(fact))}</dd>"
    yield "</dl>"
    for failure in value["failures"]:
        why = html.escape(f"{failure['method']} with seed {failure['seed']} failed: {failure['why']}")
        yield f"<p>{why}</p>"
