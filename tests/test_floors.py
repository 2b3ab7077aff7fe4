"""Imports go down only: a module imports from its own package or from floors below, and never in a circle."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FLOORS = (
    # ground
    "version", "errors", "signals", "streams", "plugins", "registry", "states", "inputs", "checks", "local_settings",
    "settings", "files", "palette", "notebook",
    # what is trained: data, models, methods
    "storage", "pretrained", "federation", "data", "metrics", "tasks", "kernels", "models", "algorithms",
    # training
    "engines", "training", "runs", "config", "backends", "jobs",
    # many runs, and what is shown
    "study", "report", "comparison", "fitting", "cli", "__main__",
)  # fmt: skip
"""From the bottom to the top. A module may import from its own package and from what comes before it here."""
ABOVE_PACKAGES = {"personafl_papers": "papers", "personafl_bench": "benchmarks"}
CONTENTS = "personafl"
"""The package's own `__init__`: the table of contents, which names everything and which nothing imports from."""


def modules(folder: Path) -> dict[str, Path]:
    """Every module below a source folder by its dotted name."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules that a module imports, lazily and for its types too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            for alias in node.names:
                inside = f"{node.module}.{alias.name}"
                found.add(inside if inside in known else str(node.module))
    return found & known.keys()


PACKAGE = modules(ROOT / "src")


@cache
def graph() -> dict[str, set[str]]:
    """What each module imports; read when a test asks, as every process of pytest collects this file."""
    return {name: imports(path, PACKAGE) for name, path in PACKAGE.items()}


def floor(module: str) -> int:
    return FLOORS.index(module.split(".")[1])


@pytest.mark.parametrize("module", sorted(PACKAGE.keys() - {CONTENTS}))
def test_imports_go_down_only(module):
    up = [other for other in graph()[module] if other == CONTENTS or floor(other) > floor(module)]
    assert not up, f"{module} imports {', '.join(up)}, which is above it"


def test_no_import_cycles():
    left = dict(graph())
    while free := [module for module, needed in left.items() if not needed & left.keys() - {module}]:
        for module in free:
            del left[module]
    assert not left, f"these import each other: {', '.join(sorted(left))}"


def test_every_floor_is_there_and_nothing_else_is():
    there = {name.split(".")[1] for name in PACKAGE if "." in name}
    assert there == set(FLOORS)


@pytest.mark.parametrize("package", sorted(ABOVE_PACKAGES))
def test_the_package_knows_nothing_of_papers_and_benchmarks(package):
    """They are known by their entry points, as anybody's package is."""
    users = [name for name, path in PACKAGE.items() if package in path.read_text("utf-8")]
    assert not users


def test_no_import_is_excused():
    excused = [name for name, path in PACKAGE.items() if "noqa: E402" in path.read_text("utf-8")]
    assert not excused
