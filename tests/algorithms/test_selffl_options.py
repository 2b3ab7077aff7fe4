"""Self-FL's gradients of sums, its η_m, Fisher information, prior on θ_0, and the ℓ that (8) asks for."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

import personafl as pf
from personafl.algorithms import SelfFL, SelfFLAug
from personafl.algorithms.selffl_options import rate_asked
from personafl.errors import ConfigError
from personafl.federation import Federation
from personafl.kernels.per_sample import PerSample
from personafl.settings import Local
from personafl.training.privacy import Privacy
from personafl_papers import theory
from tests.algorithms.test_selffl import one_round
from tests.engines.test_agreement import assert_agree, everything, federation, run
from tests.oracles.quadratic import Quadratics, personal, quadratics, server, states, train
from tests.oracles.selffl import ByHand, Known, KnownAug, context, follow, handmade, message, reported, with_known

LR, STEPS = 0.2, 3
THETA_HAT = np.array([-1.0, 0.3, 1.2, 2.0, 0.8])
SIGMA2 = np.array([0.05, 0.1, 0.08, 0.3, 0.2])
ENGINES = ("loop", "stacked", "threaded")
OPTIONS = {
    "sum": {"gradient": "sum"},
    "solved": {"rate": "solved", "rate_max": 3.0},
    "fisher": {"sigma": "fisher"},
    "prior": {"prior": 0.3, "posterior": "exact"},
    "all": {"gradient": "sum", "rate": "solved", "sigma": "fisher", "prior": 0.3, "scope": "all"},
}


@pytest.mark.parametrize("name, options", [*(("selffl", options) for options in OPTIONS), ("selffl-aug", "all")])
def test_engines_agree(tmp_path, name, options):
    """Clients of 2 to 28 samples, of whom 60% are active; batches of 4, the last ones smaller."""
    local = Local(lr=0.02, batch_size=4, epochs=2)
    loop, *others = (
        everything(run(engine, name, "mlp with dropout", tmp_path, local, 0.6, rounds=4, **OPTIONS[options]))
        for engine in ENGINES
    )
    for other in others:
        assert_agree(loop, other)


# --- gradients of sums ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize("setting", [(4, 1.0, 6), (12, 0.34, 6)], ids=["full", "few"])
def test_a_sum_over_a_full_batch_is_the_mean_times_the_samples(tmp_path, setting, engine):
    hand = ByHand(quadratics(setting[0]), 0.015, STEPS, l_max=12, gradient="sum")
    follow(SelfFL(l_max=12, gradient="sum"), hand, setting, tmp_path, engine)


@pytest.mark.parametrize("algorithm", [SelfFL(gradient="sum"), SelfFLAug(gradient="sum", extra_steps=0)])
@pytest.mark.parametrize("engine", ENGINES)
def test_smaller_last_batches_have_smaller_sums(tmp_path, engine, algorithm):
    """Samples of a client are alike, so each step leaves 1 − 2η·count of the way, whichever samples it sees."""
    sizes, lr, steps = (7, 5, 3, 2), 0.05, 4
    data = {f"c{m}": {"train": (np.ones((n, 1), "f4"), np.full(n, m + 0.5, "f4"))} for m, n in enumerate(sizes)}
    batches = {7: [3, 3, 1, 3], 5: [3, 2, 3, 2], 3: [3, 3, 3, 3], 2: [2, 2, 2, 2]}
    left = np.array([np.prod([1 - 2 * lr * count for count in batches[n]]) for n in sizes])
    problem = Quadratics(np.empty(0), np.zeros((4, 1)), np.array(sizes, float), Federation.from_clients(data))
    runner = train(problem, algorithm, tmp_path, 0, lr, steps, engine=engine, batch_size=3)
    runner.step()
    np.testing.assert_allclose(personal(runner)[:, 0], (1 - left) * (np.arange(4) + 0.5), rtol=1e-5)


def test_with_batches_of_independent_samples_the_sum_is_of_as_many_as_there_are_on_average(tmp_path):
    """Without noise, and with a clip that nothing reaches: the sum of the gradients that the steps see."""
    both = []
    for protected in (None, PerSample(clip=1e9, noise=0.0)):
        runner = train(quadratics(), SelfFL(gradient="sum"), tmp_path, 0, 0.01, STEPS)
        runner.clients.engine.protect_samples(protected)
        runner.step(), runner.step()
        both.append(personal(runner))
    np.testing.assert_allclose(*both, rtol=1e-5)


# --- η_m -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("posterior", ["paper", "exact"])
@pytest.mark.parametrize("steps", [{"l_max": 3}, {"use_steps": False}])
@pytest.mark.parametrize("prior", [0.0, 2.0])
def test_with_a_rate_of_its_own_every_client_ends_at_the_posterior_mean(tmp_path, posterior, steps, prior):
    """Algorithm 2 with known variances; (8) would ask for other numbers of steps at the settings' rate."""
    settings = {"posterior": posterior, "prior": prior, **steps, "extra_steps": 300, "tolerance": 0.0}
    algorithm = KnownAug(rate="solved", rate_max=1e3, **settings)
    runner = with_known(algorithm, THETA_HAT, SIGMA2, 0.3, tmp_path, 0.01, start=-2.0)
    runner.step(), runner.step()
    before = theory.Prior(-2.0, prior)
    overall = theory.global_posterior(THETA_HAT, SIGMA2, 0.3, before)
    best = theory.personal_posterior(THETA_HAT, SIGMA2, 0.3, posterior, before)
    np.testing.assert_allclose(server(runner), overall.mean, atol=1e-4)
    np.testing.assert_allclose(personal(runner)[:, 0], best.mean, atol=1e-4)
    asked, taken = reported(runner)["asked_steps"], runner.steps - 300
    assert (taken == steps.get("l_max", 5)).all() and np.abs(asked - taken).min() > 0.1


