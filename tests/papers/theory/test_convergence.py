"""The noiseless iteration: its fixed point by a linear solve, by hand and by simulation, and Proposition 3.1."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personafl_papers import theory

POSTERIORS = ["paper", "exact"]


def clients(seed, M=8, d=None):
    draw = np.random.default_rng(seed)
    theta_hat = draw.normal(1.6, 1.0, (M,) if d is None else (M, d))
    return theta_hat, draw.uniform(0.02, 0.4, M), float(draw.uniform(0.05, 1.0))


def whole_steps(sigma2, sigma0_2, posterior, h=2.0, lr=0.03, l_max=60):
    """Full-batch gradient steps on a mean loss of curvature h: everybody's contraction factor is 1 − ηh."""
    steps = theory.local_steps(sigma2, sigma0_2, lr * h, l_max=l_max, posterior=posterior)
    return {"contraction": 1 - lr * h, "steps": steps}


def distance(a, b):
    gap = np.asarray(a - b)
    return np.abs(gap) if gap.ndim == 1 else np.linalg.norm(gap, axis=-1)


@pytest.mark.parametrize("posterior", POSTERIORS)
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("d", [None, 3])
@pytest.mark.parametrize("smoothing", [1.0, 0.3])
def test_the_iteration_reaches_the_fixed_point(posterior, whole, d, smoothing):
    theta_hat, sigma2, sigma0_2 = clients(0, d=d)
    chosen = whole_steps(sigma2, sigma0_2, posterior) if whole else {"posterior": posterior}
    end = theory.fixed_point(theta_hat, sigma2, sigma0_2, **chosen)
    path = theory.simulate(theta_hat, sigma2, sigma0_2, np.full(d or (), -3.0), 400, smoothing=smoothing, **chosen)
    np.testing.assert_allclose(path.personal[-1], end.personal, atol=1e-9)
    np.testing.assert_allclose(path.server[-1], end.server, atol=1e-9)


@given(
    seed=st.integers(0, 2**31),
    M=st.integers(1, 7),
    dominant=st.sampled_from([1.0, 1e-3]),
    posterior=st.sampled_from(POSTERIORS),
)
@settings(max_examples=40, deadline=None)
def test_the_fixed_point_by_hand(seed, M, dominant, posterior):
    """θ* = Σ u θ̂ / Σ u with u = w (1 − c)/(1 + c r), also where the shift is capped."""
    theta_hat, sigma2, sigma0_2 = clients(seed, M)
    sigma2[0] *= dominant
    end = theory.fixed_point(theta_hat, sigma2, sigma0_2 * dominant, posterior=posterior)
    w = 1 / (sigma0_2 * dominant + sigma2)
    S = w.sum() - w
    r = np.minimum(w / S, 1) if M > 1 else np.zeros(1)
    S = S if posterior == "paper" or M == 1 else 1 / (sigma0_2 * dominant + 1 / S)
    c = S / (1 / sigma2 + S)
    u = w * (1 - c) / (1 + c * r)
    server = (u @ theta_hat) / u.sum()
    assert end.server == pytest.approx(server, abs=1e-9)
    np.testing.assert_allclose(end.personal, ((1 - c) * theta_hat + c * (1 + r) * server) / (1 + c * r), atol=1e-9)


def test_gradient_steps_on_data_have_the_given_contraction():
    """The iteration with real data and gradients of the mean squared error, whose curvature is 2."""
    draw = np.random.default_rng(3)
    samples = [draw.normal(theta, 0.5, n) for theta, n in zip([0.0, 1.0, 3.0, 3.5], [5, 9, 12, 30], strict=True)]
    theta_hat = np.array([x.mean() for x in samples])
    sigma2, sigma0_2, lr = theory.intra_client_variance(0.25, [len(x) for x in samples]), 0.5, 0.02
    chosen = whole_steps(sigma2, sigma0_2, "exact", lr=lr)
    w = 1 / (sigma0_2 + sigma2)
    server, personal = 10.0, np.full(4, 10.0)
    for _ in range(300):
        start = [server - w[m] / (w.sum() - w[m]) * (personal[m] - server) for m in range(4)]
        for m in range(4):
            personal[m] = start[m]
            for _ in range(chosen["steps"][m]):
                personal[m] -= lr * np.mean(2 * (personal[m] - samples[m]))
        server = np.average(personal, weights=w)
    end = theory.fixed_point(theta_hat, sigma2, sigma0_2, **chosen)
    np.testing.assert_allclose(personal, end.personal, atol=1e-10)
    assert server == pytest.approx(end.server, abs=1e-10)


