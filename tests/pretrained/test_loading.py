"""Facts about backbones from files: their features, their hashes, and what is refused."""

import hashlib
import json
import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import personafl as pf
from personafl.config import parse
from personafl.errors import ConfigError, DataError, ModelError
from personafl.pretrained import Backbone, load, tokenized
from tests.pretrained.bert import write_bert


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    pytest.importorskip("transformers", reason="needs personafl[huggingface]")
    return write_bert(tmp_path_factory.mktemp("weights") / "tiny-bert")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PERSONAFL_CACHE", str(tmp_path / "cache"))


def sha256(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


def hidden_states(folder, ids, mask):
    from transformers import BertModel

    with torch.no_grad():
        return BertModel.from_pretrained(folder).eval()(input_ids=ids, attention_mask=mask).last_hidden_state


def test_a_model_of_transformers_is_pooled_over_what_is_real(bert):
    ids = torch.tensor([[2, 4, 6, 3, 0, 0], [2, 5, 5, 5, 7, 3]])
    mask = (ids > 0).to(torch.uint8)
    states = hidden_states(bert, ids, mask.long())
    means = torch.stack([states[0, :4].mean(0), states[1].mean(0)])
    torch.testing.assert_close(load(bert)(input_ids=ids, attention_mask=mask), means)
    torch.testing.assert_close(load(bert)(x=ids, mask=mask), means)
    torch.testing.assert_close(load(bert, pooling="cls")(input_ids=ids, attention_mask=mask), states[:, 0])
    torch.testing.assert_close(load(bert, pooling="none")(input_ids=ids, attention_mask=mask), states)
    unit = load(bert, normalize=True)(input_ids=ids, attention_mask=mask)
    torch.testing.assert_close(unit, means / means.norm(dim=1, keepdim=True))


def test_the_hash_is_that_of_the_file_of_weights(bert):
    expected = sha256(bert / "model.safetensors")
    assert load(bert).sha256 == expected and load(bert, sha256=expected).name == "tiny-bert"
    with pytest.raises(ConfigError, match=f"has the SHA-256 {expected}, and {'0' * 64} is wanted"):
        load(bert, sha256="0" * 64)


def test_texts_become_tokens_once_and_newcomers_bring_texts(bert, tmp_path):
    backbone = load(bert)
    texts = {f"c{k}": (["good day", "bad night night day"] * 5, [1, 0] * 5) for k in range(2)}
    made = tokenized(texts, backbone)
    assert made["c0"][0]["input_ids"][:2].tolist() == [[2, 4, 6, 3, 0, 0], [2, 5, 7, 7, 6, 3]]
    assert made["c1"][0]["attention_mask"][:2].tolist() == [[1, 1, 1, 1, 0, 0], [1] * 6]
    fed = pf.Federation.from_clients(made).through(backbone, progress=False)
    run = pf.train(fed, nn.Linear(8, 2), rounds=2, progress=False, out=tmp_path / "run")
    net = run.personalize(["good night", "bad day"], [1, 0])
    assert net(**run.features(["day"])).shape == (1, 2)
    again = pf.load_run(tmp_path / "run", module=nn.Linear(8, 2))  # the weights are where they were
    a, b = again.personal("c0")(**again.features(["day"])), run.personal("c0")(**run.features(["day"]))
    torch.testing.assert_close(a, b)
    with pytest.raises(ConfigError, match="backbone Linear has no tokenizer"):
        Backbone(nn.Linear(1, 1)).tokenize(["day"])


def test_a_column_of_texts_becomes_tokens(bert, tmp_path):
    rows = {
        "who": ["ann", "ann", "bob", "bob"] * 3,
        "said": ["good day", "bad night night day"] * 6,
        "mood": [1, 0] * 6,
    }
    file = tmp_path / "said.csv"
    lines = ["who,said,mood", *(",".join(map(str, row)) for row in zip(*rows.values(), strict=True))]
    file.write_text("\n".join(lines))
    fed = pf.Federation.from_table(rows, client="who", label="mood", text="said", tokenizer=load(bert))
    long = fed.y == 0
    assert fed.x["input_ids"][long][0].tolist() == [2, 5, 7, 7, 6, 3]
    assert fed.x["input_ids"][~long][0].tolist() == [2, 4, 6, 3, 0, 0]
    assert fed.x["attention_mask"][~long][0].tolist() == [1, 1, 1, 1, 0, 0]
    data = {"name": "files", "path": str(file), "client": "who", "label": "mood", "text": "said"}
    config = parse({"data": data, "backbone": {"path": str(bert), "batch_size": 5}})
    found = config.federation()
    states = hidden_states(bert, fed.x["input_ids"], fed.x["attention_mask"].long())
    real = fed.x["attention_mask"].unsqueeze(-1)
    torch.testing.assert_close(found.x, (states * real).sum(1) / real.sum(1))
    cut = pf.Federation.from_table(rows, client="who", label="mood", text="said", tokenizer=load(bert), length=4)
    assert cut.x["input_ids"].shape == (12, 4)
    with pytest.raises(DataError, match=r"has no column 'sayd' \(text\)"):
        pf.Federation.from_table(rows, client="who", label="mood", text="sayd", tokenizer=load(bert))
    with pytest.raises(DataError, match="column 'said' has no value in row 3"):
        gap = rows | {"said": ["a", "b", None] + ["c"] * 9}
        pf.Federation.from_table(gap, client="who", label="mood", text="said", tokenizer=load(bert))
    with pytest.raises(ConfigError, match="data files: tokenizer is missing"):
        parse({"data": data}).federation()


def test_a_folder_that_cannot_be_read_is_one_line(bert, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"has no \.safetensors: write them with model\.save_pretrained"):
        load(tmp_path / "empty")
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.safetensors").write_bytes((bert / "model.safetensors").read_bytes())
    with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
        load(other)
    (other / "config.json").write_text(json.dumps({"word_embedding_dimension": 8}))
    with pytest.raises(ConfigError, match="has no model_type"):
        load(other)
    hub = pytest.importorskip("huggingface_hub")

    def offline(*args, **settings):
        assert not any(name.endswith((".bin", ".py")) for name in settings["allow_patterns"])
        raise OSError("no network")

    monkeypatch.setattr(hub, "snapshot_download", offline)
    with pytest.raises(ConfigError, match="no such file or folder here, and the Hugging Face hub does not give it: "):
        load("somebody/something")


def test_code_in_a_folder_is_not_run(bert, tmp_path):
    folder = tmp_path / "stranger"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes((bert / "model.safetensors").read_bytes())
    marker = tmp_path / "was-run"
    (folder / "own.py").write_text(f"open({str(marker)!r}, 'w')\n")
    described = json.loads((bert / "config.json").read_text())
    described |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModel": "own.Model"}}
    (folder / "config.json").write_text(json.dumps(described))
    with pytest.raises(ModelError, match="transformers cannot read the model in"):
        load(folder)
    assert not marker.exists()


@pytest.mark.parametrize("fixed", [False, True])
def test_an_onnx_file_gives_what_it_says(tmp_path, fixed):
    onnx = pytest.importorskip("onnx", reason="needs personafl[onnx]")
    pytest.importorskip("onnxruntime", reason="needs personafl[onnx]")
    from onnx import TensorProto, helper, numpy_helper

    weight = np.arange(6, dtype=np.float32).reshape(3, 2)
    rows = 4 if fixed else "batch"
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["product"]), helper.make_node("Relu", ["product"], ["y"])],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 2])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "tiny.onnx")
    backbone = load(tmp_path / "tiny.onnx")
    assert backbone.sha256 == sha256(tmp_path / "tiny.onnx") and backbone.name == "tiny"
    x = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)
    expected = np.maximum(x @ weight, 0)
    np.testing.assert_allclose(backbone(torch.from_numpy(x)).numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(pickle.loads(pickle.dumps(backbone))(torch.from_numpy(x)).numpy(), expected, rtol=1e-6)
    fed = pf.Federation.from_clients({"ann": (x, [0, 1] * 5)}).through(backbone, progress=False)
    assert fed.x.shape == (10, 2)
    with pytest.raises(ModelError, match="backbone tiny fails on samples"):
        backbone.features(torch.zeros(2, 5))
    (tmp_path / "broken.onnx").write_bytes(b"no")
    with pytest.raises(ModelError, match="onnxruntime cannot read"):
        load(tmp_path / "broken.onnx")


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_a_state_dict_goes_into_its_module(tmp_path, suffix):
    trained, file = nn.Linear(3, 2), tmp_path / f"weights{suffix}"
    state = trained.state_dict()
    save_file(state, file) if suffix == ".safetensors" else torch.save(state, file)
    x = torch.randn(4, 3)
    torch.testing.assert_close(load(file, module=nn.Linear(3, 2))(x), trained(x).detach())
    with pytest.raises(ModelError, match=r"does not belong to Linear: .*size mismatch"):
        load(file, module=nn.Linear(3, 5))
    with pytest.raises(ConfigError, match="holds weights and no model: give what they belong to"):
        load(file, kind="module")


class Mischief:
    def __reduce__(self):
        return eval, ("1/0",)


def test_nothing_pickled_is_run(tmp_path):
    torch.save({"weight": Mischief()}, tmp_path / "bad.pt")
    with pytest.raises(ConfigError, match="is not a state dict that can be read with weights_only"):
        load(tmp_path / "bad.pt", module=nn.Linear(1, 1))
    with pytest.raises(ConfigError, match="there is no file"):
        load(tmp_path / "gone.pt", module=nn.Linear(1, 1))


def test_bad_settings_are_one_line():
    for table, said in (
        ({}, "backbone.path = None"),
        ({"path": "w", "batch_size": 0}, "backbone.batch_size = 0"),
        ({"path": "w", "sha256": "abc"}, "backbone.sha256 = 'abc'"),
        ({"path": "w", "pooling": "max"}, "backbone.pooling"),
        ({"paht": "w"}, "did you mean"),
    ):
        with pytest.raises(ConfigError, match=said):
            parse({"backbone": table})
    with pytest.raises(ConfigError, match=r"backbone\.path = 'no/where': there is no such file or folder"):
        parse({"backbone": {"path": "no/where"}}).backbone.load()
