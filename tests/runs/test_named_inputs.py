"""A module with several inputs, and one that reads padded sequences: trained, personalized, exported, opened again."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import personafl as pf
from personafl.algorithms import ALGORITHMS
from personafl.errors import DataError, ModelError
from personafl.runs.export import export
from personafl.settings import Local

LOCAL = Local(lr=0.1, steps=4, batch_size=4)


class TextAndTable(nn.Module):
    """Words are embedded and averaged where they are real, and stand beside a few numbers."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(12, 5), nn.Linear(8, 3)

    def forward(self, ids, table, mask):
        real = mask.unsqueeze(-1).float()
        text = (self.words(ids) * real).sum(1) / real.sum(1)
        return self.head(torch.cat([text, table], 1))


class Reader(nn.Module):
    """A class for a text, by what was read up to its last word."""

    def __init__(self):
        super().__init__()
        self.words, self.read, self.head = nn.Embedding(12, 4), nn.GRU(4, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, x, mask):
        states, _ = self.read(self.words(x))
        last = (mask.long().sum(1) - 1).view(-1, 1, 1).expand(-1, 1, states.shape[-1])
        return self.head(states.gather(1, last).squeeze(1))


class Tagger(nn.Module):
    """A class for each word."""

    def __init__(self):
        super().__init__()
        self.words, self.read, self.head = nn.Embedding(12, 4), nn.GRU(4, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, ids, mask):
        return self.head(self.read(self.words(ids))[0])


def client(seed, samples=14):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 7, samples)
    x = {"ids": [rng.integers(0, 12, n) for n in lengths], "table": rng.normal(seed % 3, 1, (samples, 3))}
    return x, rng.integers(0, 3, samples)


def federation(length=None):
    return pf.Federation.from_clients({f"c{m}": client(m, 10 + m) for m in range(4)}, length=length)


def trained(fed, algorithm, engine="loop", module=TextAndTable, **settings):
    torch.manual_seed(0)
    made = ALGORITHMS[algorithm]() if isinstance(algorithm, str) else algorithm
    return pf.train(fed, module(), made, rounds=2, local=LOCAL, engine=engine, threads=1, progress=False, **settings)


def outputs(run, fed, name):
    return run.personal(name)(**fed.client(name)["test"][0])


@pytest.mark.parametrize("algorithm", ["fedavg", "ditto", "selffl", "fedamp"])
def test_the_stacked_engine_computes_what_the_loop_does(algorithm):
    fed = federation()
    loop, stacked = trained(fed, algorithm), trained(fed, algorithm, "stacked")
    for name in fed.ids:
        torch.testing.assert_close(outputs(stacked, fed, name), outputs(loop, fed, name), rtol=1e-4, atol=1e-5)
    assert loop.score.keys() == stacked.score.keys()
    assert np.allclose(list(loop.score.values()), list(stacked.score.values()), atol=1e-5)


