"""Privacy of samples: noisy steps on every engine, batches that are drawn independently, and the ε that follows."""

import numpy as np
import pytest
import torch
from torch import nn

from personafl.algorithms import ALGORITHMS, Ditto, FedAvg, PFedMe
from personafl.config import parse
from personafl.engines.batches import draw_independently
from personafl.errors import ConfigError
from personafl.jobs import train, train_config
from personafl.report import report_data
from personafl.runs.run import load
from personafl.training.accounting import sample_epsilon
from personafl.training.privacy import Privacy
from personafl.training.sample_account import SampleAccount
from tests.training.test_privacy import SETTINGS, answers, clients_of_three_layers, files

BY_SAMPLE = {"clip": 0.5, "noise": 1.0, "delta": 1e-4, "unit": "sample"}
JOB = {**SETTINGS, "privacy": BY_SAMPLE, "local": {"lr": 0.1, "steps": 3, "batch_size": 16}}
REFUSED = {
    "fedproto", "fedpac", "knnper", "fedrod", "fedem", "moon", "fml", "persfl", "persfl-gd", "ifca", "afl",
    "qffl", "fedbe",
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return train_config(parse(JOB), tmp_path_factory.mktemp("sample") / "run")


def test_batches_are_drawn_independently():
    """Every sample with probability B/n, no two more often together than chance has it, in any company."""
    sizes, keys, steps = np.array([40, 8, 3]), np.array([1, 2, 3], np.uint64), np.array([4000, 50, 0])
    plan = draw_independently(sizes, keys, 10, steps)
    assert plan.expected.tolist() == [10, 8, 3] and (plan.counts[2] == 0).all()
    inside = np.zeros((4000, 40))
    for s in range(4000):
        inside[s, plan.positions[0, s, : plan.counts[0, s]]] += 1
    assert inside.max() == 1
    assert np.abs(inside.mean(0) - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / 4000)
    together = np.corrcoef(inside.T) - np.eye(40)
    assert np.abs(together).max() < 5 / np.sqrt(4000)
    assert (plan.counts[1][:50] == 8).all(), "a client that is smaller than a batch has all samples in each"
    alone = draw_independently(sizes[:1], keys[:1], 10, steps[:1])
    assert (alone.counts[0] == plan.counts[0]).all()
    own = draw_independently(sizes, keys, np.array([10, 4, 1]), steps)
    assert own.expected.tolist() == [10, 4, 1] and (own.counts[0] == plan.counts[0]).all()


@pytest.mark.parametrize("engine", ["loop", "threaded"])
@pytest.mark.parametrize("algorithm", ["fedavg", "ditto", "selffl", "scaffold"])
def test_engines_agree(tmp_path, engine, algorithm):
    made = {}
    for name in ("stacked", engine):
        settings = {**JOB, "rounds": 2, "algorithm": algorithm, "engine": {"name": name, "threads": 2}}
        made[name] = train_config(parse(settings), tmp_path / name)
    for client in ("client-0", "client-3"):
        ours, theirs = (dict(run.personal(client).named_parameters()) for run in made.values())
        for name in ours:
            torch.testing.assert_close(ours[name], theirs[name], atol=2e-5, rtol=1e-4)
    first, second = (run.clients().column("epsilon") for run in made.values())
    assert first.equals(second)


def test_each_client_has_the_epsilon_of_the_batches_it_drew(finished):
    table = finished.clients()
    for n, active, found in zip(
        *(table.column(c).to_pylist() for c in ("n_train", "activations", "epsilon")), strict=True
    ):
        assert found == pytest.approx(sample_epsilon(1.0, 1e-4, min(1, 16 / n), 3 * active))
    assert finished.manifest["privacy"] == BY_SAMPLE
    (fact,) = [f["value"] for f in report_data([finished.path])["facts"] if f["name"] == "privacy"]
    assert fact.startswith("clip = 0.5, noise = 1.0 in every local step: for a training sample, ε = ")


def test_a_resumed_run_is_the_same(finished, tmp_path):
    train_config(parse({**JOB, "rounds": 2}), tmp_path / "run")
    assert files(train_config(parse(JOB), tmp_path / "run", resume=True)) == files(finished)


def test_epsilon_is_what_accountants_find():
    dp = pytest.importorskip("dp_accounting")
    found = {}
    for kind in (dp.pld.PLDAccountant, dp.rdp.RdpAccountant):
        accountant = kind()
        accountant.compose(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(2.0)), 50)
        found[kind.__name__] = accountant.get_epsilon(1e-5)
    ours = sample_epsilon(2.0, 1e-5, 0.1, 50)
    assert found["PLDAccountant"] < ours == pytest.approx(found["RdpAccountant"], rel=0.02)
    whole = dp.pld.PLDAccountant()
    whole.compose(dp.GaussianDpEvent(2.0), 10)
    assert sample_epsilon(2.0, 1e-5, 1.0, 10) == pytest.approx(whole.get_epsilon(1e-5), rel=1e-3)
    assert sample_epsilon(0.0, 1e-5, 0.1, 5) == np.inf and sample_epsilon(1.0, 1e-5, 0.1, 0) == 0


