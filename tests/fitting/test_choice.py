"""Weights of models for clients, against closed forms, an optimizer that knows nothing of EM, and simulated truth."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from personafl.fitting.choice import Way, choose, mixture_weights, one_each, pruned, weights_of

NEVER = -1e3
"""The logarithm of a probability of nothing."""


def drawn(seed: int, clients: int = 7, models: int = 3, most: int = 9) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(clients), rng.integers(0, most, clients))
    return rng.normal(-1.0, 0.8, (len(owner), models)), owner


def correct_answers(right: np.ndarray, owner: np.ndarray, clients: int):
    """Points of a world in which a mixture answers as the model with the largest weight."""

    def points(weights: np.ndarray, which: np.ndarray) -> np.ndarray:
        hits = right[np.arange(len(owner)), :][which][np.arange(which.sum()), weights[which].argmax(1)]
        return np.bincount(owner[which], hits, clients)

    return points


@pytest.mark.parametrize("alpha", [1.0, 10.0])
def test_models_that_exclude_each_other_share_by_counts(alpha):
    # Client 0 has 3 samples that only model 0 allows, client 1 one of model 0 and three of model 1, client 2 none.
    likelihood = np.array([[0, NEVER]] * 3 + [[0, NEVER]] + [[NEVER, 0]] * 3)
    owner = np.array([0, 0, 0, 1, 1, 1, 1])
    everybody = np.array([4, 3]) / 7
    wanted = [(alpha * everybody + own) / (alpha + sum(own)) for own in ([3, 0], [1, 3])]
    made = mixture_weights(likelihood, owner, 3, alpha)
    np.testing.assert_allclose(made, [*wanted, everybody], atol=1e-6)
    np.testing.assert_allclose(mixture_weights(likelihood, owner, 3, np.inf), np.tile(everybody, (3, 1)), atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_mixtures_maximize_the_posterior_density(seed):
    likelihood, owner = drawn(seed)
    alpha, made = 2.5, mixture_weights(likelihood, owner, 7, 2.5)
    everybody = mixture_weights(likelihood, owner, 7, np.inf)[0]

    def loss(logits, rows, strength):
        mixed = likelihood[rows] + log_softmax(logits)
        return -np.logaddexp.reduce(mixed, 1).sum() - strength * (everybody * log_softmax(logits)).sum()

    found = softmax(minimize(loss, np.zeros(3), (np.ones(len(owner), bool), 0.0)).x)
    np.testing.assert_allclose(everybody, found, atol=5e-3)  # EM comes close slowly where a weight goes to nothing
    for client in range(7):
        best = softmax(minimize(loss, np.zeros(3), (owner == client, alpha)).x)
        np.testing.assert_allclose(made[client], best, atol=1e-4)


def test_weights_are_a_fixed_point_of_expected_counts():
    likelihood, owner = drawn(11)
    alpha, everybody = 4.0, mixture_weights(likelihood, owner, 7, np.inf)[0]
    weights = mixture_weights(likelihood, owner, 7, alpha)
    shares = weights[owner] * np.exp(likelihood)
    shares /= shares.sum(1, keepdims=True)
    for client in range(7):
        own = shares[owner == client]
        expected = (alpha * everybody + own.sum(0)) / (alpha + len(own))
        np.testing.assert_allclose(weights[client], expected, atol=1e-5)


def test_one_model_each_is_the_most_probable_and_a_client_without_samples_follows_the_others():
    likelihood = np.log([[0.9, 0.1], [0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.1, 0.9], [0.2, 0.8], [0.9, 0.1]])
    owner = np.array([0, 0, 0, 1, 1, 1, 2])
    made = one_each(likelihood, owner, 4)
    assert made.argmax(1).tolist() == [0, 1, 0, 0] and (made.max(1) == 1).all()


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("mixtures", [True, False])
def test_on_validation_samples_never_worse_than_the_best_single_model(seed, mixtures):
    likelihood, owner = drawn(seed, clients=12, models=4, most=5)
    rng = np.random.default_rng(seed)
    points = correct_answers((rng.random(likelihood.shape) < 0.6).astype(float), owner, 12)
    made = choose(likelihood, owner, 12, points, seed, mixtures)
    everything = np.ones(len(owner), bool)
    singles = [points(np.tile(np.eye(4)[f], (len(owner), 1)), everything).sum() for f in range(4)]
    assert points(made.weights[owner], everything).sum() >= max(singles)
    np.testing.assert_allclose(made.weights.sum(1), 1)
    assert mixtures or (made.weights.max(1) == 1).all()


def simulated(seed: int, clients: int, samples: int, apart: bool):
    """Two models and their true hit rates for each client: everybody's best is the first, or each has its own."""
    rng = np.random.default_rng(seed)
    rates = np.tile([0.75, 0.65], (clients, 1))
    if apart:
        rates[rng.random(clients) < 0.5] = [0.45, 0.95]
    owner = np.repeat(np.arange(clients), samples)
    right = (rng.random((len(owner), 2)) < rates[owner]).astype(float)
    made = choose(np.log(np.where(right, 0.8, 0.2)), owner, clients, correct_answers(right, owner, clients), seed)
    truth = (rates * np.eye(2)[made.weights.argmax(1)]).sum(1).mean()
    by_itself = np.array([right[owner == k].sum(0).argmax() for k in range(clients)])
    return truth, rates[np.arange(clients), by_itself].mean(), rates[:, 0].mean()


