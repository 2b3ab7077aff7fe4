"""What `make docs` is built from is whole: checked without building, and without the site's packages."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml
from scripts.site.algorithm_pages import algorithm_pages, algorithms, knobs

import personafl as pf
from personafl.cli import app

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))


def pages_in(nav):
    for entry in nav:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from [value] if isinstance(value, str) else pages_in(value)


def test_the_navigation_lists_every_page_once():
    """Pages of algorithms are put there by the build."""
    written = {str(page.relative_to(DOCS)) for page in PAGES}
    tutorials = {f"tutorials/{path.stem}.md" for path in (DOCS / "tutorials").glob("*.py")}
    assert sorted(pages_in(CONFIG["nav"])) == sorted(written | tutorials | {"changelog.md"})


def test_every_public_name_is_in_the_reference():
    text = "".join(page.read_text("utf-8") for page in (DOCS / "api").glob("*.md"))
    shown = re.findall(r"^::: personafl\.(\w+)$", text, re.M)
    of_algorithms = {kind.__name__ for kind in algorithms().values()}
    assert len(shown) == len(set(shown))
    assert set(shown) | of_algorithms == set(pf.__all__)


def test_every_algorithm_has_a_page_that_says_all_about_it():
    made = algorithm_pages()
    assert set(made) == set(pf.ALGORITHMS)
    for name, kind in algorithms().items():
        assert f"::: personafl.{kind.__name__}\n" in made[name]
        unexplained = [key for key, *_, meaning in knobs(kind) if not meaning]
        assert not unexplained, f"{name}: a string below the field says what it is"
    assert "place 14 of 44" in made["ditto"] and "every round by hand" in made["ditto"]
    assert "not ranked" in made["fedbn"] and "FLGo" in made["fedpac"]


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_links_lead_to_pages(page):
    """Anchors are checked by the build."""
    made = {f"{name}.md" for name in algorithms()} | {f"{path.stem}.md" for path in (DOCS / "tutorials").glob("*.py")}
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if not target.startswith("http"):
            assert (page.parent / target).exists() or Path(target).name in made, target


def test_commands_in_the_pages_exist_and_take_these_options():
    """Those of a line `$ personafl …`, or of an indented block."""
    cli = typer.main.get_command(app)
    seen = 0
    for page in [ROOT / "README.md", *PAGES, *(DOCS / "tutorials").glob("*.py")]:
        for line in re.findall(r"^(?:# )?(?:\$ |    )personafl (.+)$", page.read_text("utf-8"), re.M):
            words = line.split("#")[0].split("|")[0].split()
            command = cli
            while words and not words[0].startswith("-") and isinstance(command, typer.core.TyperGroup):
                name = words.pop(0)
                if name == "mow":  # of the package that docs/your-package.md writes
                    break
                assert name in command.commands, f"{page.name}: personafl {line}"
                command = command.commands[name]
            if isinstance(command, typer.core.TyperGroup) and not words:
                continue
            known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
            used = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
            assert used <= known | {"--help"}, f"{page.name}: personafl {line}"
            seen += 1
    assert seen > 60


def test_the_site_loads_nothing_from_elsewhere():
    assert CONFIG["theme"]["font"] is False
    ours = [*CONFIG["extra_css"], *CONFIG["extra"]["polyfills"]]
    assert all((DOCS / path).exists() for path in ours)


@pytest.mark.slow
def test_the_site_builds_without_a_warning():
    """Tutorials have a test of their own, and are not run here."""
    pytest.importorskip("mkdocs", reason="`make docs` installs its packages")
    command = [sys.executable, "scripts/site/build.py", "--quick"]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    site = ROOT / "build" / "site"
    pages = list(site.rglob("*.html"))
    assert len(pages) > 100
    for page in pages:
        text = page.read_text("utf-8")
        assert not re.findall(r'<(?:script|img|iframe)[^>]*src="https?:|<link[^>]*href="https?:[^>]*stylesheet', text)
    assert (site / "search" / "search_index.js").exists()
