"""docs/reproduction.md and results/ belong together, and to the tables."""

from pathlib import Path

import pytest

from personafl_papers.tables import TABLES
from personafl_papers.tables.results import numbers_of, unexplained
from personafl_papers.tables.summary import _search, before, page, read, refreshed

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted((ROOT / "papers" / "results").glob("*.json"))


def test_the_page_is_what_the_script_makes_of_the_files():
    made = page(read(ROOT / "papers" / "results"))
    assert (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8") == made, (
        "run papers/scripts/reproduction_page.py"
    )


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_kept_result_is_a_full_run_with_the_claims_that_its_table_makes_now(file):
    [value] = [value for value in read(ROOT / "papers" / "results") if value["table"] == file.stem]
    assert file.stem in TABLES and not value["quick"]
    assert file.read_text(encoding="utf-8") == refreshed(value), "run papers/scripts/reproduction_page.py"
    if not before(value):  # what was made by an earlier protocol keeps what its table said then
        assert value["cut"] == TABLES[file.stem].cut
        assert set(numbers_of(value["numbers"])) <= set(TABLES[file.stem].parts)
    assert file.stat().st_size < 700_000, "2,000 numbers of PersFL, with their values by seed"


def test_the_first_table_counts_every_claim_of_a_paper_once_and_says_which_are_old():
    claim = {"claim": "c", "place": "p", "verdict": "holds", "should_hold": True, "figures": ""}
    common = {
        "about": "", "paper": "FedAMP, Table 1", "command": "", "quick": False, "seeds": [0], "runs": 0,
        "training_seconds": 0, "cores": 2, "versions": {}, "cut": "", "parts": {}, "numbers": [], "notes": [],
        "searches": [], "failures": [],
    }  # fmt: skip
    new = {**common, "table": "new", "protocol": 2, "claims": [claim, {**claim, "verdict": "not decided"}]}
    old = {**common, "table": "old", "claims": [claim, {**claim, "should_hold": False}]}
    lines = page([new, old]).splitlines()
    unrun = sum(claim.should_hold for claim in TABLES["fedamp-tables"].claims)
    assert f"| FedAMP | 2 | 0 | 1 | {unrun} | 1 |" in lines
    assert any(line.startswith("| [old](#old) † |") for line in lines)
    assert any(line.startswith("| [new](#new) |") for line in lines)


def test_claims_that_failed_without_an_experiment_that_shows_why_are_counted():
    claims = [
        {"claim": text, "verdict": verdict, "should_hold": counted}
        for text, verdict, counted in (
            ("A is above B on digits", "does not hold", True), ("A is above C", "does not hold", True),
            ("A is above D", "does not hold", False), ("A is above E", "not decided", True),
        )
    ]  # fmt: skip
    notes = [{"why": "bug", "what": "", "known_by": ""}]
    assert unexplained({"claims": claims, "notes": notes}) == ["A is above B on digits", "A is above C"]
    notes.append({"why": "bug", "what": "", "known_by": "an experiment", "explains": ["A is above B"]})
    assert unexplained({"claims": claims, "notes": notes}) == ["A is above C"]


def test_a_note_explains_claims_that_its_table_makes():
    for name, table in TABLES.items():
        for start in (start for note in table.notes for start in note.explains):
            assert any(claim.text.startswith(start) for claim in table.claims), f"{name}: {start}"


def test_a_search_that_ended_at_a_limit_is_marked():
    search = {
        "part": "search", "method": "ditto", "chosen": {"local.lr": 3.0, "algorithm.lam": 0}, "trials": [{}] * 12,
        "ends": {"local.lr": "at the limit", "algorithm.lam": "inside"},
        "limits": {"local.lr": [0.003, 3.0], "algorithm.lam": [0, 10]},
    }  # fmt: skip
    assert _search(search) == (
        "- Searched on validation data for ditto (search): **lr = 3.0, lam = 0**, best of 12 tries within lr 0.003 to "
        "3, lam 0 to 10; lr *at the limit*"
    )