def test_algorithm_1_is_then_its_iteration_with_real_numbers_of_steps(tmp_path):
    runner = with_known(Known(rate="solved", rate_max=1e3, l_max=4), THETA_HAT, SIGMA2, 0.3, tmp_path, 0.01, -2.0)
    path = theory.simulate(THETA_HAT, SIGMA2, 0.3, -2.0, 10)
    for t in range(1, 11):
        runner.step()
        np.testing.assert_allclose(personal(runner)[:, 0], path.personal[t], atol=1e-5)
        np.testing.assert_allclose(server(runner)[0], path.server[t], atol=1e-5)


@pytest.mark.parametrize("B", [1, 10])
def test_the_rate_solves_8_for_the_steps(B):
    steps = np.array([1, 2, 7, 40])
    rate = rate_asked(torch.tensor(0.5), torch.tensor(3.0), torch.tensor(B), torch.from_numpy(steps)).double().numpy()
    np.testing.assert_allclose((1 - rate / (B * 0.5)) ** steps, 3 / (2 + 3), rtol=1e-5)


def test_the_rate_has_a_limit_and_is_that_of_the_settings_where_8_says_nothing():
    def rate(sigma2=0.5, sigma0_2=0.2, S=3.0, t=5.0, **options):
        own = {**handmade(sigma2, t), "asked": torch.tensor(-1.0)}
        return float(SelfFL(rate="solved", **options).begin(own, message(sigma0_2, S), context(0.01))[0]["rate"])

    assert rate(l_max=1) == pytest.approx(0.01) and rate(l_max=1, rate_max=1.5) == pytest.approx(0.015)
    assert rate(l_max=1, rate_max=1e3) == pytest.approx(0.5 * 0.4), "one step to the posterior mean"
    assert 0.009 < rate(l_max=1000) < 0.01, "the number of steps was rounded up"
    assert rate(t=1.0) == rate(S=0.0) == pytest.approx(0.01)
    assert rate(sigma2=1e-4, sigma0_2=0.0, S=1.0) < 1.01e-4, "no step beyond the optimum"


# --- the ℓ of (8) --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [Known(l_max=7), KnownAug(l_max=7, extra_steps=2), Known(use_steps=False)])
def test_the_report_has_the_steps_before_they_are_limited(tmp_path, algorithm):
    runner = with_known(algorithm, THETA_HAT, SIGMA2, 0.3, tmp_path, 0.01)
    runner.step()
    ideal = theory.ideal_steps(SIGMA2, 0.3, theory.step_rate(SIGMA2, 0.01))
    assert (ideal > 7).any() and (ideal < 7).any()
    np.testing.assert_allclose(reported(runner)["asked_steps"], ideal, rtol=1e-5)


@pytest.mark.parametrize("lr, asked", [(0.05, np.log(0.6) / np.log(0.9)), (0.5, 0.0), (5.0, 0.0)])
def test_a_step_to_the_optimum_or_beyond_asks_for_none(lr, asked):
    """σ_m² = .5 and S = 3: three fifths of the start are to be kept, and a step keeps 1 − 2η."""
    assert float(SelfFL().asked(handmade(0.5), message(0.2, 3.0), context(lr))) == pytest.approx(asked)


