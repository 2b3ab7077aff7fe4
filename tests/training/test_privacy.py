"""Clipping and noise: exact, of the right distribution, the same everywhere; and the ε that follows."""

import re
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import log_ndtr
from torch import nn

from personafl.algorithms import ALGORITHMS, SCAFFOLD, Each, FedAvg, FedPer, Mean, PersFL, SelfFL, Sent
from personafl.algorithms.base import Uploads
from personafl.algorithms.extras import trained_task
from personafl.config import for_method, parse, read_config
from personafl.engines import ENGINES
from personafl.errors import ConfigError, RunError
from personafl.jobs import train, train_config
from personafl.kernels.task import Task
from personafl.report import report_data
from personafl.runs.run import load
from personafl.settings import Local
from personafl.training.accounting import epsilon
from personafl.training.clients import LocalClients
from personafl.training.privacy import NoiseSource, Privacy, SecureNoise
from tests.archetypes import FOR_ANY_MODEL
from tests.oracles import parts
from tests.oracles.quadratic import quadratics

REASONS = {
    name: [how.unprotected for how in kind().uplink.values() if how.unprotected] for name, kind in ALGORITHMS.items()
}
PRIVATE = [name for name, reasons in REASONS.items() if not reasons]
SETTINGS = {
    "rounds": 4,
    "activity": 0.5,
    "eval_every": 2,
    "checkpoint_every": 2,
    "partition": {"name": "iid", "clients": 6},
    "model": {"name": "mlp", "hidden": [6]},
    "local": {"lr": 0.1, "steps": 3},
    "engine": {"name": "stacked", "threads": 1},
    "privacy": {"clip": 0.5, "noise": 0.25, "delta": 1e-4},
}


def protect(privacy, up, sent, clients=None, round=1, source=NoiseSource(0)):  # noqa: B008
    names = clients or [f"client-{k}" for k in range(len(up))]
    return privacy.protect(FedAvg(), {"theta": up}, Sent({"theta": sent}), names, round, source)["theta"]


def clients_of(algorithm, privacy, engine="stacked", seed=0, noise=None, problem=None, d=3, **local):
    """Clients of a linear regression with full batches, which start from 0."""
    problem = problem or quadratics(validation=True)
    module = nn.Linear(problem.z.shape[1], 1, bias=False)
    nn.init.zeros_(module.weight)
    task = trained_task(algorithm, Task(module, "mse"))
    work = Local(**{"lr": 0.02, "batch_size": 0, "steps": 5, **local})
    made = LocalClients(ENGINES[engine](task, problem.federation, work, seed, threads=1), privacy=privacy, noise=noise)
    made.start(algorithm.prepare(made.job_info), task.theta0)
    return made


def clients_of_three_layers(algorithm, privacy):
    """Clients of a small classifier, for algorithms that treat its layers differently."""
    with tempfile.TemporaryDirectory() as folder:
        made = LocalClients(parts.start(algorithm, Path(folder)).clients.engine, privacy=privacy)
    made.start(algorithm.prepare(made.job_info), made.task.theta0)
    return made


def answers(clients, round=1, ids=None):
    """What goes up after one round from a new server, and what was sent."""
    ids = np.arange(len(clients.client_index)) if ids is None else np.array(ids)
    server = clients.algorithm.new_server(clients.task.theta0, len(clients.client_index))
    sent = clients.algorithm.send(server, torch.from_numpy(ids))
    return clients.train(round, ids, sent).uploads, sent


