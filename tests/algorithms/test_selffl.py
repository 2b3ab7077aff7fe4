import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from personafl.algorithms import FedAvg, SelfFL
from personafl.algorithms.base import Uploads
from personafl.algorithms.selffl import online_variance
from personafl.errors import ConfigError
from personafl_papers import theory
from tests.oracles.quadratic import personal, quadratics, server, states, train
from tests.oracles.selffl import ByHand, context, follow, handmade, message, reported

LR, STEPS = 0.2, 3
FULL, HALF, FEW = (4, 1.0, 6), (8, 0.5, 6), (12, 0.34, 6)  # clients, activity, rounds


@pytest.mark.parametrize("smoothing", ["activity", 0.7])
@pytest.mark.parametrize("scope", ["cohort", "all"])
@pytest.mark.parametrize("variance", ["sum", "mean"])
@pytest.mark.parametrize("posterior", ["paper", "exact"])
@pytest.mark.parametrize(
    "setting", [FULL, pytest.param(HALF, marks=pytest.mark.slow), FEW], ids=["full", "half", "few"]
)
def test_every_round_equals_the_algorithm_by_hand(tmp_path, setting, posterior, variance, scope, smoothing):
    options = {"posterior": posterior, "variance": variance, "scope": scope, "smoothing": smoothing}
    hand = ByHand(quadratics(setting[0]), LR, STEPS, **options)
    runner = follow(SelfFL(**options), hand, setting, tmp_path)
    assert len({*runner.steps} - {0, 1, STEPS, 40}) >= 1, "some client should take a number of steps of its own"


@pytest.mark.parametrize("posterior", ["paper", "exact"])
@pytest.mark.parametrize("setting", [FULL, FEW], ids=["full", "few"])
def test_the_loop_engine_does_too(tmp_path, setting, posterior):
    hand = ByHand(quadratics(setting[0]), LR, STEPS, l_max=12, posterior=posterior)
    follow(SelfFL(l_max=12, posterior=posterior), hand, setting, tmp_path, engine="loop")


@pytest.mark.parametrize("used", [("init",), ("steps",), ("weights",), ()])
def test_each_component_alone(tmp_path, used):
    options = {f"use_{name}": name in used for name in ("init", "steps", "weights")}
    runner = follow(SelfFL(**options), ByHand(quadratics(), LR, STEPS, use=used), FULL, tmp_path)
    assert (set(runner.steps) == {STEPS}) == ("steps" not in used)


@pytest.mark.parametrize("activity", [1.0, 0.5])
def test_with_all_components_off_it_is_fedavg(tmp_path, activity, step_by_step):
    off = SelfFL(smoothing=1.0, use_init=False, use_steps=False, use_weights=False)
    ours, plain = (
        train(quadratics(6), a, tmp_path, 5, LR, STEPS, activity=activity) for a in (off, FedAvg(weights="equal"))
    )
    np.testing.assert_array_equal(server(ours), server(plain))
    np.testing.assert_array_equal(personal(ours), personal(plain))


def test_warm_rounds_are_fedavg_and_then_counts_start_at_0(tmp_path, step_by_step):
    warm, plain = (
        train(quadratics(8), a, tmp_path, 0, LR, STEPS, activity=0.4) for a in (SelfFL(warm_rounds=3), FedAvg())
    )
    for _ in range(3):
        warm.step(), plain.step()
        np.testing.assert_array_equal(server(warm), server(plain))
        np.testing.assert_array_equal(personal(warm), personal(plain))
    assert server(warm, "sigma0_2") == -1 and (server(warm, "sigma2") == -1).all()
    assert set(states(warm)["t"]) == {0} and (states(warm)["sigma2"] == 0).all()
    warm.step()
    cohort = warm.schedule.cohort(0, 4, 8)
    np.testing.assert_array_equal(states(warm)["t"][cohort], 1)
    np.testing.assert_array_equal(states(warm)["mean"][cohort], states(warm)["theta"][cohort])
    assert server(warm, "sigma0_2") > 0


# --- the online variance ---------------------------------------------------------------------------------------


def stream(x, window=0):
    own = {
        "mean": torch.zeros(x.shape[1], dtype=x.dtype),
        "sigma2": torch.zeros((), dtype=x.dtype),
        "t": torch.tensor(-1.0, dtype=x.dtype),
    }
    for row in x:
        own = online_variance(own, row, torch.tensor(True), window)
    return own


@given(hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=12), elements=st.floats(-100, 100)))
@settings(max_examples=100, deadline=None)
def test_the_online_variance_is_the_batch_variance(x):
    own = stream(torch.from_numpy(x))
    assert float(own["sigma2"]) == pytest.approx(x.var(0).sum(), rel=1e-9, abs=1e-9)
    np.testing.assert_allclose(own["mean"], x.mean(0), atol=1e-9)
    assert own["t"] == len(x)


