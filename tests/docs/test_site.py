"""What `make docs` is built from is whole: checked without building, and without the site's packages."""

import inspect
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import typer
import yaml
from scripts.site.algorithm_pages import algorithm_pages, algorithms, knobs

import personafl as pf
from personafl.cli import app
from tests.report.browser import Browser, chromium

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
    listed = sorted(pages_in(CONFIG["nav"]))
    assert listed == sorted(written | tutorials | {"changelog.md"}), "every page has a place in nav of mkdocs.yml"


def test_every_public_name_is_in_the_reference():
    text = "".join(page.read_text("utf-8") for page in (DOCS / "api").glob("*.md"))
    shown = re.findall(r"^::: personafl\.(\w+)$", text, re.M)
    of_algorithms = {kind.__name__ for kind in algorithms().values()}
    assert len(shown) == len(set(shown))
    missing = set(pf.__all__) - set(shown) - of_algorithms
    assert not missing, "each has a line `::: personafl.NAME` in docs/api"
    assert set(shown) | of_algorithms == set(pf.__all__)


def test_every_algorithm_has_a_page_that_says_all_about_it():
    made = algorithm_pages()
    assert set(made) == set(pf.ALGORITHMS)
    for name, kind in algorithms().items():
        assert f"::: personafl.{kind.__name__}\n" in made[name]
        unexplained = [key for key, *_, meaning in knobs(kind) if not meaning]
        assert not unexplained, f"{name}: a string below the field says what it is"
        parts = dict(part.split("\n", 1) for part in re.split("^## ", made[name], flags=re.M)[1:])
        assert re.search(r"^    .*(←|=|min )", parts["Equations and choices"], re.M), f"{name}: equations"
        (test,) = re.findall(r"^The test is `(.+)`\.$", parts["How we know it is right"], re.M)
        assert (ROOT / test).is_file(), name
        (ours,) = re.findall(rf"^\| % of test samples \| `{name}` \|.*", parts["Its rank in our study"], re.M)
        assert ours.count(f"`{name}`") == 1
        assert "| the same |" not in made[name], "a page stands alone"
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


@pytest.fixture(scope="module")
def site():
    """The site without the outputs of the tutorials, which have a test of their own."""
    pytest.importorskip("mkdocs", reason="`make docs` installs its packages")
    command = [sys.executable, "scripts/site/build.py", "--quick"]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert built.returncode == 0 and "WARNING" not in built.stdout + built.stderr, built.stdout + built.stderr
    return ROOT / "build" / "site"


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(site):
    made = {str(page.relative_to(site).with_suffix(".md")) for page in site.rglob("*.html")}
    assert made == {*pages_in(CONFIG["nav"]), *(f"algorithms/{name}.md" for name in algorithms()), "404.md"}
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        assert not re.findall(r'<(?:script|img|iframe)[^>]*src="(?:https?:)?//|<link[^>]*href="(?:https?:)?//', text)


@pytest.mark.slow
def test_everything_public_is_in_the_reference(site):
    """objects.inv has what one can link to: its names, compressed, after four lines of text."""
    inventory = zlib.decompress((site / "objects.inv").read_bytes().split(b"\n", 4)[4]).decode()
    known = {line.split()[0] for line in inventory.splitlines()}
    modules = (pf, pf.data, pf.metrics, pf.partition, pf.pretrained, pf.tasks)
    public = {
        f"{module.__name__}.{name}"
        for module in modules
        for name in module.__all__
        if inspect.isclass(getattr(module, name)) or inspect.isfunction(getattr(module, name))
    }
    for kind in (pf.Federation, pf.Run, pf.Comparison):
        members = {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}
        public |= {
            f"personafl.{kind.__name__}.{name}"
            for name, member in members.items()
            if inspect.isroutine(member) or isinstance(member, property)
        }
    assert sorted(public - known) == ["personafl.data.build"]  # its module has the same name, and is there
    assert "personafl.data.build.build" in known


@pytest.mark.slow
@pytest.mark.skipif(chromium() is None, reason="there is no Chromium")
def test_search_works_from_the_disk(site):
    browser = Browser()
    first = 'document.querySelector(".md-search-result__list a")'
    try:
        page = browser.open(f"{(site / 'index.html').as_uri()}?q=pathological", ready=f"{first} !== null")
        assert "data.html" in page.run(f"{first}.href")
        assert all(address.startswith("file:") for address in page.requests()) and page.requests()
    finally:
        browser.close()