# --- clipping


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), clip=st.floats(1e-3, 1e3), scale=st.floats(1e-3, 1e3), size=st.integers(1, 300))
def test_clipping_keeps_the_direction_and_bounds_the_norm(seed, clip, scale, size):
    draw = np.random.default_rng(seed)
    sent = torch.from_numpy(draw.standard_normal(size).astype(np.float32))
    up = sent + torch.from_numpy((scale * draw.standard_normal((4, size))).astype(np.float32))
    made = protect(Privacy(clip), up, sent)
    before, after = ((value.double() - sent.double()).numpy() for value in (up, made))
    rounding = 1e-6 * (1 + np.abs(sent.numpy()).max()) * np.sqrt(size)  # float32 holds w + Δ, not Δ
    for row in range(4):
        norm = np.linalg.norm(before[row])
        if norm <= clip:
            assert made[row].equal(up[row])
        else:
            assert np.linalg.norm(after[row]) <= clip * (1 + 1e-6) + rounding
            np.testing.assert_allclose(after[row], before[row] * clip / norm, atol=rounding)


def test_all_uploads_of_a_client_are_clipped_as_one_vector():
    """One is measured against what everybody was sent, the other against what each client was."""

    @dataclass(frozen=True)
    class Two(FedAvg):
        uplink: ClassVar = {"a": Mean(relative_to="w"), "b": Mean(relative_to="v")}

    up = {"a": torch.tensor([[3.0, 0.0], [0.6, 0.0]]), "b": torch.tensor([[[1.0], [5.0]], [[7.0], [7.8]]])}
    sent = Sent({"w": torch.zeros(2)}, {"v": torch.tensor([[[1.0], [1.0]], [[7.0], [7.0]]])})
    made = Privacy(clip=1.001).protect(Two(), up, sent, ["ann", "bob"], 1, NoiseSource(0))
    torch.testing.assert_close(made["a"], torch.tensor([[0.6006, 0.0], [0.6, 0.0]]))  # 3 and 4 are the sides of 5
    torch.testing.assert_close(made["b"], torch.tensor([[[1.0], [1.8008]], [[7.0], [7.8]]]))


SIMILAR = ("separate", "persfl", "persfl-gd", "fedbn", "fml", "selffl-aug")


@pytest.mark.parametrize("name", [n for n in PRIVATE if n not in SIMILAR])
def test_every_algorithm_is_clipped_against_what_it_was_sent(name):
    """Without a limit the answers differ by more than C; with it by C and no more, in the same direction. (PersFL needs
    classes; it sends what fedavg sends. FedBN needs norms; it sends a base as fedper does. Self-FL-aug
    sends two models, which are clipped as one.)"""
    clip, algorithm = 0.01, ALGORITHMS[name]() if name != "fedper" else FedPer(head=0)
    some = clients_of if name in FOR_ANY_MODEL else clients_of_three_layers
    free, _ = answers(some(algorithm, None))
    held, sent = answers(some(algorithm, Privacy(clip)))
    for up, how in algorithm.uplink.items():
        if how.relative_to is None:  # a number with a bound of its own
            continue
        before = sent.each.get(how.relative_to, sent.shared.get(how.relative_to))
        far, near = free.values[up] - before, held.values[up] - before
        assert (far.norm(dim=1) > 2 * clip).all()
        torch.testing.assert_close(near, far * clip / far.norm(dim=1, keepdim=True), atol=1e-7, rtol=1e-4)


def test_replacing_a_clients_data_moves_its_answer_by_up_to_twice_the_clip():
    """What the accountant takes as the sensitivity is reached, and not exceeded."""
    w = torch.tensor([1.0, -2.0, 0.5])
    one, other = protect(Privacy(0.3), torch.stack([w + 1000, w - 1000]), w)
    assert float((one - other).norm()) == pytest.approx(0.6, rel=1e-5)


# --- noise


def test_noise_is_normal_with_the_stated_spread():
    """Kolmogorov-Smirnov over many coordinates, and the tails by a χ² test of equally likely bins (fixed seeds)."""
    privacy, size = Privacy(clip=0.5, noise=3.0), 100_000
    noise = protect(privacy, torch.zeros(2, size), torch.zeros(size)).double().numpy() / 1.5
    for row in noise:
        assert stats.kstest(row, "norm").pvalue > 0.001
        assert 0.001 < stats.chi2.sf((row**2).sum(), size) < 0.999
        counts = np.bincount((stats.norm.cdf(row) * 1000).astype(int), minlength=1000)
        assert stats.chisquare(counts).pvalue > 0.001
    assert abs(np.corrcoef(noise)[0, 1]) < 4 / np.sqrt(size)
    assert abs(np.corrcoef(noise[0, 1:], noise[0, :-1])[0, 1]) < 4 / np.sqrt(size)