@given(seed=st.integers(0, 2**31), rounds=st.integers(2, 100))
@settings(max_examples=30, deadline=None)
def test_in_float32_it_stands_large_means(seed, rounds):
    """Mean 1e3, deviations 1e-2: floats are 6e-5 apart there, and σ² is right to 2%."""
    x = torch.from_numpy(1e3 + 1e-2 * np.random.default_rng(seed).standard_normal((rounds, 8))).float()
    assert float(stream(x)["sigma2"]) == pytest.approx(x.double().numpy().var(0).sum(), rel=0.02)


def test_a_window_is_a_variance_with_fading_weights():
    x, window = torch.from_numpy(np.random.default_rng(0).standard_normal((9, 3))), 4
    kept = (1 - 1 / window) ** np.arange(5, -1, -1)
    p = np.concatenate([np.full(3, kept[0] / window), kept / window])  # the first 4 models count alike
    own, mean = stream(x, window), p @ x.numpy()
    assert p.sum() == pytest.approx(1) and own["t"] == 9
    np.testing.assert_allclose(own["mean"], mean)
    np.testing.assert_allclose(own["sigma2"], p @ ((x.numpy() - mean) ** 2).sum(1))


def test_what_does_not_count_leaves_the_variance_alone():
    own = stream(torch.randn(4, 3))
    frozen = online_variance(own, torch.full((3,), 9.0), torch.tensor(False))
    assert all(torch.equal(frozen[name], own[name]) for name in own)
    never = {**own, "t": torch.tensor(-1.0)}
    assert online_variance(never, torch.zeros(3), torch.tensor(False))["t"] == 0, "it is no longer a stranger"


# --- rules for single clients and single rounds ------------------------------------------------------------------


def begun(sigma2=0.5, sigma0_2=0.2, S=3.0, t=5.0, own=1.0, theta=0.0, lr=0.01, batch=1, **options):
    """Start point and number of steps of one client with one parameter."""
    start, steps = SelfFL(**options).start(
        handmade(sigma2, t, own), message(sigma0_2, S, theta), context(lr, batch_size=batch)
    )
    assert torch.isfinite(start).all()
    return float(start), int(steps)


def one_round(server, ids, theta, sigma2, algorithm=None):
    """A server's state after uploads (one parameter) of these clients."""
    values = {"theta": torch.tensor(theta)[:, None], "sigma2": torch.tensor(sigma2)}
    algorithm = algorithm or SelfFL(smoothing=1.0, variance="mean")
    server = algorithm.new_server(torch.zeros(1), 6) if server is None else server
    return algorithm.aggregate(server, Uploads(torch.tensor(ids), torch.ones(len(ids)), values, algorithm.uplink))


@pytest.mark.parametrize("t, sigma0_2", [(-1, 0.2), (0, 0.2), (1, 0.2), (5, -1.0)])
def test_without_a_variance_a_client_starts_from_theta_and_takes_the_default_steps(t, sigma0_2):
    assert begun(t=t, sigma0_2=sigma0_2, theta=0.7) == (pytest.approx(0.7), 20)
    assert begun(t=2, theta=0.7)[0] != pytest.approx(0.7)


def test_a_client_without_a_variance_counts_with_the_median():
    known = one_round(None, [0, 1, 2, 3], [0.0, 1.0, 2.0, 7.0], [1.0, 5.0, 9.0, -1.0])
    w = 1 / (7.25 + np.array([1, 5, 9, 5]))
    assert float(known["theta"]) == pytest.approx(w @ [0, 1, 2, 7] / w.sum())
    assert known["sigma2"].tolist() == [1, 5, 9, -1, -1, -1]
    assert float(one_round(None, [0, 1], [0.0, 4.0], [-1.0, -1.0])["theta"]) == 2, "nobody has one: all equal"


def test_the_median_of_two_lies_between_them():
    w = 1 / (2 / 3 + np.array([1, 4, 2.5]))
    new = one_round(None, [0, 1, 2], [0.0, 1.0, 2.0], [1.0, 4.0, -1.0])
    assert float(new["theta"]) == pytest.approx(w @ [0, 1, 2] / w.sum())


