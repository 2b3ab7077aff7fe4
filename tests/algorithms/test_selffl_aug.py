"""Algorithm 2; and where both algorithms end on the Gaussian model when the variances are known."""

import numpy as np
import pytest

from personafl.algorithms import FedAvg, SelfFL, SelfFLAug
from personafl.errors import ConfigError
from personafl_papers import theory
from tests.oracles.quadratic import personal, quadratics, server, states, train
from tests.oracles.selffl import ByHand, Known, KnownAug, context, follow, handmade, message, reported, with_known

LR, STEPS = 0.2, 3
FULL, HALF, FEW = (4, 1.0, 6), (8, 0.5, 6), (12, 0.34, 6)  # clients, activity, rounds
THETA_HAT = np.array([-1.0, 0.3, 1.2, 2.0, 0.8])
SIGMA2 = np.array([0.05, 0.1, 0.08, 0.3, 0.2])


@pytest.mark.parametrize("posterior, variance, scope", [("paper", "sum", "cohort"), ("exact", "mean", "all")])
@pytest.mark.parametrize("setting", [FULL, HALF, FEW], ids=["full", "half", "few"])
@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_every_round_equals_the_algorithm_by_hand(tmp_path, engine, setting, posterior, variance, scope):
    options = {"posterior": posterior, "variance": variance, "scope": scope, "l_max": 12}
    hand = ByHand(quadratics(setting[0]), LR, STEPS, extra=4, **options)
    follow(SelfFLAug(extra_steps=4, tolerance=0.0, **options), hand, setting, tmp_path, engine)


@pytest.mark.parametrize("activity", [1.0, 0.4])
def test_without_extra_steps_it_is_selffl(tmp_path, activity):
    ours, plain = (
        train(quadratics(8), a, tmp_path, 6, LR, STEPS, activity=activity) for a in (SelfFLAug(extra_steps=0), SelfFL())
    )
    for name in plain.server:
        np.testing.assert_array_equal(server(ours, name), server(plain, name))
    for name, values in states(plain).items():
        np.testing.assert_array_equal(states(ours)[name], values)
    np.testing.assert_array_equal(ours.steps, plain.steps)
    np.testing.assert_array_equal(personal(ours), personal(plain))


