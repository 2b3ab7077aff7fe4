"""A real federation of three sites with a pretrained model on its disks: features of it, and adapters in it."""

import numpy as np
import pytest
import tomli_w
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr", reason="Flower is not installed")

from personafl import Federation
from personafl.backends.deploy import Deployment, init_federation
from personafl.config import parse
from personafl.files import checksum
from personafl.jobs import train_config
from tests.pretrained.bert import write_bert

pytestmark = pytest.mark.slow
SITES = ("north", "south", "west")
SETTINGS = {"seed": 3, "rounds": 2, "eval_every": 0, "local": {"steps": 3, "batch_size": 8, "lr": 0.1}}


@pytest.fixture
def data(tmp_path):
    """A file of tokens for each site, and the federation that they make."""
    draws, made = np.random.default_rng(0), {}
    (tmp_path / "data").mkdir()
    for site in SITES:
        pairs = {}
        for split, count in (("train", 24), ("test", 6)):
            ids = draws.integers(4, 8, (count, 6))
            pairs[split] = (
                {"input_ids": ids, "attention_mask": np.ones_like(ids, np.uint8)},
                (ids[:, 1] > 5).astype(int),
            )
        arrays = {f"x_{split}.{name}": value for split, (x, _) in pairs.items() for name, value in x.items()}
        np.savez(tmp_path / "data" / f"{site}.npz", **arrays, **{f"y_{split}": y for split, (_, y) in pairs.items()})
        made[site] = pairs
    return Federation.from_clients(made, classes=2)


@pytest.mark.parametrize("kind", ["features", "adapters"])
def test_sites_end_with_what_the_loop_gives_them(tmp_path, data, monkeypatch, kind):
    pytest.importorskip("peft", reason="needs personafl[huggingface]")
    monkeypatch.setenv("PERSONAFL_CACHE", str(tmp_path / "cache"))
    weights = write_bert(tmp_path / "weights")
    pinned = {"path": str(weights), "sha256": checksum(weights / "model.safetensors")}
    what = {"backbone": pinned} if kind == "features" else {"model": {"name": "lora", "rank": 2, **pinned}}
    tables = {**SETTINGS, "algorithm": "fedavg", **what}
    shape = [8] if kind == "features" else {"input_ids": [6], "attention_mask": [6]}
    joint = {"clients": list(SITES), "input_shape": shape, "classes": 2, "max_weight": 1.0}
    init_federation(tmp_path / "federation", SITES)
    (tmp_path / "federation" / "federation.toml").write_text(tomli_w.dumps({**tables, "federation": joint}))
    with Deployment(tmp_path / "federation", data=tmp_path / "data", proxy=False) as deployment:
        deployment.start()
        deployment.start_run()
        deployment.wait(seconds=600)
        assert all(not record.get("dropped") for record in deployment.rounds()), deployment.rounds()
        found = {site: load_file(deployment.model(site)) for site in SITES}

    config = parse({**tables, "engine": {"name": "loop", "threads": 1}})
    if kind == "features":
        data = data.through(config.backbone.load(), progress=False)
    loop = train_config(config, tmp_path / "loop", federation=data)
    expected = load_file(loop.path / "models" / "personal.safetensors")
    for k, site in enumerate(data.ids):
        assert found[site].keys() == expected.keys()
        for name, value in found[site].items():
            torch.testing.assert_close(value, expected[name][k], rtol=1e-5, atol=1e-6)
    assert sum(value.nbytes for value in found["north"].values()) < (weights / "model.safetensors").stat().st_size / 2