def test_noise_of_a_simulation_differs_between_clients_rounds_and_seeds():
    size = 20_000
    drawn = [
        NoiseSource(s).normal(client, round, size) for s in (0, 1) for client in ("ann", "bob") for round in (1, 2)
    ]
    apart = np.corrcoef(drawn) - np.eye(len(drawn))
    assert np.abs(apart).max() < 5 / np.sqrt(size)
    assert (NoiseSource(0).normal("ann", 1, size) == drawn[0]).all()


def test_noise_of_a_client_of_its_own_is_normal_and_new_each_time():
    """Asked for the same again, in whatever words. (The bounds are so wide that chance breaks one in 10⁹ times.)"""
    size = 20_000
    drawn = np.array([SecureNoise().normal("ann", 1, size) for _ in range(6)])
    assert np.abs(np.corrcoef(drawn) - np.eye(6)).max() < 7 / np.sqrt(size)
    assert stats.kstest(drawn.ravel(), "norm").pvalue > 1e-9
    assert len(np.unique(drawn)) == drawn.size


def test_a_client_of_its_own_never_repeats_its_noise():
    """Two answers to the same question, with the same seed: their difference is noise, not nothing."""
    one, two = (
        answers(clients_of(FedAvg(), Privacy(1.0, 5.0), noise=SecureNoise()))[0].values["theta"] for _ in range(2)
    )
    assert not (one == two).any()
    assert (
        answers(clients_of(FedAvg(), Privacy(1.0, 5.0)))[0]
        .values["theta"]
        .equal(answers(clients_of(FedAvg(), Privacy(1.0, 5.0)))[0].values["theta"])
    )


def test_noise_is_never_infinite():
    """The largest and the smallest 64-bit numbers are as far out as it gets."""
    lowest, highest = (torch.special.ndtri(torch.tensor((bits + 0.5) * 2.0**-52, dtype=torch.float64))
                       for bits in (0, 2**52 - 1))  # fmt: skip
    assert float(highest) == -float(lowest) and 8 < float(highest) < 9


def test_answers_do_not_depend_on_company():
    """Bit for bit: a client by itself, as at a site of its own, and among others."""
    draw = torch.Generator().manual_seed(0)
    up, sent = torch.randn(5, 777, generator=draw), torch.randn(777, generator=draw)
    for privacy in (Privacy(3.0), Privacy(3.0, 0.7)):
        together = protect(privacy, up, sent)
        for row in range(5):
            assert protect(privacy, up[row : row + 1], sent, [f"client-{row}"])[0].equal(together[row])


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_engines_agree(noise):
    made = {name: answers(clients_of(FedAvg(), Privacy(0.05, noise), name), round=7)[0] for name in ENGINES}
    for uploads in made.values():
        torch.testing.assert_close(uploads.values["theta"], made["loop"].values["theta"], atol=1e-6, rtol=0)


# --- what a federation does with it


def expected_updates(problem, lr=0.02, steps=5):
    """y − w for full-batch gradient descent from w = 0: z − (I − ηA)^s z, in closed form."""
    shrink = [np.linalg.matrix_power(np.eye(len(z)) - lr * a, steps) for a, z in zip(problem.A, problem.z, strict=True)]
    return np.array([z - m @ z for m, z in zip(shrink, problem.z, strict=True)])