# --- what the fixed point is, and is not


def test_homogeneous_clients_do_not_quite_reach_the_precision_weighted_mean():
    """For σ0² = 0 all θ_m^(FL) are equal; Algorithm 1 ends near them, and Algorithm 2 there."""
    theta_hat, sigma2, _ = clients(4, M=30)
    p = (1 / sigma2) / (1 / sigma2).sum()
    end = theory.fixed_point(theta_hat, sigma2, 0.0)
    server = np.average(theta_hat, weights=p**2 / (1 + p))
    assert end.server == pytest.approx(server)
    np.testing.assert_allclose(end.personal, (p * theta_hat + server) / (1 + p))
    assert np.abs(end.personal - np.average(theta_hat, weights=p)).max() > 1e-2
    second = theory.fixed_point(theta_hat, sigma2, 0.0, algorithm=2)
    np.testing.assert_allclose(second.personal, np.average(theta_hat, weights=p))


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_equal_clients_with_equal_data_agree(posterior):
    end = theory.fixed_point(np.full(5, 2.5), np.full(5, 0.1), 0.3, posterior=posterior)
    np.testing.assert_allclose(end.personal, 2.5)
    assert end.server == pytest.approx(2.5)


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_unrelated_clients_end_at_their_own_optima(posterior):
    theta_hat, sigma2, _ = clients(5)
    end = theory.fixed_point(theta_hat, sigma2, 1e12, posterior=posterior)
    np.testing.assert_allclose(end.personal, theta_hat, atol=1e-9)
    assert end.server == pytest.approx(theta_hat.mean())


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_algorithm_2_reaches_the_posterior_in_two_rounds(posterior):
    theta_hat, sigma2, sigma0_2 = clients(6)
    optimal = theory.personal_posterior(theta_hat, sigma2, sigma0_2, posterior).mean
    server = theory.global_posterior(theta_hat, sigma2, sigma0_2).mean
    end = theory.fixed_point(theta_hat, sigma2, sigma0_2, posterior=posterior, algorithm=2)
    np.testing.assert_allclose(end.personal, optimal)
    assert end.server == pytest.approx(server)
    path = theory.simulate(theta_hat, sigma2, sigma0_2, -3.0, 2, posterior=posterior, algorithm=2)
    np.testing.assert_allclose(path.personal[2], optimal)
    assert path.server[1] == pytest.approx(server)


def test_the_distance_to_the_fl_optimum_falls_like_one_over_the_root_of_clients():
    """With σ_m² ~ 1/M, for which q stays below 1 as the proposition assumes."""
    draw, sizes = np.random.default_rng(0), np.array([20, 80, 320])
    error = []
    for M in sizes:
        gaps = []
        for _ in range(30):
            sigma2 = draw.uniform(0.5, 2.0, M) / M
            theta_hat = draw.normal(draw.normal(1.6, 1.0, M), np.sqrt(sigma2))
            end = theory.fixed_point(theta_hat, sigma2, 1.0)
            gaps.append(np.abs(end.personal - theory.fl_posterior(theta_hat, sigma2, 1.0).mean).max())
            assert theory.contraction_constant(sigma2, 1.0) < 0.7
        error.append(np.mean(gaps))
    slope = np.polyfit(np.log(sizes), np.log(error), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.2)


# --- Proposition 3.1


def test_q_is_the_largest_share_that_a_client_keeps():
    _, sigma2, sigma0_2 = clients(1)
    shares = []
    for m in range(len(sigma2)):
        S = sum(1 / (sigma2[k] + sigma0_2) for k in range(len(sigma2)) if k != m)
        shares.append(S / (1 / sigma2[m] + S))
    assert theory.contraction_constant(sigma2, sigma0_2) == pytest.approx(max(shares))
    assert theory.contraction_constant(sigma2, sigma0_2, "exact") < max(shares)