def test_the_server_gets_local_optima_and_the_client_keeps_the_early_stopped(tmp_path):
    problem, by_hand = quadratics(), ByHand(quadratics(), LR, STEPS)
    runner = train(problem, SelfFLAug(extra_steps=200, tolerance=0.0), tmp_path, 1, LR, STEPS)
    np.testing.assert_allclose(states(runner)["theta"], problem.z, atol=1e-4)
    early = [by_hand.descend(m, np.zeros(3), STEPS) for m in range(4)]
    np.testing.assert_allclose(personal(runner), early, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(server(runner), problem.z.mean(0), atol=1e-4)
    np.testing.assert_allclose(server(runner, "sigma0_2"), 4 * problem.z.var(0).sum(), rtol=1e-4)


def descent(algorithm, steps, factor=0.5, target=10.0):
    """One client's steps, each of which leaves `factor` of the way to `target`: the carry after each."""
    ctx = context(lr=1 - factor, steps=steps)
    carry, total = algorithm.begin(handmade(1.0, t=0.0), message(-1.0, 0.0), ctx)
    rows = []
    for _ in range(int(total)):
        carry = {name: value.clone() for name, value in carry.items()}
        carry = algorithm.step(carry, {}, lambda theta: theta - target, ctx)
        rows.append({name: value.clone() for name, value in carry.items()})
    return rows


@pytest.mark.parametrize("tolerance", [1e-1, 1e-2, 1e-3])
def test_a_client_that_has_converged_stays_put(tolerance):
    """Converged: ‖step‖/‖θ‖, averaged from 1 with factor 0.9, is not above the tolerance."""
    theta, moved, taken = 0.0, 1.0, 0
    while taken < 5 or moved > tolerance:
        after = theta + 0.1 * (10 - theta)
        moved, theta, taken = 0.9 * moved + 0.1 * abs(after - theta) / after, after, taken + 1
    rows = descent(SelfFLAug(extra_steps=300, tolerance=tolerance), steps=5, factor=0.9)
    path = np.array([float(row["theta"]) for row in rows])
    assert 5 < taken < 150 and len(rows) == 305
    assert (np.diff(path[:taken]) > 0).all() and (path[taken - 1 :] == path[-1]).all()
    assert path[-1] == pytest.approx(theta, rel=1e-5)


def test_the_cap_holds_and_the_personal_model_is_that_after_l_steps():
    rows = descent(SelfFLAug(extra_steps=7, tolerance=0.0), steps=4)
    assert len(rows) == 4 + 7
    assert float(rows[-1]["theta"]) == pytest.approx(10 * (1 - 0.5**11))
    assert [float(row["personal"]) for row in rows[3:]] == [pytest.approx(10 * (1 - 0.5**4))] * 8


def test_the_early_steps_are_taken_even_by_a_client_that_has_converged():
    rows = descent(SelfFLAug(extra_steps=5, tolerance=2.0), steps=4)
    assert float(rows[-1]["personal"]) == float(rows[-1]["theta"]) == pytest.approx(10 * (1 - 0.5**4))


def test_warm_rounds_are_fedavg(tmp_path):
    ours, plain = (
        train(quadratics(), a, tmp_path, 1, LR, STEPS) for a in (SelfFLAug(warm_rounds=1, extra_steps=5), FedAvg())
    )
    np.testing.assert_array_equal(server(ours), server(plain))


def test_state_and_traffic(tmp_path):
    """Three vectors and four scalars; up θ_{m,t}, θ_m^t, σ_m²; down as selffl."""
    runner = train(quadratics(), SelfFLAug(extra_steps=1), tmp_path, rounds=3)
    assert sorted(x.numel() for x in runner.clients.store.like.values()) == [1, 1, 1, 1, 3, 3, 3]
    assert runner.traffic == {"bytes_up": 3 * 4 * 4 * (2 * 3 + 1), "bytes_down": 3 * 4 * 4 * (3 + 3)}
    assert SelfFLAug.about.traffic == ("2", "1")


@pytest.mark.parametrize("name, value", [("extra_steps", -1), ("tolerance", -0.1), ("l_max", 0)])
def test_what_is_out_of_range_is_refused(name, value):
    with pytest.raises(ConfigError, match=rf"algorithm\.{name} = {value}: must be"):
        SelfFLAug(**{name: value})


@pytest.mark.parametrize(
    ("sigma0_2", "posterior"),
    [
        (0.3, "exact"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [(0.0, "paper"), (0.3, "paper"), (0.0, "exact")]),
    ],
)
def test_with_known_variances_algorithm_2_reaches_the_posterior(tmp_path, sigma0_2, posterior):
    """In two rounds θ = θ^(G) and, up to whole numbers of steps, θ_m = θ_m^(FL); with σ0² = 0 all are one mean."""
    lr = 0.002
    algorithm = KnownAug(posterior=posterior, l_max=500, extra_steps=1000, tolerance=0.0)
    runner = with_known(algorithm, THETA_HAT, SIGMA2, sigma0_2, tmp_path, lr)
    runner.step(), runner.step()
    contraction, steps = 1 - lr / SIGMA2, runner.steps - 1000
    end = theory.fixed_point(THETA_HAT, SIGMA2, sigma0_2, contraction=contraction, steps=steps, algorithm=2)
    np.testing.assert_allclose(server(runner), theory.global_posterior(THETA_HAT, SIGMA2, sigma0_2).mean, atol=0.01)
    np.testing.assert_allclose(personal(runner)[:, 0], end.personal, atol=0.01)
    best = theory.personal_posterior(THETA_HAT, SIGMA2, sigma0_2, posterior).mean
    np.testing.assert_allclose(personal(runner)[:, 0], best, atol=0.08)


@pytest.mark.parametrize("posterior", ["paper", "exact"])
def test_with_known_variances_it_reaches_the_fixed_point_within_the_bound(tmp_path, posterior):
    sigma0_2, lr, start, rounds = 0.3, 0.01, -2.0, 60
    steps = theory.local_steps(SIGMA2, sigma0_2, theory.step_rate(SIGMA2, lr), l_max=40, posterior=posterior)
    given = {"contraction": 1 - lr / SIGMA2, "steps": steps}
    path = theory.simulate(THETA_HAT, SIGMA2, sigma0_2, start, rounds, **given)
    bound = theory.convergence_bound(THETA_HAT, SIGMA2, sigma0_2, start, rounds, posterior=posterior, **given)
    best = theory.personal_posterior(THETA_HAT, SIGMA2, sigma0_2, posterior).mean
    overall = theory.global_posterior(THETA_HAT, SIGMA2, sigma0_2).mean
    runner = with_known(Known(posterior=posterior), THETA_HAT, SIGMA2, sigma0_2, tmp_path, lr, start)
    for t in range(1, rounds + 1):
        runner.step()
        ours = personal(runner)[:, 0]
        np.testing.assert_array_equal(runner.steps, steps)
        np.testing.assert_allclose(ours, path.personal[t], atol=1e-5)
        assert np.abs(ours - best).max() <= bound.personal[t] + 1e-5
        assert np.abs(server(runner) - overall).max() <= bound.server[t] + 1e-5
    end = theory.fixed_point(THETA_HAT, SIGMA2, sigma0_2, **given)
    np.testing.assert_allclose(ours, end.personal, atol=1e-5)
    np.testing.assert_allclose(server(runner), end.server, atol=1e-5)


@pytest.mark.parametrize("posterior", ["paper", "exact"])
def test_clients_that_have_nothing_in_common_learn_alone(tmp_path, posterior):
    runner = with_known(Known(posterior=posterior, l_max=500), THETA_HAT, SIGMA2, 1e5, tmp_path, lr=0.02)
    for _ in range(2):
        runner.step()
    assert runner.steps.max() < 500
    np.testing.assert_allclose(personal(runner)[:, 0], THETA_HAT, atol=1e-4)
    np.testing.assert_allclose(server(runner), THETA_HAT.mean(), atol=1e-4)
    np.testing.assert_allclose(reported(runner)["gain"], 1, atol=1e-4)


def test_clients_that_differ_in_nothing_but_noise(tmp_path):
    """σ0² = 0. θ^(FL) is the precision-weighted mean for all, but Algorithm 1 does not end there.

    The server ends at the weights p²/(1 + p), p the share of a client's precision, up to whole numbers of steps;
    personal models differ by O(p). With equal precisions the server does reach the mean.
    """
    lr = 0.002
    runner = with_known(Known(), THETA_HAT, SIGMA2, 0.0, tmp_path, lr)
    for _ in range(80):
        runner.step()
    p = (1 / SIGMA2) / (1 / SIGMA2).sum()
    u = p**2 / (1 + p)
    end = theory.fixed_point(THETA_HAT, SIGMA2, 0.0, contraction=1 - lr / SIGMA2, steps=runner.steps)
    np.testing.assert_allclose(server(runner), end.server, atol=1e-5)
    np.testing.assert_allclose(personal(runner)[:, 0], end.personal, atol=1e-5)
    np.testing.assert_allclose(server(runner), u @ THETA_HAT / u.sum(), atol=0.03)
    assert abs(server(runner)[0] - p @ THETA_HAT) > 0.1
    assert np.ptp(personal(runner)) < np.ptp(THETA_HAT) * p.max()
    alike = with_known(Known(), THETA_HAT, np.full(5, 0.1), 0.0, tmp_path, lr)
    for _ in range(40):
        alike.step()
    np.testing.assert_allclose(server(alike), THETA_HAT.mean(), atol=1e-4)


def test_a_client_with_far_better_data_gains_nothing_and_gives_much(tmp_path):
    """Third remark: GAIN_1 ≈ 1, GAIN_k ≥ 1 + σ_k²/(σ0² + σ_1²), which is the paper's σ_k²/σ_1² if σ0² ≪ σ_1²."""
    sigma2 = np.array([1e-3, 0.5, 0.6, 0.8])
    for sigma0_2 in (0.3, 1e-6):
        runner = with_known(Known(), THETA_HAT[:4], sigma2, sigma0_2, tmp_path, lr=5e-4)
        for _ in range(3):
            runner.step()
        gain = reported(runner)["gain"]
        assert gain[0] == pytest.approx(1, abs=0.01) and gain[1:].min() > 2
        assert (gain[1:] >= 1 + sigma2[1:] / (sigma0_2 + sigma2[0])).all()
        assert (gain[1:] >= sigma2[1:] / sigma2[0]).all() == (sigma0_2 < 1e-3)
        np.testing.assert_allclose(personal(runner)[0], THETA_HAT[0], atol=0.02)