def test_a_round_of_one_client_is_plain_torch():
    """The oracle: the same batches by hand, with torch's own optimizer."""
    x, y = client(0)
    fed = pf.Federation.from_clients({"a": {"train": (x, y)}})
    torch.manual_seed(0)
    module = TextAndTable()
    run = pf.train(
        fed, module, pf.FedAvg(), rounds=3, local=Local(lr=0.1, steps=1, batch_size=0), engine="loop", progress=False
    )
    torch.manual_seed(0)
    mine = TextAndTable()
    optimizer = torch.optim.SGD(mine.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(mine(**fed.x), fed.y).backward()
        optimizer.step()
    for name, value in run.global_model().state_dict().items():
        torch.testing.assert_close(value, mine.state_dict()[name])


@pytest.mark.parametrize("module", [TextAndTable, Reader])
def test_the_width_of_the_padding_changes_nothing(module):
    def words_only(length):
        data = {f"c{m}": (client(m)[0]["ids"], client(m)[1] % 2) for m in range(3)}
        return pf.Federation.from_clients(data, length=length)

    narrow, wide = (federation(), federation(9)) if module is TextAndTable else (words_only(None), words_only(9))
    first, second = trained(narrow, "ditto", module=module), trained(wide, "ditto", module=module)
    for name in narrow.ids:
        torch.testing.assert_close(outputs(second, wide, name), outputs(first, narrow, name), rtol=1e-4, atol=1e-5)


def tagged(length=None):
    texts = {f"c{m}": client(m)[0]["ids"] for m in range(3)}
    data = {name: ({"ids": x}, [(row + k) % 3 for k, row in enumerate(x)]) for name, x in texts.items()}
    return pf.Federation.from_clients(data, length=length)


def test_padded_labels_count_for_nothing():
    """The loss of each client, by hand, is the mean over the words that are real."""
    runs = {length: trained(tagged(length), "fedavg", module=Tagger) for length in (None, 9)}
    wide, narrow = runs[9].rounds()[-1], runs[None].rounds()[-1]
    scores = {key for key in narrow if key.endswith(("_loss", "_accuracy"))}
    assert scores and all(np.isclose(narrow[key], wide[key], atol=1e-5) for key in scores)
    fed, net, sums = tagged(), runs[None].global_model(), []
    for name in fed.ids:
        x, y = fed.client(name)["test"]
        values = nn.functional.cross_entropy(net(**x).transpose(1, 2), y, reduction="none", ignore_index=-100)
        sums.append((values.sum().item(), int((y >= 0).sum())))
    rows = runs[None].clients().to_pylist()
    for row, (loss, words) in zip(rows, sums, strict=True):
        assert row["global_loss"] == pytest.approx(loss / words, rel=1e-4)


def test_a_newcomer_brings_labels_of_each_word():
    run = trained(tagged(), "ditto", module=Tagger)
    rng = np.random.default_rng(5)
    ids = [rng.integers(0, 12, n) for n in (2, 4, 1, 3)]
    net = run.personalize({"ids": ids}, [row % 3 for row in ids])
    assert net(**run.features({"ids": ids})).shape == (4, 6, 3)


def test_run_toml_says_what_each_input_is_and_the_run_opens_again(tmp_path):
    fed = federation()
    run = trained(fed, "ditto", out=tmp_path / "run")
    again = pf.load_run(tmp_path / "run", module=TextAndTable())
    assert again.manifest["resolved"]["input_shape"] == {"ids": [6], "table": [3], "mask": [6]}
    assert again.manifest["resolved"]["input_dtype"] == {"ids": "int64", "table": "float32", "mask": "uint8"}
    assert torch.equal(outputs(again, fed, "c1"), outputs(run, fed, "c1"))


def test_exported_models_are_plain_torch_with_the_same_outputs(tmp_path):
    fed = federation()
    run = trained(fed.standardized(), "ditto", out=tmp_path / "run")
    weights, program = export(run, ["c2"], tmp_path / "out", ["safetensors", "torch"])
    plain = TextAndTable().eval()
    plain.load_state_dict(load_file(weights))
    exported = torch.export.load(program).module()
    x = fed.standardized().client("c2")["train"][0]
    torch.testing.assert_close(plain(**x), run.personal("c2")(**x))
    torch.testing.assert_close(exported(**x), run.personal("c2")(**x))
    card = json.loads((tmp_path / "out" / "c2.json").read_text())
    assert card["input"]["ids"] == {"shape": ["batch", 6], "dtype": "int64"}
    assert list(card["normalization"]["mean"]) == ["table"]


@pytest.mark.parametrize("algorithm", ["fedavg", "ditto", "selffl", "fedamp"])
def test_a_newcomer_brings_samples_of_any_length_up_to_that_of_the_training(algorithm):
    fed = federation()
    run = trained(fed, algorithm)
    x, y = client(9)
    by_hand = pf.Federation.from_clients({"new": {"train": (x, y)}}, length=6).x
    expected = run.personalize(by_hand, y)
    short = [row[:2] for row in x["ids"]]
    found = run.personalize(x, y)
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), expected.parameters(), strict=True))
    assert run.personalize({**x, "ids": short}, y)(**fed.client("c0")["test"][0]).shape[1] == 3


def test_a_newcomer_that_does_not_fit_is_told_why():
    run = trained(federation(), "fedavg")
    x, y = client(9)
    with pytest.raises(DataError, match=r"x.ids has a sample of length 8, and the model was trained with 6 at most"):
        run.personalize({**x, "ids": [np.ones(8, int)] * len(y)}, y)
    with pytest.raises(
        DataError, match=r"samples have shape ids \(6,\), mask \(6,\), the model wants ids \(6,\), table"
    ):
        run.personalize({"ids": x["ids"]}, y)


def test_a_module_that_lacks_an_input_is_told_so():
    with pytest.raises(ModelError, match=r"Linear fails on a batch of features ids \(2, 6\) int64, table \(2, 3\)"):
        trained(federation(), "fedavg", module=lambda: nn.Linear(3, 3))


def test_a_config_has_no_model_for_several_inputs_but_a_users(tmp_path):
    from personafl.config import parse
    from personafl.errors import ConfigError
    from personafl.jobs import train_config

    federation().save(tmp_path / "fed")
    tables = {"rounds": 1, "data": {"name": "files", "path": str(tmp_path / "fed")}}
    with pytest.raises(ConfigError, match=r"inputs ids \(6,\), table \(3,\), mask \(6,\), and no model is known"):
        train_config(parse(tables), tmp_path / "run")
    with pytest.raises(ModelError, match=r"model mlp takes one tensor, and this data has the inputs ids"):
        train_config(parse({**tables, "model": {"name": "mlp"}}), tmp_path / "run")