@pytest.mark.parametrize("weights", ["equal", "samples"])
def test_the_mean_of_noisy_answers_has_the_closed_form_expectation_and_variance(weights):
    """Over many seeds: w + Σ p_i clip(Δ_i), with variance (zC)² Σ p_i² in each coordinate."""
    problem, privacy, runs = quadratics(clients=5, d=4), Privacy(clip=0.7, noise=0.8), 120
    update = expected_updates(problem)
    norms = np.linalg.norm(update, axis=1, keepdims=True)
    assert (norms > 0.7).any() and (norms < 0.7).any()
    share = problem.weights if weights == "samples" else np.full(5, 0.2)
    mean = share @ (update * np.minimum(1, 0.7 / norms))
    spread = 0.8 * 0.7 * np.sqrt((share**2).sum())
    servers = []
    clients = clients_of(FedAvg(weights), privacy, problem=problem)
    for round in range(1, runs + 1):  # each round from the same server, so that only the noise differs
        uploads, _ = answers(clients, round)
        servers.append(clients.algorithm.aggregate({"theta": None}, uploads)["theta"].double().numpy())
    standard = (np.array(servers) - mean) / spread
    assert np.abs(standard.mean(0)).max() < 4 / np.sqrt(runs)
    assert 0.001 < stats.chi2.sf((standard**2).sum(), standard.size) < 0.999
    assert stats.kstest(standard.ravel(), "norm").pvalue > 0.001


@pytest.mark.parametrize("name", ["fedavg", "ditto", "apfl", "pfedme", "fedamp"])
def test_what_a_client_keeps_is_neither_clipped_nor_noisy(name):
    free, noisy = (clients_of(ALGORITHMS[name](), p) for p in (None, Privacy(1e-3, 10.0)))
    sent_free, sent_noisy = answers(free)[0], answers(noisy)[0]
    everybody = np.arange(len(free.client_index))
    before, after = free.store.get(everybody), noisy.store.get(everybody)
    assert all(after[key].equal(before[key]) for key in before)
    assert not sent_noisy.values["theta"].isclose(sent_free.values["theta"]).any()


def test_a_client_that_failed_sent_nothing(monkeypatch):
    clients = clients_of(FedAvg(), Privacy(1.0, 1.0))
    run = clients.engine.run

    def with_nan(work):
        result = run(work)
        result.up["theta"][1] = torch.nan
        return result

    monkeypatch.setattr(clients.engine, "run", with_nan)
    uploads, _ = answers(clients)
    assert uploads.ids.tolist() == [0, 2, 3] and clients.releases.tolist() == [1, 0, 1, 1]
    assert uploads.values["theta"].isfinite().all()
    alone = answers(clients_of(FedAvg(), Privacy(1.0, 1.0)))[0].values["theta"]
    assert uploads.values["theta"].equal(alone[[0, 2, 3]]), "the others' noise is their own still"


def test_what_is_not_declared_does_not_go_up_unprotected():
    @dataclass(frozen=True)
    class Talkative(FedAvg):
        def finish(self, own, carry, sent, ctx):
            kept, up = super().finish(own, carry, sent, ctx)
            return kept, {**up, "samples": ctx.samples.float()}

    for privacy in (Privacy(1.0), None):
        with pytest.raises(ConfigError, match=r"sends theta, samples, but its uplink has theta: all that goes up"):
            answers(clients_of(Talkative(), privacy))


# --- numbers that are relative to nothing


def selffl_answer(sigma2, privacy, source=NoiseSource(0), size=3):  # noqa: B008
    up = {"theta": torch.zeros(len(sigma2), size), "sigma2": torch.tensor(sigma2)}
    names = [f"client-{k}" for k in range(len(sigma2))]
    return privacy.protect(SelfFL(), up, Sent({"theta": torch.zeros(size)}), names, 1, source)


def test_a_variance_is_clipped_to_what_clipped_models_can_have():
    found = selffl_answer([-1.0, 0.01, 0.2, 40.0], Privacy(clip=0.5))["sigma2"]
    torch.testing.assert_close(found, torch.tensor([-1.0, 0.01, 0.2, 0.25]))  # 0 to C²; "not known" stays so