@given(
    seed=st.integers(0, 2**31),
    M=st.integers(1, 8),
    d=st.sampled_from([None, 2]),
    whole=st.booleans(),
    posterior=st.sampled_from(POSTERIORS),
    start=st.floats(-20, 20),
    shift_cap=st.sampled_from([1.0, np.inf]),
)
@settings(max_examples=80, deadline=None)
def test_the_iteration_stays_within_the_bound(seed, M, d, whole, posterior, start, shift_cap):
    theta_hat, sigma2, sigma0_2 = clients(seed, M, d)
    given_steps = whole_steps(sigma2, sigma0_2, posterior) if whole else {}
    setting = {"posterior": posterior, "shift_cap": shift_cap, **given_steps}
    first = np.full(d or (), start)
    bound = theory.convergence_bound(theta_hat, sigma2, sigma0_2, first, 40, **setting)
    path = theory.simulate(theta_hat, sigma2, sigma0_2, first, 40, **setting)
    optimal = theory.personal_posterior(theta_hat, sigma2, sigma0_2, posterior).mean
    server = theory.global_posterior(theta_hat, sigma2, sigma0_2).mean
    for t in range(41):
        assert distance(path.personal[t], optimal).max() <= bound.personal[t] + 1e-9
        assert distance(np.atleast_2d(path.server[t]), np.atleast_2d(server))[0] <= bound.server[t] + 1e-9
    np.testing.assert_allclose(bound.optimization, bound.C * bound.q ** np.arange(41), atol=1e-12)
    assert bound.q < 1


def test_the_bound_starts_at_the_propositions_constants():
    theta_hat, sigma2, sigma0_2 = clients(2)
    bound = theory.convergence_bound(theta_hat, sigma2, sigma0_2, 9.0, 5)
    assert bound.C == pytest.approx(np.abs(9.0 - theory.fl_posterior(theta_hat, sigma2, sigma0_2).mean).max())
    assert bound.q == pytest.approx(theory.contraction_constant(sigma2, sigma0_2))
    assert bound.personal[0] == pytest.approx(bound.C)
    assert bound.statistical[0] == pytest.approx(0, abs=1e-12)


def test_equation_44_as_printed_is_no_bound():
    """Good and bad data, with different optima: q is near 1, and its missing factor 1/(1 − q) matters."""
    sigma2, theta_hat = np.repeat([1.0, 3.0], 50), np.repeat([1.0, -1.0], 50)
    start = 0.0
    rounds = 2000
    path = theory.simulate(theta_hat, sigma2, 0.1, start, rounds)
    bound = theory.convergence_bound(theta_hat, sigma2, 0.1, start, rounds)
    error = np.abs(path.personal[-1] - theory.fl_posterior(theta_hat, sigma2, 0.1).mean).max()
    assert error > 8 * (bound.optimization[-1] + bound.printed)
    assert error <= bound.personal[-1]


variances = st.one_of(st.sampled_from([0.0, 1e-300, 1.0, 1e300, np.inf]), st.floats(0, 1e6))


@given(
    sigma2=st.lists(variances, min_size=1, max_size=6),
    sigma0_2=variances,
    posterior=st.sampled_from(POSTERIORS),
    shift_cap=st.sampled_from([1.0, np.inf]),
    algorithm=st.sampled_from([1, 2]),
)
@settings(max_examples=200, deadline=None)
def test_no_variance_spoils_the_fixed_point_or_the_bound(sigma2, sigma0_2, posterior, shift_cap, algorithm):
    theta_hat = np.random.default_rng(0).normal(0, 10, len(sigma2))
    setting = {"posterior": posterior, "shift_cap": shift_cap}
    end = theory.fixed_point(theta_hat, sigma2, sigma0_2, algorithm=algorithm, **setting)
    bound = theory.convergence_bound(theta_hat, sigma2, sigma0_2, 0.0, 5, **setting)
    if algorithm == 1 or shift_cap > 1:  # a capped start from the optima is no mixture of the others'
        assert theta_hat.min() - 1e-6 <= min(end.personal.min(), end.server)
        assert max(end.personal.max(), end.server) <= theta_hat.max() + 1e-6
    assert np.all(np.isfinite(end.personal))
    assert np.all(np.isfinite(bound.personal) & np.isfinite(bound.server))
    assert 0 <= bound.q <= 1


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ({"contraction": 0.9}, "go together"),
        ({"steps": 3}, "go together"),
        ({"contraction": 0.9, "steps": 2.5}, "whole numbers"),
        ({"contraction": 1.0, "steps": 3}, "must come closer"),
        ({"contraction": -1.2, "steps": 3}, "may move away"),
    ],
)
def test_what_cannot_converge_is_refused(setting, complaint):
    theta_hat, sigma2, sigma0_2 = clients(0)
    with pytest.raises(ValueError, match=complaint):
        theory.fixed_point(theta_hat, sigma2, sigma0_2, **setting)
