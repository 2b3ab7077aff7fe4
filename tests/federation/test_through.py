"""Facts about features of a frozen backbone: computed once, equal to the module's, as good as the backbone."""

import numpy as np
import pytest
import torch
from torch import nn

import personafl as pf
from personafl.errors import ConfigError, DataError, ModelError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PERSONAFL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Counting(nn.Module):
    """A backbone that counts the samples that it sees."""

    def __init__(self, seed=0, width=5):
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Sequential(nn.Linear(3, width), nn.Dropout(0.5), nn.Tanh())
        self.seen = 0

    def forward(self, x):
        self.seen += len(x)
        return self.body(x)


def clients(count=3, samples=20, shift=0.0):
    draws = np.random.default_rng(7)
    return {
        f"c{k}": ((draws.normal(size=(samples, 3)) + shift).astype("float32"), draws.integers(0, 2, samples))
        for k in range(count)
    }


@pytest.fixture
def fed():
    return pf.Federation.from_clients(clients())


def test_features_are_those_of_the_module_without_dropout(fed):
    backbone = Counting()
    found = fed.through(backbone, batch_size=7, progress=False)
    with torch.no_grad():
        expected = torch.tanh(fed.x @ backbone.body[0].weight.T + backbone.body[0].bias)
    torch.testing.assert_close(found.x, expected)
    assert found.backbone.module is backbone and found.ids == fed.ids and torch.equal(found.y, fed.y)


def test_each_sample_is_computed_once_and_mapped_from_the_disk(fed, cache):
    first, second = Counting(), Counting()
    one = fed.through(first, batch_size=8, progress=False)
    assert first.seen == len(fed.y)
    again = fed.through(second, batch_size=16, progress=False)
    assert second.seen == 8  # a few, to see that they are the same
    assert torch.equal(one.x, again.x) and one.fingerprint == again.fingerprint
    [file] = cache.glob("prepared/features-*/x.npy")
    assert np.array_equal(np.load(file), one.x.numpy())


def test_another_split_of_the_same_samples_finds_their_features(fed):
    one = fed.through(Counting(), batch_size=8, progress=False)
    other = pf.Federation.from_clients(clients(), seed=1)
    assert not torch.equal(other.x, fed.x)
    backbone = Counting()
    found = other.through(backbone, batch_size=8, progress=False)
    assert backbone.seen == 8
    assert torch.equal(found.x, other.through(Counting(), batch_size=8, cache=False).x)  # to the last bit
    assert found.fingerprint != one.fingerprint
    backbone = Counting()
    again = other.through(backbone, progress=False)
    assert backbone.seen == 8 and torch.equal(again.x, found.x)


def test_only_samples_that_were_never_seen_are_computed(fed, cache):
    fed.through(Counting(), progress=False)
    some, draws = clients(2, samples=12), np.random.default_rng(0)
    new = draws.normal(size=(5, 3)).astype("float32")
    twice = np.concatenate([new, new, clients()["c1"][0][:4]])
    backbone = Counting()
    mixed = pf.Federation.from_clients({"a": (clients()["c0"][0][:12], some["c0"][1]), "b": (twice, np.arange(14) % 2)})
    found = mixed.through(backbone, progress=False)
    assert backbone.seen == 8 + 5  # a sample that is there twice is computed once
    torch.testing.assert_close(found.x, mixed.through(Counting(), cache=False).x)
    assert len(list(cache.glob("prepared/features-*/x.npy"))) == 2


def test_other_weights_other_data_and_other_code_are_computed_again(fed):
    one = fed.through(Counting(), progress=False)
    other = fed.through(Counting(seed=1), progress=False)
    assert not torch.allclose(one.x, other.x) and one.fingerprint != other.fingerprint
    moved = pf.Federation.from_clients(clients(shift=1.0)).through(Counting(), progress=False)
    assert not torch.allclose(one.x, moved.x)
    changed = Counting()
    changed.forward = lambda x: 2 * changed.body(x)  # the same weights and the same structure
    torch.testing.assert_close(fed.through(changed, progress=False).x, 2 * one.x)