def test_with_few_samples_a_client_does_not_choose_by_noise():
    found = np.array([simulated(seed, 60, 4, apart=False) for seed in range(12)])
    chosen, by_itself, best = found.mean(0)
    assert best == 0.75 and by_itself < 0.735
    assert chosen > 0.745, "the shared model is best for all, and few samples say otherwise for some"


def test_where_clients_differ_and_say_so_each_gets_its_own():
    found = np.array([simulated(seed, 60, 20, apart=True) for seed in range(6)])
    chosen, _, best = found.mean(0)
    assert chosen > best + 0.15


def test_small_weights_are_left_out_and_nothing_else_is():
    np.testing.assert_allclose(pruned(np.array([[0.01, 0.49, 0.5]])), [[0, 0.49 / 0.99, 0.5 / 0.99]])


def test_somebody_of_whom_nothing_is_known_gets_what_everybody_gets():
    likelihood, owner = drawn(3)
    for way in (Way("mixture", alpha=3.0), Way("mixture"), Way("single", 1)):
        nobody = weights_of(way, likelihood, owner, 8)[7]
        wanted = np.eye(3)[1] if way.kind == "single" else mixture_weights(likelihood, owner, 7, np.inf)[0]
        np.testing.assert_allclose(nobody, wanted, atol=1e-6)


def test_without_any_validation_sample_everybody_gets_the_same():
    made = choose(np.zeros((0, 3)), np.zeros(0, np.int64), 2, lambda weights, which: np.zeros(2), 0)
    assert made.way.kind == "single" and made.weights.shape == (2, 3)


def test_samples_of_its_own_count_where_everybody_else_has_no_use_for_a_model():
    """40 samples that speak three to one for a model that hardly anybody has."""
    sizes = [(500, 0), (40, 1), (2, 1), (40, 0), (30, 2)]
    owner = np.repeat(np.arange(len(sizes)), [n for n, _ in sizes])
    liked = np.repeat([model for _, model in sizes], [n for n, _ in sizes])
    log_likelihood = np.log(np.where(np.arange(3) == liked[:, None], 0.9, 0.3))
    weights = mixture_weights(log_likelihood, owner, len(sizes), alpha=30.0)
    alone = mixture_weights(log_likelihood[owner < 2], owner[owner < 2], 2, alpha=30.0)
    assert weights[1, 1] == pytest.approx(alone[1, 1], abs=0.03) and weights[1, 1] > 0.3
    assert weights[3] == pytest.approx(weights[0], abs=0.05)