def test_models_and_variance_share_what_an_answer_tells():
    """1/z_model² + 1/z_variance² = 1/z², z_variance in units of half its range: the ε is that of noise z."""
    privacy, many = Privacy(clip=2.0, noise=0.05), 4000
    found = selffl_answer([2.0] * many, privacy, size=1)
    of_model, of_variance = (float(found[name].std()) for name in ("theta", "sigma2"))
    multipliers = np.array([of_model / 2.0, of_variance / (2.0**2 / 2)])
    assert (multipliers**-2.0).sum() == pytest.approx(0.05**-2.0, rel=0.1)
    assert multipliers[0] == pytest.approx(0.05 / 0.9**0.5, rel=0.05)
    assert privacy.deviation(SelfFL().uplink) == pytest.approx(2.0 * 0.05 / 0.9**0.5)
    loud = selffl_answer([2.0] * many, Privacy(clip=2.0, noise=5.0))["sigma2"]
    assert loud.min() == 0 and loud.max() == 4, "whatever the noise, the server sees a possible value"


def test_selffl_takes_the_noise_out_of_the_spread_of_models():
    """σ0² of noisy models is that of the models, on average; without it, it would be that of the noise."""
    draw, noise = torch.Generator().manual_seed(0), 0.5
    models = torch.randn(40, 200, generator=draw)
    noisy = models + noise * torch.randn(40, 200, generator=draw)
    for variance in ("sum", "mean"):
        algorithm = SelfFL(variance=variance)
        server = algorithm.new_server(torch.zeros(200), 40)

        def spread(theta, noise, algorithm=algorithm, server=server):
            values = {"theta": theta, "sigma2": torch.ones(40)}
            up = Uploads(torch.arange(40), torch.ones(40), values, algorithm.uplink, noise=noise)
            return float(algorithm.aggregate(dict(server), up)["sigma0_2"])

        assert spread(noisy, noise) == pytest.approx(spread(models, 0.0), rel=0.03)
        assert spread(noisy, 0.0) > 1.2 * spread(models, 0.0)
        assert spread(torch.zeros(40, 200), noise) == 0


@pytest.mark.parametrize("name", ["selffl", "selffl-aug"])
def test_selffl_runs_with_noise(name, tmp_path):
    run = train_config(parse({**SETTINGS, "algorithm": name}), tmp_path / name)
    table = run.clients()
    expected = [epsilon(0.25, 1e-4, k) for k in table.column("activations").to_pylist()]
    assert table.column("epsilon").to_pylist() == expected
    assert all(bool(p.isfinite().all()) for p in run.global_model().parameters())


# --- ε


def log_delta(eps, s):
    """Balle & Wang (2018), Theorem 8, for sensitivity 1 and standard deviation s, as a logarithm."""
    one, two = log_ndtr(0.5 / s - eps * s), eps + log_ndtr(-0.5 / s - eps * s)
    return one + np.log1p(-np.exp(two - one))


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
@pytest.mark.parametrize(("noise", "releases"), [(0.5, 1), (2.0, 1), (2.0, 25), (8.0, 1), (8.0, 100), (40.0, 1000)])
def test_epsilon_is_that_of_the_analytic_gaussian_mechanism(noise, releases, delta):
    """A client's answer moves by 2C at noise zC: one release has s = z/2, and k of them s = z/(2√k)."""
    eps = epsilon(noise, delta, releases)
    assert log_delta(eps, noise / 2 / np.sqrt(releases)) == pytest.approx(np.log(delta), rel=1e-7)


@pytest.mark.parametrize(("noise", "releases"), [(4.0, 1), (8.0, 10), (12.0, 50)])
def test_epsilon_is_what_accountants_find_by_composing_release_by_release(noise, releases):
    dp = pytest.importorskip("dp_accounting")
    found = {}
    for kind in (dp.pld.PLDAccountant, dp.rdp.RdpAccountant):
        accountant = kind()
        accountant.compose(dp.GaussianDpEvent(noise / 2), releases)
        found[kind.__name__] = accountant.get_epsilon(1e-5)
    assert epsilon(noise, 1e-5, releases) == pytest.approx(found["PLDAccountant"], rel=1e-4)
    assert epsilon(noise, 1e-5, releases) < found["RdpAccountant"] < 1.2 * epsilon(noise, 1e-5, releases)


