"""Every public method of the package says what it does, or overrides one that says it.

Ruff's rules (pyproject.toml) see to modules, classes, functions and the NumPy style, but cannot look into base classes.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCES = sorted((Path(__file__).resolve().parents[1] / "src" / "personafl").rglob("*.py"))
OVERRIDES = {"forward", "extra_repr", "emit", "handle", "do_GET"}
"""What classes of torch, logging and http.server ask for."""


def methods(node: ast.ClassDef) -> dict[str, bool]:
    """The methods of a class, and whether each has a docstring; of a property, its getter counts, and no overload."""
    found: dict[str, bool] = {}
    for each in node.body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and not is_overload(each):
            found.setdefault(each.name, bool(ast.get_docstring(each)))
    return found


def is_overload(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(base_name(each) == "overload" for each in node.decorator_list)


def base_name(node: ast.expr) -> str:
    """`Base` of `Base`, `module.Base` and `Base[T]`."""
    node = node.value if isinstance(node, ast.Subscript) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def undocumented(classes: list[tuple[str, ast.ClassDef]]) -> list[str]:
    """The public methods without a docstring in their class or in one that it is made from."""
    by_name: dict[str, list[ast.ClassDef]] = {}
    for _, node in classes:
        by_name.setdefault(node.name, []).append(node)

    def says(node: ast.ClassDef, method: str, seen: frozenset[str] = frozenset()) -> bool:
        if methods(node).get(method):
            return True
        bases = {base_name(base) for base in node.bases} - seen
        return any(says(base, method, seen | bases) for name in bases for base in by_name.get(name, ()))

    return [
        f"{where}: {node.name}.{method}"
        for where, node in classes
        if not node.name.startswith("_")
        for method in methods(node)
        if not method.startswith("_") and not says(node, method)
    ]


def classes_of(source: str, where: str) -> list[tuple[str, ast.ClassDef]]:
    return [(where, node) for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]


def test_public_methods_are_documented():
    classes = [pair for path in SOURCES for pair in classes_of(path.read_text("utf-8"), path.name)]
    missing = [each for each in undocumented(classes) if each.rpartition(".")[2] not in OVERRIDES]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("class A:\n def f(self): ...", ["here: A.f"]),
        ("class A:\n def f(self): 'Says it.'\nclass B(A):\n def f(self): ...", []),
        ("class A:\n def f(self): 'Says it.'\nclass B(A):\n def g(self): ...", ["here: B.g"]),
        ("class A:\n @overload\n def f(self): ...\n def f(self): 'Says it.'", []),
        ("class _A:\n def f(self): ...\nclass B:\n def _f(self): ...", []),
    ],
)  # fmt: skip
def test_what_counts_as_documented(source, missing):
    assert undocumented(classes_of(source, "here")) == missing