@pytest.mark.parametrize("clients, activity", [(1, 1.0), (4, 0.25)], ids=["one client", "one active client"])
def test_alone_a_client_trains_from_theta_for_l_max_steps(tmp_path, clients, activity):
    runner = train(quadratics(clients), SelfFL(l_max=7), tmp_path, 12, LR, STEPS, activity=activity)
    assert server(runner, "sigma0_2") == 0 and np.isfinite(server(runner)).all()
    aware = states(runner)["t"] >= 3
    assert aware.any() and (runner.steps[aware] == 7).all()
    assert begun(S=0.0, theta=0.7) == (pytest.approx(0.7), 40)


def test_equal_clients_do_gradient_descent_together(tmp_path):
    problem = quadratics(alike=True)
    runner, taken = train(problem, SelfFL(), tmp_path, 0, LR, STEPS), 0
    for _ in range(5):
        runner.step()
        taken += runner.steps[0]
        w = ByHand(problem, LR, STEPS).descend(0, np.zeros(3), taken)
        assert len(set(runner.steps)) == 1
        np.testing.assert_allclose(personal(runner), np.tile(w, (4, 1)), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(server(runner), w, rtol=1e-4, atol=1e-5)


def test_zero_variance_counts_as_the_floor():
    assert begun(sigma2=0.0, sigma0_2=0.0, S=1e12) == begun(sigma2=1e-12, sigma0_2=0.0, S=1e12) == (-1.0, 1)
    still = one_round(None, [0, 1, 2], [2.0, 2.0, 2.0], [0.0, 0.0, 1.0])
    assert float(still["theta"]) == 2 and float(still["sigma0_2"]) == 0


@pytest.mark.parametrize(
    "sigma2, sigma0_2, S", [(1e30, 1.0, 3.0), (1.0, 1e30, 4e-30), (1e30, 1e30, 2e-30), (1e30, 0, 1e12)]
)
def test_huge_variances_give_a_finite_start_and_legal_steps(sigma2, sigma0_2, S):
    for posterior in ("paper", "exact"):
        start, steps = begun(sigma2, sigma0_2, S, posterior=posterior)
        assert -1 <= start <= 0 and 1 <= steps <= 40
    new = one_round(None, [0, 1, 2], [-1e15, 0.0, 1e15], [1e30, -1.0, 1.0])
    assert all(torch.isfinite(value).all() for value in new.values())


@pytest.mark.parametrize("lr, batch", [(0.03, 10), (1e-3, 10), (0.1, 1)])
def test_the_steps_are_those_of_the_formula_at_any_scale(lr, batch):
    """Also where 1 − η/(Bσ²) and S/(σ⁻² + S) are 1 in float32: σ² = 1e6, S = 10, η = 0.03, B = 10 takes 34."""
    for sigma2, S in np.stack(np.meshgrid(10.0 ** np.arange(-9, 10), 10.0 ** np.arange(-6, 9)), -1).reshape(-1, 2):
        rate = lr / (batch * sigma2)
        exact = np.log1p(1 / (sigma2 * S)) / -np.log1p(-rate) if rate < 1 else 1.0
        expected = np.clip(np.ceil([exact * (1 - 1e-4), exact * (1 + 1e-4)]), 1, 40)
        assert begun(sigma2, 0.0, S, lr=lr, batch=batch)[1] in expected


def test_a_step_that_reaches_the_optimum_is_the_only_one():
    assert begun(sigma2=0.5, lr=0.5)[1] == begun(sigma2=0.5, lr=5.0)[1] == 1
    assert begun(sigma2=0.5, lr=0.1)[1] > 1


def test_the_shift_is_capped():
    """w = 1/(0.2 + 0.3) = 2: against S = 8 a quarter of the way beyond θ, against S = 0.5 no farther than θ_m is."""
    assert begun(0.3, 0.2, 8.0, own=3.0, theta=1.0)[0] == pytest.approx(0.5)
    assert begun(0.3, 0.2, 0.5, own=3.0, theta=1.0)[0] == pytest.approx(-1.0)


@pytest.mark.parametrize("posterior", ["paper", "exact"])
def test_what_makes_clients_take_more_steps(posterior):
    """More σ0², fewer or less certain others, more samples (σ² = v²/N, B = N). At a fixed η/B, better data: fewer."""
    some = {"posterior": posterior, "l_max": 10**6, "lr": 0.002}
    between = [begun(S=4 / (s + 0.1), sigma0_2=s, **some)[1] for s in (0.0, 0.01, 0.1, 1.0, 10.0)]
    others = [begun(S=S, **some)[1] for S in (0.1, 1.0, 10.0, 100.0)]
    samples = [begun(sigma2=1 / n, batch=n, **some)[1] for n in (1, 4, 16, 64)]
    quality = [begun(sigma2=s, **{**some, "lr": 0.002 * s})[1] for s in (1.0, 0.3, 0.1, 0.03)]
    fixed = [begun(sigma2=s, **some)[1] for s in (0.03, 0.1, 0.3, 1.0)]
    for row in (between, others[::-1], samples, quality, fixed):
        assert row == sorted(set(row)), row


# --- clusters, reports, cost ---------------------------------------------------------------------------------------


def test_a_cluster_that_is_not_active_keeps_its_latest_model(tmp_path):
    """Round 1, group a: σ0² = 4, its model 4/3. Round 2, group b: σ0² = 1, its model 32/3; masses 1/4.5 and 1/3."""
    federation = dataclasses.replace(quadratics(6).federation, groups=tuple("bababb"))
    problem = dataclasses.replace(quadratics(6), federation=federation)
    runner = train(problem, SelfFL(clusters="group", smoothing=1.0, variance="mean"), tmp_path, 0)
    first = one_round(runner.algorithm.new_server(torch.zeros(1), 6), [1, 3], [0.0, 4.0], [1.0, 6.0], runner.algorithm)
    second = one_round(first, [0, 4], [10.0, 12.0], [1.0, 3.0], runner.algorithm)
    assert float(first["theta"]) == pytest.approx(4 / 3) and first["cluster_sigma2"].tolist() == [3.5, -1]
    np.testing.assert_allclose(second["cluster_theta"][:, 0], [4 / 3, 32 / 3], rtol=1e-6)
    assert float(second["theta"]) == pytest.approx(0.4 * 4 / 3 + 0.6 * 32 / 3)


def test_clusters_by_uncertainty_are_equal_in_number():
    x, sigma2 = np.arange(6.0)[::-1] ** 2, np.arange(1.0, 7.0)  # clusters (1, 2), (3, 4), (5, 6)
    algorithm = SelfFL(clusters="uncertainty", cluster_count=3, smoothing=1.0, variance="mean")
    new = one_round(None, list(range(6)), x.tolist(), sigma2.tolist(), algorithm)
    w = (1 / (x.var() + sigma2)).reshape(3, 2)
    models, masses = (w * x.reshape(3, 2)).sum(1) / w.sum(1), 1 / (x.var() + np.array([1.5, 3.5, 5.5]))
    np.testing.assert_allclose(new["cluster_theta"][:, 0], models, rtol=1e-5)
    assert float(new["theta"]) == pytest.approx(masses @ models / masses.sum(), rel=1e-5)


def test_clusters_by_group_need_groups(tmp_path):
    with pytest.raises(ConfigError, match="the clients of this federation have no groups"):
        train(quadratics(), SelfFL(clusters="group"), tmp_path, 0)


@pytest.mark.parametrize("posterior", ["paper", "exact"])
@pytest.mark.parametrize("activity", [1.0, 0.5])
def test_the_report_is_the_theory_of_the_clients_that_are_known(tmp_path, activity, posterior):
    runner = train(quadratics(8), SelfFL(posterior=posterior), tmp_path, 4, LR, STEPS, activity=activity)
    ours, sigma2, sigma0_2 = reported(runner), server(runner, "sigma2"), float(server(runner, "sigma0_2"))
    known = sigma2 >= 0
    assert known.all() == (activity == 1) and known.sum() > 1
    of_theory = {
        "sigma2": states(runner)["sigma2"][known],
        "sigma0_2": sigma0_2,
        "weight": theory.client_weights(sigma2[known], sigma0_2),
        "gain": theory.gain(sigma2[known], sigma0_2, posterior),
        "posterior_variance": theory.personal_posterior(sigma2[known], sigma2[known], sigma0_2, posterior).variance,
    }
    ours.pop("asked_steps")  # test_selffl_options.py
    for name, values in ours.items():
        np.testing.assert_allclose(values[known], of_theory[name], rtol=1e-5)
        assert np.isnan(values[~known]).all()


def test_state_and_traffic(tmp_path):
    """Two vectors and three scalars; up θ_m, σ_m²; down θ, σ0², S_m and whether the round is a warm one."""
    runner = train(quadratics(), SelfFL(), tmp_path, rounds=3)
    assert sorted(x.numel() for x in runner.clients.store.like.values()) == [1, 1, 1, 3, 3]
    assert runner.traffic == {"bytes_up": 3 * 4 * 4 * (3 + 1), "bytes_down": 3 * 4 * 4 * (3 + 3)}


WRONG = ["l_max=0", "smoothing=0", "smoothing=1.1", "warm_rounds=-1", "window=1", "window=-1", "cluster_count=0"]


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_out_of_range_is_refused(wrong):
    name, value = wrong.split("=")
    with pytest.raises(ConfigError, match=rf"algorithm\.{name} = {value}: must be"):
        SelfFL(**{name: float(value) if "." in value else int(value)})