def account(algorithm):
    config = parse({**JOB, "privacy": {"clip": 1.0}})
    task = load_task(config)
    sizes = np.array([32, 64])
    info = (Privacy(1.0, 1.0, unit="sample"), algorithm, task, config.local, task.theta0, sizes)
    return SampleAccount.of(*info)


def load_task(config):
    from personafl.jobs import config_job

    return config_job(config, config.federation()).task


def test_gradients_on_the_same_batch_are_counted_as_one_with_less_noise():
    """Ditto has two models, pFedMe takes several steps on a batch."""
    found = {type(a).__name__: account(a).gradients for a in (FedAvg(), Ditto(), PFedMe(inner_steps=5))}
    assert found == {"FedAvg": 1, "Ditto": 2, "PFedMe": 5}
    two = account(Ditto())
    assert two.epsilon(np.array([1]), np.array([6]))[0] == pytest.approx(sample_epsilon(2**-0.5, 1e-5, 0.25, 6))


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "fedbn"])
def test_who_makes_more_than_gradients_of_samples_is_refused(name):
    """In one line, before the first round. (FedBN needs normalization over samples, which is refused for itself.)"""
    algorithm = PFedMe(lam=1.0) if name == "pfedme" else ALGORITHMS[name]()
    privacy = Privacy(1.0, 1.0, unit="sample")
    privacy.check(algorithm)
    if name not in REFUSED:
        assert answers(clients_of_three_layers(algorithm, privacy))
        return
    with pytest.raises(
        ConfigError, match=r'^privacy.unit = "sample" cannot be combined with this algorithm: .*'
    ) as refused:
        clients_of_three_layers(algorithm, privacy)
    assert "\n" not in str(refused.value)


def test_noise_is_at_the_clients():
    with pytest.raises(ConfigError, match=r'must be clients for unit = "sample"'):
        parse({**JOB, "privacy": {**BY_SAMPLE, "noise_at": "server"}})
    with pytest.raises(ConfigError, match=r"privacy.unit = 'row'"):
        parse({**JOB, "privacy": {**BY_SAMPLE, "unit": "row"}})


def test_normalization_over_samples_is_refused(tmp_path):
    config = parse(JOB)
    module = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
    with pytest.raises(ConfigError, match=r"layer '1' \(BatchNorm1d\) normalizes over samples"):
        train(config.federation(), module, rounds=1, privacy=config.privacy, progress=False, engine="stacked")


def test_models_are_made_by_noisy_steps_at_the_end_too(tmp_path):
    """Fine-tuning before the last evaluation is more steps, and is accounted for."""
    run = train_config(parse({**JOB, "rounds": 1, "activity": 1.0, "algorithm": "fedavg-ft"}), tmp_path / "run")
    table = run.clients()
    for n, found in zip(table.column("n_train").to_pylist(), table.column("epsilon").to_pylist(), strict=True):
        assert found > sample_epsilon(1.0, 1e-4, min(1, 16 / n), 3)
    assert load(run.path).manifest["privacy"]["unit"] == "sample"
