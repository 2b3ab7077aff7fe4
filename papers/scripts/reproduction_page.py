"""Write docs/reproduction.md from papers/results/*.json.

    .venv/bin/python papers/scripts/reproduction_page.py

Claims, notes and cuts are those that the tables have now: claims are decided again by the numbers that are kept, so
that a sentence can be corrected without a run. Numbers are never touched.
"""

from pathlib import Path

from personafl_papers.tables.summary import page, read, refreshed

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    for value in read(ROOT / "papers" / "results"):
        (ROOT / "papers" / "results" / f"{value['table']}.json").write_text(refreshed(value), encoding="utf-8")
    (ROOT / "docs" / "reproduction.md").write_text(page(read(ROOT / "papers" / "results")), encoding="utf-8")


if __name__ == "__main__":
    main()