def test_epsilon_is_no_less_than_an_attack_proves():
    """Tell two data sets apart by the likeliest threshold: no ε below what the error rates allow can be true."""
    privacy, runs = Privacy(clip=1.0, noise=2.0, delta=0.05), 4000
    w = torch.zeros(1)
    guess = []
    for data in (100.0, -100.0):
        up = torch.full((runs, 1), data)
        guess.append(protect(privacy, up, w, [f"{data} {k}" for k in range(runs)]).numpy().ravel() > 0.5)
    hit, false_alarm = guess[0].mean(), guess[1].mean()
    proven = np.log((hit - privacy.delta) / false_alarm)
    assert 0.5 * privacy.epsilon(np.array([1]))[0] < proven < privacy.epsilon(np.array([1]))[0]


def test_epsilon_without_noise_and_without_releases():
    assert Privacy(1.0).epsilon(np.array([0, 1, 5])).tolist() == [0.0, np.inf, np.inf]
    assert Privacy(1.0, 1.0).epsilon(np.array([0])).tolist() == [0.0]
    assert Privacy(1.0, 1.0).epsilon(np.array([], np.int64)).tolist() == []


# --- runs


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("private") / "run"
    return train_config(parse(SETTINGS), folder)


def files(run):
    names = ("rounds.jsonl", "clients.parquet", "models/global.safetensors", "models/personal.safetensors")
    return {name: (run.path / name).read_bytes() for name in names}


def test_each_evaluation_tells_the_epsilon_of_every_client(finished):
    assert finished.manifest["privacy"] == SETTINGS["privacy"]
    assert finished.manifest["resolved"]["noise"] == "follows from the seed: protects nobody"
    for round in (2, 4):
        table = finished.clients(round)
        expected = [epsilon(0.25, 1e-4, k) for k in table.column("activations").to_pylist()]
        assert table.column("epsilon").to_pylist() == expected and len(set(expected)) > 1


def test_a_run_that_is_resumed_has_the_same_noise_and_epsilon(finished, tmp_path):
    train_config(parse({**SETTINGS, "rounds": 2}), tmp_path / "run")
    resumed = train_config(parse(SETTINGS), tmp_path / "run", resume=True)
    assert files(resumed) == files(finished)


def test_a_run_is_not_resumed_with_less_privacy(finished):
    for less in ({"clip": 0.5, "noise": 0.1, "delta": 1e-4}, None):
        settings = {key: value for key, value in {**SETTINGS, "privacy": less}.items() if value is not None}
        with pytest.raises(RunError, match=r"holds another run: its privacy\."):
            train_config(parse(settings), finished.path, resume=True)


def test_the_same_from_python(finished, tmp_path):
    config = parse(SETTINGS)
    federation = config.federation()
    module = load(finished.path).task.module(load(finished.path).task.theta0).train()
    run = train(
        federation, module, FedAvg(), rounds=4, activity=0.5, eval_every=2, local=config.local, engine="stacked",
        threads=1, privacy=config.privacy, progress=False, out=tmp_path / "run",
    )  # fmt: skip
    assert run.clients().column("epsilon").equals(finished.clients().column("epsilon"))
    assert files(run)["models/global.safetensors"] == files(finished)["models/global.safetensors"]


def test_persfl_and_separate_run_with_privacy(tmp_path):
    spent = {}
    for name in ("persfl", "separate"):
        settings = {**SETTINGS, "rounds": 2, "algorithm": name}
        spent[name] = max(train_config(parse(settings), tmp_path / name).clients().column("epsilon").to_pylist())
    assert spent["separate"] == 0 < spent["persfl"], "who sends nothing tells nothing"
    assert PersFL().uplink == FedAvg().uplink


# --- the report


