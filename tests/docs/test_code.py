"""Code and configs in README.md and docs/ run: every block of Python, and every block of TOML by what reads it.

Blocks of a page run in order, with fewer rounds and seeds. `GIVEN` makes what a page says that one has: a federation,
a model, a folder.
"""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from scripts.site.algorithm_pages import algorithm_pages, algorithms
from sklearn.datasets import load_digits
from torch import nn

import personafl as pf
from personafl.backends.flower.members import FederationSettings
from personafl.backends.flower.policy import Policy
from personafl.backends.flower.secure.settings import Secure
from personafl.backends.flower.site_data import SiteSettings
from personafl.config import for_method, parse
from personafl.pretrained import PretrainedModel
from personafl.registry import checked
from tests.federation import test_other_folders as others

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {"README": (ROOT / "README.md").read_text("utf-8")} | {
    str(path.relative_to(DOCS).with_suffix("")): path.read_text("utf-8") for path in sorted(DOCS.rglob("*.md"))
}
ELSEWHERE = {
    "own-algorithm": "tests/test_own_algorithm.py",
    "your-data": "tests/federation/test_your_data.py",
    "your-model": "tests/modules/test_your_model_page.py",
}
CONFIGS_ELSEWHERE = {"tasks": "tests/tasks/test_page.py", "your-data": "tests/federation/test_your_data.py"}
SLOW = {"deploy", "flower"}
"""They start servers, or Ray."""


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGES[page], re.M | re.S)


class Shorter(ast.NodeTransformer):
    """Eight clients, one seed, two rounds on one engine; and no server of MLflow."""

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        less = {"rounds": 2, "seeds": 1, "clients": 8, "steps": 2}
        if node.arg in less and isinstance(node.value, ast.Constant):
            node.value.value = less[node.arg]
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if node.value == "http://localhost:5000":
            node.value = "sqlite:///mlflow.db"
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if ast.unparse(node.func) in ("pf.train", "pf.compare"):
            named = {key.arg for key in node.keywords}
            missing = {"rounds": 2, "engine": "stacked"}.items()
            node.keywords += [ast.keyword(key, ast.Constant(value)) for key, value in missing if key not in named]
        if ast.unparse(node.func) == "pf.fit":
            less = {"methods": ["ditto"], "trials": 4, "rounds": 2, "engine": "stacked", "progress": False}
            node.keywords += [ast.keyword(key, ast.parse(repr(value), mode="eval").body) for key, value in less.items()]
        return self.generic_visit(node)


def shorter(code: str) -> ast.AST:
    return ast.fix_missing_locations(Shorter().visit(ast.parse(code)))


def digits() -> pf.Federation:
    return pf.data.build(pf.data.Digits(), pf.partition.Dirichlet(clients=4, alpha=0.5))


def usual() -> dict[str, Any]:
    fed, model = digits(), nn.Linear(64, 10)
    return {"pf": pf, "nn": nn, "torch": torch, "fed": fed, "federation": fed, "model": model, "module": model}


def tracked() -> dict[str, Any]:
    pytest.importorskip("wandb", reason="needs personafl[wandb]")
    return usual()


def in_frames() -> dict[str, Any]:
    pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("polars", reason="polars is not installed")
    return usual()


def readme() -> dict[str, Any]:
    x, y = load_digits(return_X_y=True)
    return {"x": (x / 16).astype(np.float32), "y": y, "x_new": x[:20] / 16, "y_new": y[:20]}


def with_head() -> dict[str, Any]:
    layers = nn.Sequential()
    layers.add_module("body", nn.Linear(64, 8))
    layers.add_module("head", nn.Linear(8, 10))
    return usual() | {"module": layers}


def ages() -> dict[str, Any]:
    draws = np.random.default_rng(0)
    people = {f"c{k}": (draws.normal(size=(20, 3)).astype(np.float32), draws.uniform(20, 60, 20)) for k in range(3)}
    loss = nn.MSELoss(reduction="none")
    return {
        "fed": pf.Federation.from_clients(people),
        "net": nn.Linear(3, 1),
        "my_loss": lambda outputs, y: loss(outputs.flatten(), y.flatten().float()),
    }


def folders_of_others() -> dict[str, Any]:
    """As these libraries write them; who writes them is checked in tests/federation."""
    others.write_pfllib(Path("dataset/MNIST"), shape=(1, 28, 28))
    others.write_flbench(Path("data/mnist"), [{"train": np.arange(20), "test": np.arange(20, 30)}], shape=(28, 28))
    draws = np.random.default_rng(0)
    others.write_leaf(
        Path("data/femnist/data"),
        lambda user, split, count: draws.uniform(size=(count, 784)).tolist(),
        lambda user, split, count: draws.integers(0, 62, count).tolist(),
    )
    others.write_heart(Path("fed_heart_disease"))
    return {}


def compared() -> dict[str, Any]:
    pf.compare(digits(), nn.Linear(64, 10), ["ditto"], seeds=1, rounds=2, out="runs/mnist-compare", progress=False)
    return {}


def trained() -> dict[str, Any]:
    pf.train(digits(), nn.Linear(64, 10), pf.Ditto(), rounds=2, out="runs/config-ditto-0", progress=False)
    return {}


