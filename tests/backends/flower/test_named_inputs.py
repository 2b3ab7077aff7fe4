"""Sites whose samples are texts of unequal length beside numbers do what the loop engine does, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import tomli_w
import torch
from torch import nn

from personafl.backends.deploy.check import check_site
from personafl.backends.deploy.rehearsal_data import deal
from personafl.backends.flower.site import Site
from personafl.backends.flower.site_data import SiteSettings, read_data
from personafl.errors import RunError
from personafl.federation import Federation
from personafl.inputs import shape_of
from personafl.models import MODELS
from tests.backends.flower.grid import MemoryGrid, Node
from tests.backends.flower.problem import flower, loop, same, same_clients, server_state, site_model

SHAPE = {"ids": [6], "age": [2], "mask": [6]}


class Net(nn.Module):
    def __init__(self, hidden, outputs):
        super().__init__()
        self.words, self.head = nn.Embedding(9, hidden), nn.Linear(hidden + 2, outputs)

    def forward(self, ids, age, mask):
        real = mask.unsqueeze(-1).float()
        return self.head(torch.cat([(self.words(ids) * real).sum(1) / real.sum(1), age], 1))


@dataclass(frozen=True)
class Text:
    name: ClassVar[str] = "text"
    hidden: int = 4

    def build(self, shape, outputs, constants={}):  # noqa: B006
        assert {name: list(each) for name, each in shape.items()} == SHAPE
        return Net(self.hidden, outputs)


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """As the entry point of an installed package."""
    monkeypatch.setitem(MODELS._own, "text", Text)


def clients():
    rng = np.random.default_rng(0)
    data = {}
    for m in range(3):
        lengths, n = rng.integers(1, 5 + m % 2, 12), 12
        ids, age, y = [rng.integers(0, 9, k) for k in lengths], rng.normal(size=(n, 2)), rng.integers(0, 2, n)
        cuts = {"train": slice(0, 6), "val": slice(6, 8), "test": slice(8, 12)}
        data[f"site-{m}"] = {s: ({"ids": ids[part], "age": age[part]}, y[part]) for s, part in cuts.items()}
    return data


def write_site(folder, client, parts, **more):
    folder.mkdir(parents=True)
    arrays = {}
    for split, (x, y) in parts.items():
        arrays |= {f"x_{split}.ids": np.concatenate(x["ids"]), f"x_{split}.age": x["age"], f"y_{split}": y}
        arrays[f"x_{split}.ids.lengths"] = [len(row) for row in x["ids"]]
    np.savez(folder / "data.npz", **arrays)
    table = {"id": client, "data": "data.npz", "folder": ".", "least_batch_size": 1, "least_samples": 1, **more}
    (folder / "site.toml").write_text(tomli_w.dumps(table))
    return folder / "site.toml"


def test_sites_with_named_inputs_equal_the_loop_engine(tmp_path):
    data = clients()
    files = {c: write_site(tmp_path / "sites" / c, c, parts, length=6) for c, parts in data.items()}
    grid = MemoryGrid({1000 + k: Node(file) for k, file in enumerate(files.values())})
    ours = flower(tmp_path / "flower", grid, "ditto", model="text", input_shape=SHAPE, max_weight=1.0)
    reference = loop(tmp_path / "loop", "ditto", Federation.from_clients(data, classes=2, length=6), model="text")
    assert same(server_state(ours), server_state(reference)) and same_clients(ours, reference)
    assert ours.manifest["resolved"]["input_shape"] == SHAPE
    assert ours.manifest["resolved"]["input_dtype"] == {"ids": "int64", "age": "float32", "mask": "uint8"}
    for client, file in files.items():
        wanted = {name: value.detach() for name, value in reference.personal(client).named_parameters()}
        assert same(site_model(file), wanted)


def test_a_site_whose_texts_are_padded_to_another_length_is_told_so(tmp_path):
    data = clients()
    file = write_site(tmp_path / "site", "site-0", data["site-0"], length=7)
    grid = MemoryGrid({1000: Node(file)})
    with pytest.raises(RunError, match=r"shape ids \(7,\), age \(2,\), mask \(7,\), expected ids \(6,\), age"):
        flower(tmp_path / "flower", grid, "ditto", model="text", input_shape=SHAPE, sites=1, patience=0.2)


def test_the_check_of_a_site_compares_the_shapes(tmp_path):
    data = clients()["site-0"]
    for length, grade in ((6, "good"), (7, "bad")):
        folder = tmp_path / str(length)
        write_site(folder, "site-0", data, length=length)
        (folder / "federation.toml").write_text(tomli_w.dumps({"federation": {"input_shape": SHAPE, "classes": 2}}))
        findings = {found.what: found for found in check_site(folder)}
        assert findings["fits federation.toml"].state == grade
    assert "ids (7,), age (2,), mask (7,), expected ids (6,)" in findings["fits federation.toml"].about


def test_the_sites_of_a_rehearsal_pad_to_what_the_longest_of_them_needs(tmp_path):
    (tmp_path / "data").mkdir()
    for client, parts in clients().items():
        site = write_site(tmp_path / client, client, parts)
        (site.parent / "data.npz").rename(tmp_path / "data" / f"{client}.npz")
    names = tuple(clients())
    federation, length = deal(names, tmp_path / "data", lambda name: tmp_path / f"{name}.npz")
    assert length == max(len(row) for parts in clients().values() for x, _ in parts.values() for row in x["ids"])
    for name in names:
        data = read_data(SiteSettings(name, str(tmp_path / f"{name}.npz"), str(tmp_path), length=length))
        assert shape_of(data.x) == shape_of(federation.x)


def test_an_introduction_has_shapes_and_types_and_no_sample(tmp_path):
    file = write_site(tmp_path / "site", "site-0", clients()["site-0"], length=6)
    settings = SiteSettings("site-0", str(file.parent / "data.npz"), str(file.parent), length=6)
    info = Site(settings).introduce()
    assert '"ids": [6]' in info["inputs"] and '"mask": "uint8"' in info["inputs"] and len(info["inputs"]) < 200