def test_a_cache_that_cannot_be_written_only_costs_time(fed, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PERSONAFL_CACHE", str(tmp_path / "file"))
    expected = fed.through(Counting(), cache=False).x
    assert torch.equal(fed.through(Counting(), progress=False).x, expected)


@pytest.mark.parametrize("algorithm", ["fedavg", "ditto"])
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_head_on_features_equals_the_head_on_the_frozen_backbone(fed, algorithm, engine):
    torch.manual_seed(3)
    head = nn.Linear(5, 2)
    backbone = Counting().eval()
    whole = nn.Sequential(backbone, head)
    for parameter in backbone.parameters():
        parameter.requires_grad_(False)
    settings = dict(rounds=3, local=pf.Local(lr=0.3, steps=4), engine=engine, progress=False, seed=5)
    inside = pf.train(fed, whole, algorithm, **settings)
    outside = pf.train(fed.through(backbone, progress=False), head, algorithm, **settings)
    for client in fed.ids:
        expected, found = inside.personal(client)[1], outside.personal(client).head
        torch.testing.assert_close(found.weight, expected.weight)
        torch.testing.assert_close(found.bias, expected.bias)
        torch.testing.assert_close(outside.personal(client)(fed.x), inside.personal(client)(fed.x))


def test_standardized_before_and_after_is_part_of_what_runs_hand_out(fed):
    raw, backbone = clients(), Counting()
    run = pf.train(
        fed.standardized().through(backbone, progress=False).standardized(), nn.Linear(5, 2), rounds=2, progress=False
    )
    x = torch.from_numpy(raw["c1"][0])
    z = (x - fed.standardized().constants["mean"]) / fed.standardized().constants["std"]
    with torch.no_grad():
        features = torch.tanh(backbone.body[0](z))
        net = run.personal("c1")
        expected = net.head((features - net.mean) / net.std)
        torch.testing.assert_close(net(run.features(raw["c1"][0])), expected)
    training = torch.cat([run_x for run_x, _ in (fed.standardized().client(c)["train"] for c in fed.ids)])
    with torch.no_grad():
        torch.testing.assert_close(net.mean, torch.tanh(backbone.body[0](training)).mean(0), atol=1e-5, rtol=1e-4)


def test_what_goes_wrong_is_one_line(fed):
    with pytest.raises(ModelError, match=r"backbone Linear fails on samples \(8?\d*, 3\) float32"):
        fed.through(nn.Linear(4, 2), progress=False)
    with pytest.raises(ModelError, match="it must give a vector or an array of features for each"):
        fed.through(nn.Flatten(0), progress=False)
    with pytest.raises(ConfigError, match="features of backbone Counting already"):
        fed.through(Counting(), progress=False).through(Counting(), progress=False)
    with pytest.raises(ModelError, match="the backbone is a str"):
        fed.through("minilm")
    with pytest.raises(ConfigError, match="batch_size = 0"):
        fed.through(Counting(), batch_size=0)
    broken = Counting()
    with torch.no_grad():
        broken.body[0].bias[0] = torch.nan
    with pytest.raises(DataError, match="NaN or infinite features for a sample of client 'c0'"):
        fed.through(broken, progress=False)


def test_saved_features_are_read_back_as_such(fed, tmp_path):
    features = fed.through(Counting(), progress=False)
    features.save(tmp_path / "saved")
    found = pf.Federation.load(tmp_path / "saved", verify=True)
    assert torch.equal(found.x, features.x) and found.backbone is None
    assert any(features.backbone.sha256 in note for note in found.notes)


def test_methods_are_compared_on_features(fed):
    found = pf.compare(
        fed.through(Counting(), progress=False), nn.Linear(5, 2), ["fedavg", "ditto"], seeds=1, rounds=1, progress=False
    )
    assert {run.manifest["backbone"]["name"] for run in found.runs} == {"Counting"}
    assert found.runs[0].personal("c1")(fed.x).shape == (60, 2)