def test_the_report_tells_epsilon(finished):
    data = report_data([finished.path])
    spent = finished.clients().column("epsilon").to_numpy()
    (fact,) = [f["value"] for f in data["facts"] if f["name"] == "privacy"]
    assert fact.startswith("clip = 0.5, noise = 0.25: ")
    assert fact.endswith(" at δ = 0.0001, if the noise were secret: in a simulation it follows from the seed")
    assert f"ε = {spent.max():.3g} at most, {np.median(spent):.3g} in the median client" in fact
    np.testing.assert_allclose(data["values"][0]["columns"]["epsilon"], spent, rtol=1e-3)


def test_clipping_alone_is_called_no_guarantee(tmp_path):
    settings = {**SETTINGS, "privacy": {"clip": 0.5}}
    run = train_config(parse({**settings, "rounds": 2}), tmp_path / "run")
    assert set(run.clients().column("epsilon").to_pylist()) == {0.0, np.inf}
    data = report_data([run.path])
    (fact,) = [f["value"] for f in data["facts"] if f["name"] == "privacy"]
    assert fact == "clip = 0.5, noise = 0.0: no guarantee (clipping only)"
    assert "epsilon" not in data["values"][0]["columns"]


def test_the_reports_config_has_the_same_privacy(finished, tmp_path):
    """One run; and a run with privacy beside one without, of which the config says so for each."""
    plain = train_config(parse({k: v for k, v in SETTINGS.items() if k != "privacy"}), tmp_path / "plain")
    for runs in ([finished], [finished, plain], [plain, finished]):
        again = report_data([run.path for run in runs])["again"]
        (tmp_path / "again.toml").write_text(again["config"], encoding="utf-8")
        if len(runs) == 1:
            assert read_config(tmp_path / "again.toml").privacy == Privacy(**finished.manifest["privacy"])
        else:
            tables = tomllib.loads(again["config"])
            found = [parse(for_method(tables, method)).privacy for method in tables["methods"]]
            assert sorted(found, key=repr) == [None, Privacy(**SETTINGS["privacy"])]


# --- what is refused


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_says_whether_its_answers_can_be_protected(name):
    settings = {**SETTINGS, "algorithm": name}
    if name in PRIVATE:
        assert all(how.relative_to or how.within for how in ALGORITHMS[name]().uplink.values())
        assert parse(settings).privacy == Privacy(0.5, 0.25, 1e-4)
        return
    with pytest.raises(ConfigError) as refused:
        parse(settings)
    assert str(refused.value).startswith(f"[privacy] cannot be combined with {name}: {REASONS[name][0]}")
    assert all(reason in str(refused.value) for reason in REASONS[name])
    assert "\n" not in str(refused.value)


def test_the_documentation_says_of_every_algorithm_what_it_reveals():
    """Each is in the table of docs/security.md once, with what goes up and whether that can be protected."""
    text = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| `")]
    rows = [row for row in rows if len(row) == 4]  # other tables are about other things
    told = {name: row for row in rows for name in re.findall(r"`([a-z-]+)`", row[0])}
    assert told.keys() == ALGORITHMS.keys() and sum(len(re.findall("`", row[0])) // 2 for row in rows) == len(told)
    assert all((told[name][-1] != "refused") == (name in PRIVATE) for name in told)


def test_who_is_refused():
    assert {*ALGORITHMS} - {*PRIVATE} == {
        "scaffold",
        "feddyn",
        "qffl",
        "afl",
        "fedbe",
        "lotteryfl",
        "ifca",
        "fedfomo",
        "fedproto",
        "fedpac",
    }


def test_an_upload_that_says_nothing_of_what_it_is_relative_to_is_refused():
    @dataclass(frozen=True)
    class Silent(FedAvg):
        uplink: ClassVar = {"theta": Mean()}

    with pytest.raises(
        ConfigError, match=r"it does not say what theta is measured against \(relative_to in its uplink"
    ):
        Privacy(1.0).check(Silent())