def test_the_report_has_none_while_8_has_no_answer(tmp_path):
    """Not before a client knows its variance, and not where there are no others."""
    runner = train(quadratics(8), SelfFL(), tmp_path, 4, LR, STEPS, activity=0.5)
    np.testing.assert_array_equal(np.isnan(reported(runner)["asked_steps"]), states(runner)["t"] < 3)
    assert {1.0, 2.0, 4.0} == set(states(runner)["t"])
    alone = train(quadratics(1), SelfFL(l_max=7), tmp_path, 4, LR, STEPS)
    assert np.isnan(reported(alone)["asked_steps"]).all() and alone.steps.tolist() == [7]


# --- Fisher information ----------------------------------------------------------------------------------------------


def by_hand(theta, x, y, damping):
    """Softmax regression: the gradient of a sample is (p − e_y) ⊗ (x, 1)."""
    weight, bias = theta[:144].reshape(4, 36), theta[144:]
    scores = x @ weight.T + bias
    p = np.exp(scores - scores.max(1, keepdims=True))
    apart = p / p.sum(1, keepdims=True) - np.eye(4)[y]
    squares = np.concatenate([((apart**2).T @ x**2).ravel(), (apart**2).sum(0)])  # N times the mean
    return (1 / (squares + damping)).sum()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("damping", [1.0, 0.01])
def test_the_variance_is_that_of_the_fisher_information(tmp_path, engine, damping):
    settings = {"sigma": "fisher", "damping": damping, "warm_rounds": 1}
    runner = run(
        engine, "selffl", "linear", tmp_path, Local(lr=0.05, batch_size=4, epochs=1), 1.0, rounds=1, **settings
    )
    assert (states(runner)["sigma2"] == 0).all() and (server(runner, "sigma2") == -1).all(), "still warm"
    runner.step()
    fed, own = federation(), states(runner)
    for m, start in enumerate(fed.starts("train")):
        here = slice(start, start + fed.sizes("train")[m])
        x, y = fed.x[here].flatten(1).double().numpy(), fed.y[here].numpy()
        assert own["sigma2"][m] == pytest.approx(by_hand(own["theta"][m], x, y, damping), rel=1e-4)
    np.testing.assert_allclose(server(runner, "sigma2"), own["sigma2"], rtol=1e-6)
    assert np.isfinite(reported(runner)["gain"]).all(), "known from the first activation on"


@pytest.mark.parametrize("algorithm", [SelfFL(sigma="fisher"), SelfFLAug(sigma="fisher")])
def test_where_there_is_no_fisher_information_it_is_refused(algorithm):
    with pytest.raises(ConfigError, match=r"algorithm\.sigma = 'fisher': must be .rounds. but for classification"):
        pf.train(quadratics().federation, nn.Linear(3, 1), algorithm, rounds=1, progress=False, loss="mse")
    norm = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(36), nn.Linear(36, 4))
    with pytest.raises(ConfigError, match=r"gradients of single samples: layer '1' .BatchNorm1d. normalizes over"):
        pf.train(federation(), norm, algorithm, rounds=1, progress=False)
    with pytest.raises(ConfigError, match=r"\[privacy\] cannot be combined with selffl.*Fisher information"):
        Privacy(clip=1.0, noise=1.0).check(algorithm)


# --- a prior on θ_0 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variance", ["sum", "mean"])
def test_the_server_takes_the_posterior_mean(variance):
    """From θ^0 = 5, of the round's own σ0²; half of the way, as the smoothing has it."""
    theta, sigma2 = np.array([0.0, 1.0, 2.0, 7.0]), np.array([1.0, 5.0, 9.0, 2.0])
    algorithm = SelfFL(smoothing=0.5, variance=variance, prior=0.4)
    begun = algorithm.new_server(torch.tensor([5.0]), 6)
    after = one_round(begun, [0, 1, 2, 3], theta.tolist(), sigma2.tolist(), algorithm)
    sigma0_2 = theta.var() * (4 if variance == "sum" else 1)
    expected = theory.global_posterior(theta, sigma2, sigma0_2, theory.Prior(5.0, 0.4)).mean
    assert float(after["theta"]) == pytest.approx(0.5 * 5 + 0.5 * expected, rel=1e-5)
    sent = algorithm.send(after, torch.arange(4))
    w = theory.client_weights(sigma2, sigma0_2)
    np.testing.assert_allclose(sent.each["S"], theory.others_weight(w) + 0.4, rtol=1e-5)


