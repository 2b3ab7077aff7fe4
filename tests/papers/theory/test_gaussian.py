"""The closed forms against linear algebra on the joint distribution, the papers' remarks, and the degenerate cases."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personafl_papers import theory

POSTERIORS = ["paper", "exact"]


# --- the oracle: the joint distribution of (θ_0, θ_1 … θ_M, θ̂_1 … θ̂_M), conditioned on θ̂


def conditioned(theta_hat, sigma2, sigma0_2, tied=None, prior=1e7):
    """Mean and variance of (θ_0, θ_1 … θ_M) given θ̂, for θ_0 ~ N(0, prior); `tied` is the client with θ_m = θ_0."""
    M = len(sigma2)
    spread = np.full(M, sigma0_2)
    if tied is not None:
        spread[tied] = 0.0
    # Every variable is a sum of independent ones: θ_0, the M deviations of θ_m from it, the M errors of θ̂_m.
    theta = np.hstack([np.ones((M, 1)), np.eye(M), np.zeros((M, M))])
    observed = theta + np.hstack([np.zeros((M, M + 1)), np.eye(M)])
    parts = np.vstack([np.eye(1, 2 * M + 1), theta, observed])
    covariance = parts @ np.diag(np.concatenate([[prior], spread, sigma2])) @ parts.T
    hidden, seen = slice(0, M + 1), slice(M + 1, None)
    regression = np.linalg.solve(covariance[seen, seen], covariance[seen, hidden]).T
    posterior = covariance[hidden, hidden] - regression @ covariance[seen, hidden]
    return regression @ theta_hat, np.diag(posterior)


def clients(seed, M=6):
    draw = np.random.default_rng(seed)
    return draw.normal(1.6, 1.0, M), draw.uniform(0.05, 2.0, M), float(draw.uniform(0.05, 2.0))


@pytest.mark.parametrize("seed", range(4))
def test_global_and_exact_posteriors_are_those_of_the_joint_distribution(seed):
    theta_hat, sigma2, sigma0_2 = clients(seed)
    mean, variance = conditioned(theta_hat, sigma2, sigma0_2)
    found = theory.global_posterior(theta_hat, sigma2, sigma0_2)
    assert found.mean == pytest.approx(mean[0], abs=1e-6)
    assert found.variance == pytest.approx(variance[0], abs=1e-6)
    exact = theory.exact_posterior(theta_hat, sigma2, sigma0_2)
    np.testing.assert_allclose(exact.mean, mean[1:], atol=1e-6)
    np.testing.assert_allclose(exact.variance, variance[1:], atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("precision", [0.1, 3.0])
def test_with_a_prior_they_are_too(seed, precision):
    theta_hat, sigma2, sigma0_2 = clients(seed, M=1 + 2 * seed)
    prior = theory.Prior(2.5, precision)
    mean, variance = conditioned(theta_hat - 2.5, sigma2, sigma0_2, prior=1 / precision)
    found = theory.global_posterior(theta_hat, sigma2, sigma0_2, prior)
    assert found.mean == pytest.approx(2.5 + mean[0]) and found.variance == pytest.approx(variance[0])
    exact = theory.personal_posterior(theta_hat, sigma2, sigma0_2, "exact", prior)
    np.testing.assert_allclose(exact.mean, 2.5 + mean[1:])
    np.testing.assert_allclose(exact.variance, variance[1:])
    np.testing.assert_allclose(theory.gain(sigma2, sigma0_2, "exact", prior), sigma2 / variance[1:])
    paper = theory.personal_posterior(theta_hat, sigma2, sigma0_2, "paper", prior)
    for m in range(len(sigma2)):
        mean, variance = conditioned(theta_hat - 2.5, sigma2, sigma0_2, tied=m, prior=1 / precision)
        assert paper.mean[m] == pytest.approx(2.5 + mean[1 + m])
        assert paper.variance[m] == pytest.approx(variance[1 + m])


@pytest.mark.parametrize("seed", range(4))
def test_the_papers_posterior_is_that_of_a_client_at_the_centre(seed):
    theta_hat, sigma2, sigma0_2 = clients(seed)
    paper = theory.fl_posterior(theta_hat, sigma2, sigma0_2)
    for m in range(len(sigma2)):
        mean, variance = conditioned(theta_hat, sigma2, sigma0_2, tied=m)
        assert paper.mean[m] == pytest.approx(mean[1 + m], abs=1e-6)
        assert paper.variance[m] == pytest.approx(variance[1 + m], abs=1e-6)


def test_equation_3_as_printed():
    theta_hat, sigma2, sigma0_2 = clients(7)
    paper = theory.fl_posterior(theta_hat, sigma2, sigma0_2)
    for m in range(len(sigma2)):
        others = [k for k in range(len(sigma2)) if k != m]
        S = sum(1 / (sigma0_2 + sigma2[k]) for k in others)
        pull = sum(theta_hat[k] / (sigma0_2 + sigma2[k]) for k in others)
        assert paper.mean[m] == pytest.approx((theta_hat[m] / sigma2[m] + pull) / (1 / sigma2[m] + S))
        assert paper.variance[m] == pytest.approx(1 / (1 / sigma2[m] + S))
        assert theory.gain(sigma2, sigma0_2)[m] == pytest.approx(1 + sigma2[m] * S)


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_gain_is_the_ratio_of_the_variances(posterior):
    theta_hat, sigma2, sigma0_2 = clients(3)
    local = theory.local_posterior(theta_hat, sigma2)
    joined = theory.personal_posterior(theta_hat, sigma2, sigma0_2, posterior)
    np.testing.assert_allclose(theory.gain(sigma2, sigma0_2, posterior), local.variance / joined.variance)


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_vectors_are_coordinates_side_by_side(posterior):
    _, sigma2, sigma0_2 = clients(0)
    theta_hat = np.random.default_rng(0).standard_normal((6, 3))
    together = theory.personal_posterior(theta_hat, sigma2, sigma0_2, posterior).mean
    for j in range(3):
        np.testing.assert_allclose(
            together[:, j], theory.personal_posterior(theta_hat[:, j], sigma2, sigma0_2, posterior).mean
        )
        server = theory.global_posterior(theta_hat, sigma2, sigma0_2).mean
        assert server[j] == pytest.approx(theory.global_posterior(theta_hat[:, j], sigma2, sigma0_2).mean)


# --- the synthetic study (preprint appendix E.1)


@pytest.mark.parametrize(
    ("sigma0_2", "most", "oracle"),
    [(0.001, 20, (0.0661, 0.0286, 0.0284, 0.0271)), (1.0, 200, (0.0294, 0.7803, 0.0374, 0.0293))],
    ids=["case 1", "case 2"],
)
def test_oracle_errors_of_the_synthetic_study(sigma0_2, most, oracle):
    """Mean |estimate − θ_m| over 20 clients and 2,000 draws, sample sizes drawn anew each time."""
    draw = np.random.default_rng(4)
    errors = np.empty((2000, 4))
    for i in range(len(errors)):
        sigma2 = theory.intra_client_variance(0.1, draw.integers(10, most, size=20, endpoint=True))
        truth = draw.normal(1.6, np.sqrt(sigma0_2), 20)
        theta_hat = draw.normal(truth, np.sqrt(sigma2))
        estimates = (
            theta_hat,
            theory.global_posterior(theta_hat, sigma2, sigma0_2).mean,
            theory.fl_posterior(theta_hat, sigma2, sigma0_2).mean,
            theory.exact_posterior(theta_hat, sigma2, sigma0_2).mean,
        )
        errors[i] = [np.abs(estimate - truth).mean() for estimate in estimates]
    # The oracle's numbers are such means themselves, given to four digits.
    tolerance = 4 * np.sqrt(2) * errors.std(0) / np.sqrt(len(errors)) + 5e-5
    assert np.all(np.abs(errors.mean(0) - oracle) < tolerance)
    local, _, paper, exact = errors.mean(0)
    assert exact < local
    assert exact < paper
    assert (paper < local) == (sigma0_2 < 0.1), "where clients differ much, the paper's posterior is worse than none"


# --- Remark 2.1


@pytest.mark.parametrize("posterior", POSTERIORS)
@pytest.mark.parametrize("sigma0_2", [1e12, 1e30, np.inf])
def test_unrelated_clients_learn_alone(posterior, sigma0_2):
    theta_hat, sigma2, _ = clients(1)
    found = theory.personal_posterior(theta_hat, sigma2, sigma0_2, posterior)
    np.testing.assert_allclose(found.mean, theta_hat, atol=1e-9)
    np.testing.assert_allclose(found.variance, sigma2, atol=1e-9)
    np.testing.assert_allclose(theory.gain(sigma2, sigma0_2, posterior), 1.0, atol=1e-9)
    assert theory.global_posterior(theta_hat, sigma2, sigma0_2).mean == pytest.approx(theta_hat.mean())


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_identical_clients_share_the_precision_weighted_mean(posterior):
    theta_hat, sigma2, _ = clients(2)
    found = theory.personal_posterior(theta_hat, sigma2, 0.0, posterior)
    np.testing.assert_allclose(found.mean, np.average(theta_hat, weights=1 / sigma2))
    np.testing.assert_allclose(found.variance, 1 / (1 / sigma2).sum())
    assert theory.global_posterior(theta_hat, sigma2, 0.0).mean == pytest.approx(found.mean[0])


@pytest.mark.parametrize(("posterior", "detour"), [("paper", 1), ("exact", 2)])
def test_a_client_with_far_better_data_learns_alone_and_helps(posterior, detour):
    theta_hat = np.array([0.0, 3.0, -1.0, 2.0])
    sigma2, sigma0_2 = np.array([1e-6, 4.0, 5.0, 6.0]), 1e-2
    found = theory.personal_posterior(theta_hat, sigma2, sigma0_2, posterior)
    gain = theory.gain(sigma2, sigma0_2, posterior)
    assert found.mean[0] == pytest.approx(theta_hat[0], abs=1e-3)
    assert gain[0] == pytest.approx(1.0, abs=1e-3)
    assert np.all(gain[1:] >= 1 + sigma2[1:] / (detour * sigma0_2 + sigma2[0]))
    assert np.all(gain[1:] > 100)
    assert np.all(np.abs(found.mean[1:] - theta_hat[0]) < 0.05)
    # The remark's GAIN_2 ≥ σ_2²/σ_1² does not hold under its own assumption σ_1² ≪ σ0².
    assert np.all(gain[1:] < sigma2[1:] / sigma2[0])


@given(seed=st.integers(0, 2**31), M=st.integers(2, 12))
@settings(max_examples=50, deadline=None)
def test_the_paper_never_claims_less_than_the_exact_gain(seed, M):
    _, sigma2, sigma0_2 = clients(seed, M)
    paper, exact = (theory.gain(sigma2, sigma0_2, posterior) for posterior in POSTERIORS)
    assert np.all(paper >= exact)
    assert np.all(exact >= 1)
    assert np.all(exact <= 1 + sigma2 / sigma0_2), "the others cannot tell more of θ_m than θ_0 does"


# --- where training starts, and how long it takes


@pytest.mark.parametrize("d", [None, 3])
def test_the_start_is_the_mean_of_the_others(d):
    _, sigma2, sigma0_2 = clients(5)
    theta_m = np.random.default_rng(1).standard_normal((6,) if d is None else (6, d))
    w = theory.client_weights(sigma2, sigma0_2)
    start = theory.initial_point(np.average(theta_m, axis=0, weights=w), theta_m, sigma2, sigma0_2)
    for m in range(6):
        rest = np.arange(6) != m
        np.testing.assert_allclose(start[m], np.average(theta_m[rest], axis=0, weights=w[rest]))
    np.testing.assert_allclose(start, theory.others_mean(theta_m, w))


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_the_start_and_the_steps_of_the_paper_lead_to_the_posterior_mean(posterior):
    """(6), (7) and (8) together: that is what they are for."""
    theta_hat, sigma2, sigma0_2 = clients(6)
    start = theory.others_mean(theta_hat, theory.client_weights(sigma2, sigma0_2))
    rate = theory.step_rate(sigma2, lr=0.01)
    np.testing.assert_allclose(1 - rate, 1 - 0.01 / sigma2)
    steps = theory.ideal_steps(sigma2, sigma0_2, rate, posterior)
    reached = (1 - (1 - rate) ** steps) * theta_hat + (1 - rate) ** steps * start
    np.testing.assert_allclose(reached, theory.personal_posterior(theta_hat, sigma2, sigma0_2, posterior).mean)


def test_the_rate_of_algorithm_1_is_that_of_mean_gradients_over_a_full_batch():
    draw, v2, lr = np.random.default_rng(0), 0.3, 0.05
    x = draw.normal(2.0, np.sqrt(v2), 25)

    def gradient(theta):  # mean over the batch of the negative log-likelihood (θ − x)²/(2v²)
        return (theta - x).mean() / v2

    theta = 7.0
    left = (theta - lr * gradient(theta) - x.mean()) / (theta - x.mean())
    sigma2 = theory.intra_client_variance(v2, [25])
    assert left == pytest.approx(1 - theory.step_rate(sigma2, lr, batch_size=25)[0])


def test_the_number_of_steps_is_rounded_up_within_its_limits():
    sigma2, rate = np.full(3, 1.0), np.array([0.3, 1e-4, 0.9])  # a half is to be kept of the start
    np.testing.assert_allclose(theory.retention(sigma2, 1.0), 0.5)
    np.testing.assert_allclose(theory.ideal_steps(sigma2, 1.0, rate), np.log(0.5) / np.log(1 - rate))
    assert theory.local_steps(sigma2, 1.0, rate, l_max=40).tolist() == [2, 40, 1]
    assert theory.local_steps(sigma2, 1.0, 1 - 0.5 ** (1 / 7), l_max=40).tolist() == [7, 7, 7], "7 is not rounded up"


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_more_difference_between_clients_means_more_steps(posterior):
    _, sigma2, _ = clients(8)
    grid = np.logspace(-4, 4, 30)
    for rate in (0.05, theory.step_rate(sigma2, lr=0.01)):
        steps = np.array([theory.ideal_steps(sigma2, sigma0_2, rate, posterior) for sigma0_2 in grid])
        assert np.all(np.diff(steps, axis=0) > 0)


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_better_data_mean_more_local_training(posterior):
    """More of its own optimum, hence more steps at a given rate; but fewer where better data make longer steps."""
    sigma2 = np.full(8, 0.5)
    at_a_rate, at_an_lr, own = [], [], []
    for quality in np.logspace(0, 3, 20):
        sigma2[0] = 0.5 / quality
        own.append(1 - theory.retention(sigma2, 0.2, posterior)[0])
        at_a_rate.append(theory.ideal_steps(sigma2, 0.2, 0.05, posterior)[0])
        at_an_lr.append(theory.ideal_steps(sigma2, 0.2, theory.step_rate(sigma2, lr=2e-4), posterior)[0])
    assert np.all(np.diff(own) > 0)
    assert np.all(np.diff(at_a_rate) > 0)
    assert np.all(np.diff(at_an_lr) < 0), "the claim after (14) does not hold for (8) at a fixed learning rate"


# --- Remark 2.3 of the preprint


def test_regime_of_much_data_and_few_clients():
    M, v2, sigma0_2 = 200, 1.3, 0.7
    for N, tolerance in ((1e6, 1e-2), (1e8, 6e-3)):  # M − 1 for M leaves half a percent
        kept = theory.retention(theory.intra_client_variance(v2, np.full(M, N)), sigma0_2)
        np.testing.assert_allclose(kept, M / N * v2 / sigma0_2, rtol=tolerance)


def test_regime_of_little_data_and_many_clients():
    N, M, v2, sigma0_2, lr = 300, 10**6, 1.3, 0.7, 1e-9
    sigma2 = theory.intra_client_variance(v2, np.full(M, N))
    np.testing.assert_allclose(1 - theory.retention(sigma2, sigma0_2), N / M * sigma0_2 / v2, rtol=1e-2)
    np.testing.assert_allclose(
        lr * theory.ideal_steps(sigma2, sigma0_2, theory.step_rate(sigma2, lr)), sigma0_2 / M, rtol=1e-2
    )
    # Here the posteriors part: exactly, many clients reveal θ_0 and no more, and a client never stops mattering.
    exact = theory.retention(sigma2, sigma0_2, "exact")
    np.testing.assert_allclose(exact, 1 / (1 + N * sigma0_2 / v2), rtol=1e-2)


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_regime_of_homogeneous_clients(posterior):
    draw, v2, lr = np.random.default_rng(0), 1.3, 1e-7
    N = draw.integers(50, 150, 2000)
    sigma2 = theory.intra_client_variance(v2, N)
    np.testing.assert_allclose(theory.retention(sigma2, 0.0, posterior), 1 - N / N.sum())
    ahead = lr * theory.ideal_steps(sigma2, 0.0, theory.step_rate(sigma2, lr), posterior)
    np.testing.assert_allclose(ahead, v2 / N.sum(), rtol=1e-3)


# --- degenerate cases

variances = st.one_of(st.sampled_from([0.0, 1e-300, 1.0, 1e300, np.inf]), st.floats(0, 1e6))


@given(
    sigma2=st.lists(variances, min_size=1, max_size=6),
    sigma0_2=variances,
    lr=st.sampled_from([0.0, 1e-4, 1.0, 1e6]),
    posterior=st.sampled_from(POSTERIORS),
    seed=st.integers(0, 100),
)
@settings(max_examples=300, deadline=None)
def test_no_variance_makes_a_nan(sigma2, sigma0_2, lr, posterior, seed):
    theta_hat = np.random.default_rng(seed).normal(0, 10, len(sigma2))
    low, high = theta_hat.min() - 1e-9, theta_hat.max() + 1e-9
    with np.errstate(all="raise", under="ignore"):
        server = theory.global_posterior(theta_hat, sigma2, sigma0_2)
        personal = theory.personal_posterior(theta_hat, sigma2, sigma0_2, posterior)
        gain = theory.gain(sigma2, sigma0_2, posterior)
        start = theory.initial_point(server.mean, theta_hat, sigma2, sigma0_2)
        rate = theory.step_rate(sigma2, lr, batch_size=10)
        steps = theory.local_steps(sigma2, sigma0_2, rate, l_max=40, posterior=posterior)
    assert low <= server.mean <= high
    assert np.all((personal.mean >= low) & (personal.mean <= high))
    assert np.all(np.isfinite(personal.variance) & (personal.variance >= 0))
    assert np.all(np.isfinite(gain) & (gain >= 1))
    assert np.all((start >= low - (high - low)) & (start <= high + (high - low)))
    assert np.all((steps >= 1) & (steps <= 40))


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_a_single_client_is_left_to_itself(posterior):
    found = theory.personal_posterior([3.0], [0.5], 1.0, posterior)
    assert (found.mean[0], found.variance[0]) == (3.0, 0.5)
    assert theory.gain([0.5], 1.0, posterior).tolist() == [1.0]
    assert theory.initial_point(2.0, [3.0], [0.5], 1.0).tolist() == [2.0], "S_m = 0: no shift"
    assert theory.local_steps([0.5], 1.0, 0.1, l_max=40, posterior=posterior).tolist() == [40]


def test_documented_rules_for_steps():
    three = np.ones(3)
    assert theory.local_steps(three, 1.0, [1.0, 1.5, 1e9], l_max=40).tolist() == [1, 1, 1], "b ≤ 0"
    assert theory.local_steps(three, 1.0, 0.0, l_max=40).tolist() == [40, 40, 40], "steps that do nothing"
    assert theory.local_steps([0.0, 1.0, 1.0], 1.0, 0.1, l_max=40)[0] == 40, "perfect own data"


def test_the_shift_is_capped_for_a_client_that_outweighs_the_others():
    assert theory.shift_ratio([1e-3, 1.0], 0.0).tolist() == pytest.approx([1.0, 1e-3])
    assert theory.shift_ratio([1e-3, 1.0], 0.0, shift_cap=np.inf).tolist() == pytest.approx([1e3, 1e-3])
    assert theory.initial_point(0.0, [1.0, -1.0], [1e-3, 1.0], 0.0).tolist() == pytest.approx([-1.0, 1e-3])


def test_the_others_are_not_lost_next_to_an_overwhelming_client():
    w = theory.client_weights([0.0, 1.0, 1.0], 0.0)
    assert theory.others_weight(w)[0] == pytest.approx(2.0)
    assert theory.others_mean([5.0, 1.0, 2.0], w)[0] == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: theory.gain([1.0, -1.0], 1.0), "sigma2 must be 0 or more"),
        (lambda: theory.gain([1.0, np.nan], 1.0), "sigma2 must be 0 or more"),
        (lambda: theory.gain([], 1.0), "expected \\(M,\\)"),
        (lambda: theory.gain([1.0], np.nan), "sigma0_2 = nan"),
        (lambda: theory.gain([1.0], 1.0, "bayes"), "only paper and exact"),
        (lambda: theory.fl_posterior([1.0], [1.0, 2.0], 1.0), "expected \\(2,\\) or \\(2, d\\)"),
        (lambda: theory.local_steps([1.0], 1.0, -0.1, l_max=4), "rate must be"),
        (lambda: theory.local_steps([1.0], 1.0, 0.1, l_max=0), "l_max = 0"),
        (lambda: theory.intra_client_variance(1.0, [0, 3]), "at least 1"),
    ],
)
def test_what_cannot_be_is_refused(call, complaint):
    with pytest.raises(ValueError, match=complaint):
        call()
