"""Published beside measured, on a table of made-up numbers: rows, JSON and back, pages."""

import json
import math

import pytest
from rich.console import Console

from personafl_papers.tables import kept_text
from personafl_papers.tables.claims import Claim, Number, above
from personafl_papers.tables.page import page
from personafl_papers.tables.results import judged, numbers_of, results, rows, tally
from personafl_papers.tables.show import sentence, tables
from personafl_papers.tables.summary import page as summary_page
from personafl_papers.tables.table import Found, Measured, Note, Part, Table, number

HOSTILE = "<script>alert(1)</script>"
NUMBERS = {
    "a": {"X": {"acc": number([80.0, 82.0])}, "Y": {"acc": number([70.0, 71.0])}},
    "other": {"X": {"acc": number([50.0])}},
    "drawn": {"Z": {"err": Number(1.5, 0.01, 200)}},
}
TABLE = Table(
    about=f"What {HOSTILE} shows",
    paper="A paper",
    cost="none",
    parts={
        "a": Part("Part a", "Table 1", {"X": {"acc": (79.0, 0.5)}, "Y": {"acc": 75.0}, "W": {"acc": 60.0}}),
        "other": Part("Other data", "Table 2", {"X": {"acc": 99.0}}, other_data="not the paper's"),
        "drawn": Part("Drawn", "Figure 3"),
        "absent": Part("Not run", "Table 4", {"X": {"acc": 1.0}}),
    },
    measure=lambda found: Measured(NUMBERS),
    claims=(
        Claim("X is above Y", "Table 1", ("a",), above("a", "acc", "X", ["Y"])),
        Claim(f"X {HOSTILE} | pipes", "Table 4", ("absent",), above("absent", "acc", "X", ["Y"]), should_hold=False),
    ),
    notes=(Note("bug", "What it is.", "A test."),),
)


@pytest.fixture
def value():
    return results("made-up", TABLE, Found(seed=4), Measured(NUMBERS))


def entry(value, part, row):
    return next(e for e in value["numbers"] if e["part"] == part and e["row"] == row)


def test_a_difference_is_ours_minus_published_where_the_data_is_the_same(value):
    x = entry(value, "a", "X")
    assert (x["published"], x["spread"], x["mean"], x["difference"]) == (79.0, 0.5, 81.0, 2.0)
    assert x["standard_error"] == 1.0 and x["values"] == [80.0, 82.0]
    assert entry(value, "other", "X")["difference"] is None and entry(value, "other", "X")["published"] == 99.0
    assert entry(value, "a", "W")["count"] == 0 == entry(value, "absent", "X")["count"]


def test_values_are_not_paired_where_a_run_has_failed():
    """The seeds of two methods that lost one each may be different ones."""
    found = Found(seed=4, failures=[("a", "x", 5, "diverged")])
    value = results("made-up", TABLE, found, Measured(NUMBERS))
    assert entry(value, "a", "X")["values"] == [] and entry(value, "a", "X")["standard_error"] == 1.0
    assert "+10.5 ± 1.1" in value["claims"][0]["figures"]


def test_numbers_come_back_from_json(value):
    back = numbers_of(json.loads(kept_text(value))["numbers"])
    assert back["a"] == NUMBERS["a"] and back["drawn"] == NUMBERS["drawn"] and "absent" not in back
    assert math.isnan(back["other"]["X"]["acc"].error)


def test_values_of_many_repeats_are_not_kept():
    many = {"a": {"X": {"acc": number(list(range(21)))}}}
    [kept] = [e for e in rows(TABLE, many) if e["count"]]
    assert kept["values"] == [] and kept["count"] == 21


def test_the_kept_text_is_json_with_a_line_for_each_number(value):
    text = kept_text(value)
    assert json.loads(text) == value
    assert sum(line.startswith('  {"part"') for line in text.splitlines()) == len(value["numbers"])


def test_claims_are_decided_again_from_what_is_kept(value):
    kept = json.loads(kept_text(value))
    assert judged({**kept, "claims": [], "notes": []}, TABLE) == value
    assert [c["verdict"] for c in value["claims"]] == ["holds", "not measured"]
    assert tally(value["claims"]) == {"holds": 1, "not measured": 1}
    assert value["command"] == "personafl reproduce made-up --seed 4"


def test_a_terminal_of_80_columns_shows_every_number(value):
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    for table in tables(value):
        console.print(table)
    told = console.export_text()
    assert "…" not in told and "81.00 ± 1.00" in told and "+2.00" in told and "1.50±0.01" in told
    assert "not the paper's" in told and "Not run" not in told and "(a variation of Table 4)" in " ".join(told.split())
    assert sentence(value) == "Of 1 claim 1 holds; of 1 variation 1 not measured."


def test_the_page_shows_text_as_text_and_runs_nothing(value):
    html = page(value, [(b"\x89PNG", f"A figure {HOSTILE}")])
    assert "<script" not in html and "&lt;script&gt;" in html and "script-src" not in html
    assert "default-src 'none'" in html and "81.00 ± 1.00" in html and "data:image/png;base64,iVBORw==" in html
    assert "(a variation of Table 4)" in html


def test_the_summary_counts_what_should_hold_and_escapes_its_columns(value):
    told = summary_page([value])
    assert "| [made-up](#made-up) | A paper | 1 |  |  |  | 0 | 1 |  |" in told
    assert f"*X {HOSTILE} \\| pipes*" in told
    assert "| X | acc | 79 (0.5) | 81.00 ± 1.00 | +2.00 |" in told
    assert "- **bug**: What it is. How we know: A test." in told