@pytest.mark.parametrize("scope", ["cohort", "all"])
@pytest.mark.parametrize("posterior", ["paper", "exact"])
@pytest.mark.parametrize("setting", [(4, 1.0, 6), (12, 0.34, 6)], ids=["full", "few"])
def test_every_round_with_a_prior_equals_the_algorithm_by_hand(tmp_path, setting, posterior, scope):
    options = {"posterior": posterior, "scope": scope, "prior": 0.05}
    follow(SelfFL(**options), ByHand(quadratics(setting[0]), LR, STEPS, **options), setting, tmp_path)


@pytest.mark.parametrize("posterior", ["paper", "exact"])
def test_gain_counts_the_prior_among_the_others(tmp_path, posterior):
    runner = train(quadratics(), SelfFL(posterior=posterior, prior=0.5), tmp_path, 4, LR, STEPS)
    sigma2, sigma0_2 = server(runner, "sigma2"), float(server(runner, "sigma0_2"))
    gain = theory.gain(sigma2, sigma0_2, posterior, theory.Prior(0.0, 0.5))
    np.testing.assert_allclose(reported(runner)["gain"], gain, rtol=1e-5)


def test_a_prior_that_is_certain_keeps_the_server_where_it_began(tmp_path):
    start = np.array([1.0, -2.0, 0.5])
    runner = train(quadratics(), SelfFL(prior=1e12), tmp_path, 3, LR, STEPS, start=start)
    np.testing.assert_allclose(server(runner), start, atol=1e-6)


def test_after_warm_rounds_the_prior_is_around_where_they_ended(tmp_path):
    runner = train(quadratics(), SelfFL(prior=1e12, warm_rounds=2), tmp_path, 2, LR, STEPS)
    warm = server(runner)
    runner.step()
    assert np.abs(server(runner) - warm).max() > 0.1, "nobody knows a variance yet: equal weights"
    runner.step()
    assert np.abs(warm).max() > 0.1
    np.testing.assert_allclose(server(runner), warm, atol=1e-6)
    np.testing.assert_array_equal(server(runner, "prior"), warm)


def test_clusters_are_weighed_against_the_prior(tmp_path):
    """Round 1 of test_selffl's clusters: one of them, θ_c = 4/3 with 1/(σ0² + σ_c²) = 1/7.5, against 1/2.5 at 3."""
    fed = dataclasses.replace(quadratics(6).federation, groups=tuple("bababb"))
    algorithm = SelfFL(clusters="group", variance="mean", prior=0.4)
    runner = train(dataclasses.replace(quadratics(6), federation=fed), algorithm, tmp_path, 0)
    begun = runner.algorithm.new_server(torch.tensor([3.0]), 6)
    first = one_round(begun, [1, 3], [0.0, 4.0], [1.0, 6.0], runner.algorithm)
    assert float(first["theta"]) == pytest.approx((4 / 3 / 7.5 + 0.4 * 3) / (1 / 7.5 + 0.4))


WRONG = [{"rate_max": 0.0}, {"damping": 0.0}, {"prior": -1.0}, {"prior": 1.0, "use_weights": False}]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_what_is_out_of_range_is_refused(wrong):
    with pytest.raises(ConfigError, match=rf"algorithm\.{next(iter(wrong))} = "):
        SelfFL(**wrong)


@pytest.mark.parametrize("wrong", [{"gradient": "total"}, {"rate": "fast"}, {"sigma": "hessian"}], ids=str)
def test_unknown_words_are_refused(wrong):
    with pytest.raises(ConfigError, match=rf"algorithm\.{next(iter(wrong))}"):
        pf.train(quadratics().federation, nn.Linear(3, 1), SelfFL(**wrong), rounds=1, progress=False)


def test_a_rate_that_is_solved_for_needs_sgd():
    local, algorithm = Local(optimizer="adam"), SelfFL(rate="solved", use_steps=False)
    with pytest.raises(ConfigError, match=r"local\.optimizer = 'adam': must be .sgd. for selffl"):
        pf.train(
            federation(),
            nn.Sequential(nn.Flatten(), nn.Linear(36, 4)),
            algorithm,
            rounds=1,
            local=local,
            progress=False,
        )
