"""`[model] name = "lora"`: adapters in a pretrained model, from a config and at the sites of a federation."""

import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import personafl as pf
from personafl.config import parse
from personafl.errors import ConfigError, ModelError, RunError
from personafl.files import checksum
from personafl.jobs import train_config
from personafl.runs.run import load_run
from tests.pretrained.bert import write_bert

for package in ("transformers", "peft"):
    pytest.importorskip(package, reason="needs personafl[huggingface]")

LOCAL = {"steps": 2, "batch_size": 4, "lr": 0.1}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The same shape twice with other weights, and another shape."""
    place = tmp_path_factory.mktemp("weights")
    return {
        name: write_bert(place / name, seed, width) for name, seed, width in (("a", 0, 8), ("b", 1, 8), ("c", 0, 12))
    }


@pytest.fixture(scope="module")
def data():
    draws, made = np.random.default_rng(0), {}
    for k in range(3):
        ids = draws.integers(4, 8, (20, 6))
        mask = np.ones_like(ids, np.uint8)
        mask[::3, 4:] = 0
        made[f"site-{k}"] = {"input_ids": ids, "attention_mask": mask}, (ids[:, 1] > 5 - k % 2).astype(np.int64)
    return pf.Federation.from_clients(made, classes=2)


def config(folder, **more):
    model = {"name": "lora", "path": str(folder), "rank": 2, **more.pop("model", {})}
    return parse(
        {"seed": 3, "rounds": 2, "eval_every": 0, "local": LOCAL, "algorithm": "ditto", "model": model, **more}
    )


@pytest.fixture(scope="module")
def run(folders, data, tmp_path_factory):
    return train_config(
        config(folders["a"], engine="stacked"), tmp_path_factory.mktemp("runs") / "run", federation=data
    )


def test_engines_agree_and_folders_hold_the_adapter_alone(run, folders, data, tmp_path):
    loop = train_config(config(folders["a"], engine="loop"), tmp_path / "loop", federation=data)
    again = load_run(run.path)
    for client in data.ids:
        ours, theirs = again.personal(client).state_dict(), loop.personal(client).state_dict()
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    kept = load_file(run.path / "models" / "personal.safetensors")
    assert {name.rpartition(".")[0].rpartition(".")[2] for name in kept} == {"default", "head"}, "LoRA and the head"
    assert all("lora_" in name or name.startswith("head.") for name in kept)
    assert run.manifest["resolved"]["parameters"] == 2 * 2 * (8 + 8) * 1 + 2 * 8 + 2
    learned = again.personal("site-1").backbone.module.model.encoder.layer[0].attention.self.query
    assert learned.lora_B["default"].weight.abs().max() > 0
    newcomer = again.personalize(*data.client("site-2")["train"])
    assert newcomer(**data.client("site-2")["test"][0]).shape[1] == 2


def test_initial_weights_follow_from_the_seed_and_not_from_the_folder(folders):
    from personafl.models import initialize

    first, other, seeded = (
        initialize(config(folders[name]).model, {"input_ids": (6,)}, 2, seed)
        for name, seed in (("a", 0), ("b", 0), ("a", 1))
    )
    for name, value in first.named_parameters():
        if value.requires_grad:
            assert torch.equal(value, other.get_parameter(name))
    assert not torch.equal(first.head.weight, seeded.head.weight)
    assert not any(module.training for module in first.backbone.modules()), "no dropout in what is frozen"


def test_texts_are_read_by_the_models_own_tokenizer(folders, tmp_path):
    rows = [f"{'ab'[k % 2]},{k % 3 % 2},{'good day' if k % 3 % 2 else 'bad night night'}" for k in range(24)]
    (tmp_path / "t.csv").write_text("\n".join(["user,mood,text", *rows]))
    source = {
        "name": "files",
        "path": str(tmp_path / "t.csv"),
        "client": "user",
        "label": "mood",
        "text": "text",
        "length": 6,
    }
    found = config(folders["a"], data=source).federation()
    assert set(found.x) == {"input_ids", "attention_mask"} and found.x["input_ids"].shape[1] == 6


@pytest.mark.parametrize(
    ("model", "kind", "line"),
    [
        ({"path": "nowhere"}, ConfigError, "model.path = 'nowhere': there is no such folder"),
        ({"path": ""}, ConfigError, "model.path is missing"),
        ({"sha256": "0" * 64}, ConfigError, f"and {'0' * 64} is wanted: these are other weights"),
        ({"targets": ["wq"]}, ModelError, "which has the linear layers dense, key, query, value"),
        ({"rank": 0}, ConfigError, "model.rank = 0: must be from 1 to 1024"),
    ],
)
def test_what_goes_wrong_is_one_line(folders, data, tmp_path, model, kind, line):
    with pytest.raises(kind) as caught:
        train_config(config(folders["a"], model=model), tmp_path / "run", federation=data)
    assert line in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists(), "nothing is begun"


def test_features_and_adapters_are_not_both(folders):
    with pytest.raises(
        ConfigError, match=r"\[backbone\] makes features, and model lora has its pretrained model inside"
    ):
        config(folders["a"], backbone={"path": str(folders["a"])})


def test_an_adapter_opens_with_its_own_backbone_alone(run, folders, data, tmp_path):
    expected = run.personal("site-0").head.weight
    with pytest.raises(RunError, match=r"another backbone than the models of .*differs"):
        load_run(run.path, backbone=folders["b"])
    with pytest.raises(RunError, match=r"of shape \(2, 12\), the models of .* \(2, 8\)"):
        load_run(run.path, backbone=folders["c"])
    elsewhere = shutil.copytree(folders["a"], tmp_path / "moved")
    assert torch.equal(load_run(run.path, backbone=elsewhere).personal("site-0").head.weight, expected), (
        "nothing is lost"
    )
    text = (run.path / "run.toml").read_text()
    gone = shutil.copytree(run.path, tmp_path / "gone")
    (gone / "run.toml").write_text(text.replace(str(folders["a"]), "/nowhere"))
    with pytest.raises(RunError, match=r"there is no such folder.*--backbone PATH"):
        load_run(gone).personal("site-0")
    assert load_run(gone).clients().equals(run.clients()), "tables need no weights"


def test_a_run_goes_on_with_the_same_backbone_alone(folders, data, tmp_path):
    weights = shutil.copytree(folders["a"], tmp_path / "weights")
    train_config(config(weights), tmp_path / "run", federation=data)
    before = (tmp_path / "run" / "models" / "personal.safetensors").read_bytes()
    shutil.copyfile(folders["b"] / "model.safetensors", weights / "model.safetensors")
    with pytest.raises(RunError, match="frozen") as caught:
        train_config(config(weights), tmp_path / "run", resume=True, federation=data)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "run" / "models" / "personal.safetensors").read_bytes() == before


def test_sites_train_adapters_to_the_weights_on_their_own_disks(folders, data, tmp_path):
    pytest.importorskip("flwr", reason="Flower is not installed")
    from tests.backends.flower.grid import MemoryGrid
    from tests.backends.flower.problem import flower, server_state, site_model

    own = shutil.copytree(folders["a"], tmp_path / "at the sites")
    table = {"name": "lora", "path": str(folders["a"]), "sha256": checksum(own / "model.safetensors"), "rank": 2}
    shape = {"input_ids": [6], "attention_mask": [6]}
    settings = {"model": table, "rounds": 2, "local": LOCAL, "input_shape": shape, "max_weight": 1.0}
    grid = MemoryGrid(sites(tmp_path / "sites", data, weights=str(own)))
    ours = flower(tmp_path / "flower", grid, "ditto", **settings)
    loop = train_config(config(folders["a"], engine="loop", checkpoint_every=1), tmp_path / "loop", federation=data)
    expected = server_state(loop)
    for name, value in server_state(ours).items():
        if name.startswith("server."):
            torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)
    for client in data.ids:
        kept = site_model(tmp_path / "sites" / client / "site.toml")
        torch.testing.assert_close(
            kept["head.weight"], loop.personal(client).head.weight.detach(), rtol=1e-5, atol=1e-6
        )
        assert all("lora_" in name or name.startswith("head.") for name in kept)
    heaviest = max(len(bytes_) for _, _, bytes_ in grid.left)
    assert heaviest < (own / "model.safetensors").stat().st_size, "adapters travel, and no weights"
    assert load_run(ours.path).global_model()(**data.client("site-0")["test"][0]).shape[1] == 2

    refusals = {
        "b": (folders["b"], f"{table['sha256']} is wanted"),
        "none": (None, "has no weights for this run's adapters"),
    }
    for name, (weights, line) in refusals.items():
        more = {} if weights is None else {"weights": str(weights)}
        run = flower(tmp_path / name, MemoryGrid(sites(tmp_path / f"sites-{name}", data, **more)), "ditto", **settings)
        assert all(line in str(record["dropped"]) for record in run.rounds()), run.rounds()[0]["dropped"]
    with pytest.raises(ConfigError, match=r"model\.sha256 is missing"):
        flower(tmp_path / "unpinned", grid, "ditto", **{**settings, "model": {"name": "lora", "path": str(own)}})


def sites(folder, data, **more):
    """Sites whose samples have two inputs."""
    import tomli_w

    from tests.backends.flower.grid import Node

    made = {}
    for k, client in enumerate(data.ids):
        place = folder / client
        place.mkdir(parents=True)
        arrays = {}
        for split, (x, y) in data.client(client).items():
            arrays |= {f"x_{split}.{name}": value.numpy() for name, value in x.items()} | {f"y_{split}": y.numpy()}
        np.savez(place / "data.npz", **arrays)
        table = {"id": client, "data": "data.npz", "folder": ".", "least_batch_size": 1, "least_samples": 1, **more}
        (place / "site.toml").write_text(tomli_w.dumps(table))
        made[1000 + k] = Node(place / "site.toml")
    return made
