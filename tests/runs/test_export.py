"""Exported models give the predictions of the run that they come from."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import personafl as pf
from personafl.config import parse
from personafl.errors import ConfigError, DataError, RunError
from personafl.jobs import train_config
from personafl.models import MLP, initialize
from personafl.runs.export import export, file_name

SETTINGS = {
    "rounds": 2,
    "partition": {"name": "iid", "clients": 3},
    "model": {"name": "mlp", "hidden": [8]},
    "algorithm": "ditto",
    "engine": "loop",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train_config(parse(SETTINGS), tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def x():
    return torch.from_numpy(np.random.default_rng(0).random((5, 64), np.float32))


def test_the_weights_go_back_into_the_model(run, x, tmp_path):
    (file,) = export(run, ["client-1"], tmp_path)
    module = initialize(MLP(hidden=(8,)), (64,), 10, seed=99).eval()
    module.load_state_dict(load_file(file))
    assert torch.equal(module(x), run.personal("client-1")(x))


def test_the_program_runs_without_the_models_code_for_any_batch(run, x, tmp_path):
    (file,) = export(run, ["client-2"], tmp_path, ["torch"])
    program = torch.export.load(file).module()
    for rows in (x, x[:1], x[:2]):
        torch.testing.assert_close(program(rows), run.personal("client-2")(rows))


def test_onnx_gives_the_same_predictions(run, x, tmp_path):
    pytest.importorskip("onnxscript", reason="ONNX export needs personafl[onnx]")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    (file,) = export(run, ["client-0"], tmp_path, ["onnx"])
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    for rows in (x, x[:1]):
        (outputs,) = session.run(None, {"x": rows.numpy()})
        torch.testing.assert_close(torch.from_numpy(outputs), run.personal("client-0")(rows), rtol=1e-4, atol=1e-5)


def test_the_card_says_what_the_model_is(run, tmp_path):
    export(run, ["client-1"], tmp_path, ["safetensors"])
    card = json.loads((tmp_path / "client-1.json").read_text())
    assert card["client"] == "client-1" and card["files"] == {"safetensors": "client-1.safetensors"}
    assert card["model"]["name"] == "mlp" and card["parameters"] == 64 * 8 + 8 + 8 * 10 + 10
    assert card["input"] == {"shape": ["batch", 64], "dtype": "float32"} and card["classes"] == list(range(10))
    assert card["training"]["algorithm"]["name"] == "ditto" and card["training"]["rounds"] == 2
    row = run.clients().to_pylist()[1]
    assert card["measured"]["personal_correct"] == row["personal_correct"]


def test_nothing_is_overwritten_and_nothing_half_done(run, tmp_path):
    export(run, ["client-1"], tmp_path)
    before = (tmp_path / "client-1.safetensors").read_bytes()
    with pytest.raises(RunError, match="exists already"):
        export(run, ["client-0", "client-1"], tmp_path)
    assert (tmp_path / "client-1.safetensors").read_bytes() == before
    assert not (tmp_path / "client-0.json").exists()
    with pytest.raises(DataError, match="no client 'nobody'"):
        export(run, ["client-0", "nobody"], tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(ConfigError, match="'pickle' is unknown"):
        export(run, ["client-0"], tmp_path / "new", ["pickle"])


@pytest.mark.parametrize("client", ["../../etc/passwd", ".hidden", "a/b", "x\0y", "ü", "con:1", "..", "."])
def test_no_clients_id_leaves_the_folder(client, tmp_path):
    name = file_name(client)
    assert "/" not in name and "\0" not in name and not name.startswith(".")
    assert (tmp_path / name).resolve().parent == tmp_path.resolve()


def test_ids_that_look_like_paths_work_end_to_end(tmp_path):
    rng = np.random.default_rng(0)
    data = {name: (rng.normal(size=(9, 4)), rng.integers(0, 2, 9)) for name in ("../up", "a/b")}
    fed = pf.Federation.from_clients(data)
    run = pf.train(fed, torch.nn.Linear(4, 2), rounds=1, progress=False)
    files = export(run, list(data), tmp_path / "out")
    assert {file.parent for file in files} == {tmp_path / "out"}
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


def test_the_card_of_standardized_data_has_the_numbers_to_standardize_with(tmp_path):
    x = np.array([[1.0, 10.0], [3.0, 10.0], [1.0, 10.0], [3.0, 10.0]])
    fed = pf.Federation.from_clients(
        {"ann": (x, [0, 1, 0, 1])}, splits=(1, 0, 0), class_names=("no", "yes")
    ).standardized()
    run = pf.train(fed, torch.nn.Linear(2, 2), rounds=1, progress=False, engine="loop")
    export(run, ["ann"], tmp_path)
    card = json.loads((tmp_path / "ann.json").read_text())
    assert card["normalization"] == {"how": "(x - mean) / std", "mean": [2.0, 10.0], "std": [1.0, 1.0]}
    assert card["classes"] == ["no", "yes"]


def test_a_program_of_words_takes_whole_numbers(tmp_path):
    rng = np.random.default_rng(0)
    fed = pf.Federation.from_clients({"ann": (rng.integers(0, 7, (12, 3)), rng.integers(0, 2, 12))})
    model = torch.nn.Sequential(torch.nn.Embedding(7, 4), torch.nn.Flatten(), torch.nn.Linear(12, 2))
    run = pf.train(fed, model, rounds=1, progress=False, engine="loop")
    (file,) = export(run, ["ann"], tmp_path, ["torch"])
    x = fed.client("ann")["train"][0]
    torch.testing.assert_close(torch.export.load(file).module()(x), run.personal("ann")(x))