def test_whose_server_needs_more_than_sums():
    """Aggregation by the mean alone gives the same server as aggregation by single answers, or an `Each` says why
    not: the two answers are replaced by their mean, twice."""
    for name, kind in ALGORITHMS.items():
        if name.startswith("persfl") or name in ("separate", "fedbe") or name not in FOR_ANY_MODEL:
            continue
        if name == "fml":  # needs classes, and sends what fedavg sends
            continue
        if name == "cfl":  # whose server needs each answer only in a round that splits a cluster
            continue
        algorithm = FedPer(head=0) if name == "fedper" else kind()
        clients = clients_of(algorithm, None, problem=quadratics(clients=2, alike=False))
        uploads, _ = answers(clients)
        by_samples = getattr(algorithm, "weights", "equal") == "samples"
        share = uploads.samples / uploads.samples.sum() if by_samples else torch.full((2,), 0.5)
        same = {n: torch.tensordot(share.to(v), v, dims=1).expand_as(v) for n, v in uploads.values.items()}

        def aggregate(values, clients=clients, uploads=uploads):
            server = clients.algorithm.new_server(clients.task.theta0, 2)
            return clients.algorithm.aggregate(
                server, type(uploads)(uploads.ids, uploads.samples, values, uploads.uplink)
            )

        single, mean = aggregate(uploads.values), aggregate(same)
        alike = all(torch.allclose(single[n].double(), mean[n].double(), atol=1e-6) for n in single)
        assert alike == all(isinstance(how, Mean) for how in algorithm.uplink.values()), name
        assert all(how.why for how in algorithm.uplink.values() if isinstance(how, Each)), name


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, r"\[privacy\] has no clip"),
        ({"noise": 1.0}, r"\[privacy\] has no clip"),
        ({"clip": 0}, r"privacy.clip = 0.0: must be above 0"),
        ({"clip": float("inf")}, r"privacy.clip = inf: must be above 0, and no more than float32 holds"),
        ({"clip": float("nan")}, r"privacy.clip = nan"),
        ({"clip": 1.0, "noise": -1}, r"privacy.noise = -1.0: must be at least 0"),
        ({"clip": 1.0, "delta": 0}, r"privacy.delta = 0.0: must be in \(0, 1\)"),
        ({"clip": 1.0, "delta": 1}, r"privacy.delta = 1.0: must be in \(0, 1\)"),
        ({"clip": "1"}, r"privacy.clip = '1'"),
        ({"clip": 1.0, "secure_aggregation": True}, r"unknown key 'privacy.secure_aggregation'"),
        ({"clip": 1.0, "nosie": 1}, r"unknown key 'privacy.nosie' \(did you mean 'privacy.noise'\?\)"),
        ("strong", r"privacy = 'strong': must be a table"),
    ],
)
def test_settings_that_make_no_sense_are_one_line(table, message):
    with pytest.raises(ConfigError, match=f"^{message}") as refused:
        parse({**SETTINGS, "privacy": table})
    assert "\n" not in str(refused.value)


def test_python_is_refused_what_a_config_is():
    federation = parse(SETTINGS).federation()
    with pytest.raises(ConfigError, match=r"cannot be combined with scaffold"):
        train(federation, nn.Linear(64, 10), SCAFFOLD(), privacy=Privacy(1.0), progress=False)


def test_an_engine_that_knows_nothing_of_privacy_is_refused(monkeypatch):
    """What was promised is never left out in silence."""
    module = sys.modules["personafl.jobs"]  # the package has a function of this name
    monkeypatch.setattr(module, "LocalClients", lambda engine, memory, folder, privacy: LocalClients(engine))
    with pytest.raises(ConfigError, match=r"engine = 'stacked' cannot protect what clients send"):
        train(parse(SETTINGS).federation(), nn.Linear(64, 10), privacy=Privacy(1.0), engine="stacked", progress=False)


def test_without_the_accountant_noise_is_refused_and_clipping_is_not(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ConfigError, match=r"^privacy.noise needs .*: pip install 'personafl\[privacy\]'$"):
        parse(SETTINGS)
    assert parse({**SETTINGS, "privacy": {"clip": 1.0}}).privacy == Privacy(1.0)
