"""docs/reproduction.md and results/ belong together, and to the tables."""

from pathlib import Path

import pytest

from personafl_papers.tables import TABLES
from personafl_papers.tables.results import numbers_of
from personafl_papers.tables.summary import page, read, refreshed

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
    assert value["cut"] == TABLES[file.stem].cut
    assert set(numbers_of(value["numbers"])) <= set(TABLES[file.stem].parts)
    assert file.stat().st_size < 200_000
