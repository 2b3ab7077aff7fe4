"""Build the documentation site: `python scripts/site/build.py` (or `make docs`) writes build/site.

build/docs gets the pages of docs/ and those that are made: a page for each algorithm, the tutorials with their outputs,
the changelog. Then MkDocs makes the site of them, and every warning is an error. The pages are plain Markdown, so that
another generator could take them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

import yaml  # noqa: E402
from scripts.site.algorithm_pages import algorithm_pages  # noqa: E402
from scripts.site.notebooks import notebook, page, read_cells, run_cells  # noqa: E402

BUILD = ROOT / "build"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", help="show the site at http://127.0.0.1:8000 instead")
    parser.add_argument("--quick", action="store_true", help="do not run the tutorials: their pages have no outputs")
    arguments = parser.parse_args()
    config = prepare(BUILD / "docs", run_tutorials=not arguments.quick)
    path = BUILD / "mkdocs.yml"
    path.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), "utf-8")
    command = ["serve"] if arguments.serve else ["build", "--strict", "--quiet"]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # an advertisement, which is no warning of ours
    done = subprocess.run([sys.executable, "-m", "mkdocs", *command, "-f", str(path)], env=environment, check=False)
    if done.returncode == 0 and not arguments.serve:
        print(f"the site is in {(BUILD / 'site' / 'index.html').relative_to(ROOT)}")
    sys.exit(done.returncode)


def prepare(folder: Path, run_tutorials: bool) -> dict[str, Any]:
    """Write all pages into `folder`, and give MkDocs' settings for them."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder)
    config = settings()
    _section(config["nav"], "Algorithms").extend(_write(folder, "algorithms", algorithm_pages()))
    for file in sorted((folder / "tutorials").glob("*.py")):
        _tutorial(file, run_tutorials)
    shutil.copy(ROOT / "CHANGELOG.md", folder / "changelog.md")
    return config


def settings() -> dict[str, Any]:
    """mkdocs.yml, with the places that follow from where build/ is."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    return config | {"docs_dir": "docs", "site_dir": "site"}


def _tutorial(file: Path, run: bool) -> None:
    """Put a page, its pictures and a notebook in the place of a tutorial's file."""
    cells = read_cells(file)
    if run:
        print(f"tutorial: {file.stem}", flush=True)
        with tempfile.TemporaryDirectory() as place, chdir(place):
            run_cells(cells, file.name)
    text, pictures = page(cells, file.stem)
    file.with_suffix(".md").write_text(text, "utf-8")
    file.with_suffix(".ipynb").write_text(notebook(cells), "utf-8")
    for name, picture in pictures.items():
        (file.parent / name).write_bytes(picture)
    file.unlink()


def _write(folder: Path, name: str, pages: dict[str, str]) -> list[dict[str, str]]:
    (folder / name).mkdir(exist_ok=True)
    for key, text in pages.items():
        (folder / name / f"{key}.md").write_text(text, "utf-8")
    return [{key: f"{name}/{key}.md"} for key in pages]


def _section(nav: list[dict[str, Any]], title: str) -> list[Any]:
    (found,) = (entry[title] for entry in nav if title in entry)
    return found  # type: ignore[no-any-return]


if __name__ == "__main__":
    main()