def language_model() -> dict[str, Any]:
    """As wide as MiniLM, and with none of its weights."""
    transformers = pytest.importorskip("transformers", reason="needs personafl[huggingface]")
    pytest.importorskip("peft", reason="needs peft")
    folder = Path("weights/all-MiniLM-L6-v2")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "good", "day", "not", "mine"]
    config = transformers.BertConfig(
        vocab_size=9, hidden_size=384, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    transformers.BertModel(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizer(str(folder / "vocab.txt"), model_max_length=32).save_pretrained(folder)
    rows = [
        f"{user},{text},{mood}" for user in ("ann", "bob") for text, mood in (("a good day", 1), ("not mine", 0)) * 6
    ]
    Path("tweets.csv").write_text("\n".join(["user,text,mood", *rows]))
    return {}


GIVEN: dict[str, Any] = {
    "README": readme,
    "coming-from": folders_of_others,
    "compare": dict,
    "data": dict,
    "deploy": dict,
    "fit": dict,
    "flower": usual,
    "get-started": dict,
    "index": dict,
    "live": tracked,
    "local-training": with_head,
    "metrics": trained,
    "newcomers": dict,
    "notebook": in_frames,
    "pretrained": language_model,
    "report": compared,
    "tasks": ages,
    "your-package": dict,
}


def test_every_page_with_code_is_run_here_or_elsewhere():
    with_code = {page for page in PAGES if blocks(page, "python")}
    assert with_code == set(GIVEN) | set(ELSEWHERE), "a page with code belongs into GIVEN, with what its code needs"
    for page, test in (ELSEWHERE | CONFIGS_ELSEWHERE).items():
        assert f"docs/{page}.md" in (ROOT / test).read_text("utf-8")
    for page, text in PAGES.items():
        fenceless = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
        hidden = re.findall(r"^    (?:import |from \w+ import |\[[a-z]+\]$).*", fenceless, re.M)
        assert not hidden, f"{page}: code belongs between fences, where it is run"


@pytest.mark.parametrize("page", [pytest.param(page, marks=[pytest.mark.slow] * (page in SLOW)) for page in GIVEN])
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERSONAFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    plt.switch_backend("Agg")
    plt.close("all")  # what other pages drew
    names = {"__name__": page, **GIVEN[page]()}
    for number, block in enumerate(blocks(page, "python")):
        exec(compile(shorter(block), f"{page}, block {number + 1}", "exec", dont_inherit=True), names)
    CHECKS.get(page, lambda names: None)(names)


def deals_everything(names):
    dealt = names["Halves"]()(np.zeros(11), np.random.default_rng(0)).parts
    assert sorted(np.concatenate(dealt)) == list(range(11))


def is_a_page(names):
    assert "<html" in Path("report.html").read_text("utf-8")


def takes_what_its_backbone_takes(names):
    assert isinstance(names["newcomer"], PretrainedModel) and names["features"].x.shape == (120, 16)
    assert names["LowRank"](nn.Linear(4, 3))(torch.ones(2, 4)).shape == (2, 3)
    assert any("lora_A" in name for name, _ in names["net"].named_parameters())


def builds_its_model(names):
    assert names["Leaf"](width=3).build((4,), 2)(torch.ones(5, 4)).shape == (5, 2)


def has_its_pictures(names):
    assert len(plt.get_fignums()) == 4 and len(names["clients"]) == 4 and "label" in names["table"].columns


def was_told_to_wandb(names):
    import wandb

    wandb.teardown()  # ends its process
    assert len(list(Path("boards/wandb").glob("offline-run-*/run-*.wandb"))) == 1


CHECKS = {
    "data": deals_everything,
    "live": was_told_to_wandb,
    "notebook": has_its_pictures,
    "pretrained": takes_what_its_backbone_takes,
    "report": is_a_page,
    "your-package": builds_its_model,
}


def read(values: dict[str, Any]) -> str:
    """Read the tables of a block by what would read them in a file; what that was."""
    if "project" in values:
        return "pyproject.toml"
    if "federation" in values:
        checked(FederationSettings, "federation", values["federation"])
        return "federation.toml"
    if values.keys() == {"secure"}:
        checked(Secure, "secure", values["secure"])
        return "federation.toml"
    if "id" in values:
        checked(SiteSettings, "", values)
        return "site.toml"
    if "outgoing" in values:
        checked(Policy, "", values)
        return "policy.toml"
    for method in values.get("methods", {}):
        parse(for_method(values, method))
    parse({key: value for key, value in values.items() if key != "methods"})
    return "config"


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml") and page not in CONFIGS_ELSEWHERE])
def test_the_configs_of_a_page_are_read(page):
    for block in blocks(page, "toml"):
        values = tomllib.loads(block)
        if page == "your-package":  # names what a package of yours would bring
            assert "clover" in block
        elif values.keys() in ({"backbone"}, {"weights"}):  # a part of site.toml
            assert read({"id": "north", "data": "data.npz", "folder": "."} | values) == "site.toml"
        else:
            read(values)


def test_the_page_of_the_sites_names_every_setting():
    """docs/flower.md shows site.toml and [federation] whole."""
    federation, secure, site = (tomllib.loads(block) for block in blocks("flower", "toml"))
    assert [read(block) for block in (federation, secure, site)] == ["federation.toml", "federation.toml", "site.toml"]
    text = PAGES["flower"] + PAGES["pretrained"]
    for kind in (FederationSettings, Secure, SiteSettings):
        assert [field.name for field in fields(kind) if field.name not in text] == []


def test_the_officers_page_names_every_key_of_a_policy():
    (block,) = blocks("officer", "toml")
    assert read(tomllib.loads(block)) == "policy.toml"
    text = PAGES["officer"] + PAGES["security"]
    assert [field.name for field in fields(Policy) if field.name not in text] == []


def test_the_code_on_the_pages_of_algorithms_makes_that_algorithm():
    for name, page in algorithm_pages().items():
        (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
        names: dict[str, Any] = {}
        exec(code, names)
        (config,) = re.findall(r"```toml\n(.*?)```", page, re.S)
        assert (
            parse({**tomllib.loads(config), "data": "digits"}).algorithm == names["algorithm"] == algorithms()[name]()
        )
