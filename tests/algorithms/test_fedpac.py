"""FedPAC against plain torch in float64, its quadratic program against SLSQP, and against FedRep."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import nn

from personafl.algorithms import FedPAC, FedRep
from personafl.algorithms.fedpac import combination_weights
from personafl.errors import ConfigError
from tests.oracles.classifiers import (
    CLASSES,
    LR,
    SIZES,
    STEPS,
    WIDTH,
    assert_close,
    cohorts,
    model,
    net_at,
    personal,
    samples,
    trained,
    vector,
)

HEAD = WIDTH * CLASSES + CLASSES


def quadratic(h: np.ndarray, v: np.ndarray, i: int) -> np.ndarray:
    """The matrix of client i's program, term by term as the paper has it."""
    K, C, _ = h.shape
    Q = np.diag(v).astype(float)
    for j, k, c in np.ndindex(K, K, C):
        Q[j, k] += (h[i, c] - h[j, c]) @ (h[i, c] - h[k, c])
    return Q


def by_slsqp(h: np.ndarray, v: np.ndarray) -> np.ndarray:
    K, rows = len(h), []
    for i in range(K):
        Q = quadratic(h, v, i)
        Q = Q / np.abs(Q).max()
        found = minimize(
            lambda a, Q=Q: a @ Q @ a, np.full(K, 1 / K), jac=lambda a, Q=Q: 2 * Q @ a, bounds=[(0, 1)] * K,
            constraints={"type": "eq", "fun": lambda a: a.sum() - 1}, method="SLSQP",
            options={"ftol": 1e-15, "maxiter": 500},
        )  # fmt: skip
        rows.append(found.x)
    return np.stack(rows)


def oracle(lam: float, cohorts: list[list[int]], head_steps: int):
    """The paper's algorithm with ordinary modules, in float64."""
    theta0 = vector(model())
    body, heads, centroids = theta0[:-HEAD], {m: theta0[-HEAD:] for m in range(3)}, {}
    for cohort in cohorts:
        found, h, v, sums = {}, {}, {}, {}
        for m in cohort:
            net, (x, y) = net_at(torch.cat([body, heads[m]])), samples(m)
            with torch.no_grad():
                f = net[:4](x)
                h[m] = torch.stack([(y == c).double().mean() * f[y == c].mean(0).nan_to_num() for c in range(CLASSES)])
                v[m] = (f.square().sum(1).mean() - h[m].square().sum()) / len(y)
            for part, steps in ((net[4], head_steps), (net[:4], STEPS)):
                optimizer = torch.optim.SGD(part.parameters(), LR)
                for _ in range(steps):
                    net.zero_grad()
                    f = net[:4](x)
                    loss = F.cross_entropy(net[4](f), y)
                    for k, label in enumerate(y.tolist()):
                        if label in centroids and part is not net[4]:
                            loss = loss + lam * F.mse_loss(f[k], centroids[label]) / len(y)
                    loss.backward()
                    optimizer.step()
            found[m] = vector(net)
            for label in set(y.tolist()):
                sums.setdefault(label, []).append(net[:4](x[y == label]).detach())
        centroids |= {label: torch.cat(parts).mean(0) for label, parts in sums.items()}
        total = sum(SIZES[m] for m in cohort)
        body = sum(SIZES[m] / total * theta[:-HEAD] for m, theta in found.items())
        alpha = by_slsqp(*(np.stack([part[m].numpy() for m in cohort]) for part in (h, v)))
        new = torch.tensor(alpha) @ torch.stack([found[m][-HEAD:] for m in cohort])
        heads |= dict(zip(cohort, new, strict=True))
    return torch.stack([torch.cat([body, heads[m]]) for m in range(3)])


def test_it_is_the_papers_algorithm_in_plain_torch(tmp_path):
    made = trained(FedPAC(lam=2.0, head_steps=2), tmp_path, rounds=3)
    assert_close(personal(made), oracle(2.0, [[0, 1, 2]] * 3, 2), scale=10)


def test_with_partial_participation_heads_are_combined_among_those_who_answered(tmp_path):
    made = trained(FedPAC(lam=2.0, head_steps=2), tmp_path, rounds=0, activity=0.7)
    active = cohorts(made, 4)
    for _ in active:
        made.step()
    assert_close(personal(made), oracle(2.0, active, 2), scale=10)


@pytest.mark.parametrize("seed", range(4))
def test_weights_are_those_of_a_general_solver(seed):
    """Some clients alike, some apart; where the smallest value is told more sharply than where it is, the value."""
    draw = np.random.default_rng(seed)
    centres = draw.normal(size=(3, 4, 5))
    h = centres[draw.integers(0, 3, 8)] + 0.2 * draw.normal(size=(8, 4, 5))
    v = draw.uniform(0.1, 3.0, 8)
    ours, theirs = combination_weights(torch.tensor(h), torch.tensor(v)).numpy(), by_slsqp(h, v)
    np.testing.assert_allclose(ours.sum(1), 1.0)
    assert ours.min() >= 0 and (ours == 0).any() and ((ours > 0.01).sum(1) > 1).any()
    np.testing.assert_allclose(ours, theirs, atol=2e-4)
    for i in range(8):
        Q = quadratic(h, v, i)
        assert ours[i] @ Q @ ours[i] <= theirs[i] @ Q @ theirs[i] * (1 + 1e-9)


def test_weights_by_hand():
    """Alike clients: in inverse proportion to their variances. Two clients at a distance δ: a parabola."""
    alike = combination_weights(torch.ones(3, 2, 2), torch.tensor([1.0, 2.0, 4.0]))
    np.testing.assert_allclose(alike, np.tile(np.array([4, 2, 1]) / 7, (3, 1)), atol=1e-9)
    h = torch.tensor([[[0.0]], [[2.0]]])
    found = combination_weights(h, torch.tensor([3.0, 5.0]))
    # α² 3 + (1 − α)² (5 + δ²) is smallest at α = (5 + δ²) / (3 + 5 + δ²)
    np.testing.assert_allclose(found, [[9 / 12, 3 / 12], [5 / 12, 7 / 12]], atol=1e-9)
    assert combination_weights(torch.zeros(2, 1, 1), torch.zeros(2)).tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_without_alignment_and_combination_it_is_fedrep(tmp_path):
    ours = trained(FedPAC(lam=0.0, combine=False, head_steps=2), tmp_path / "a", rounds=3)
    theirs = trained(FedRep(weights="samples", head_steps=2), tmp_path / "b", rounds=3)
    assert_close(personal(ours), personal(theirs), scale=0.1)


def test_who_was_never_active_has_the_body_with_the_first_head(tmp_path):
    made = trained(FedPAC(), tmp_path, rounds=1, activity=0.34)
    first = vector(model())[-HEAD:].numpy()
    for k in np.flatnonzero(made.active == 0):
        assert_close(personal(made)[k, -HEAD:], first, scale=1e-3)
        assert_close(personal(made)[k, :-HEAD], made.server["body"], scale=1e-3)
    assert made.active.tolist().count(0) == 2


@pytest.mark.parametrize(
    "settings, local, message",
    [
        ({"head": 2}, {}, r"algorithm.head = 2: must be left out for fedpac: features are what goes into the head"),
        ({"head_names": ("2",)}, {}, r"algorithm.head_names = \('2',\): must be left out for fedpac"),
        ({}, {"features": "2"}, r"local.features = '2': must be left out for fedpac"),
        ({}, {"loss": "mse"}, "fedpac takes the mean of features over each class: it needs a classification task"),
        ({}, {"net": nn.Linear(4, CLASSES)}, r"algorithm.head = 1: must be fewer layers for fedpac"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path, settings, local, message):
    with pytest.raises(ConfigError, match=message) as error:
        trained(FedPAC(**settings), tmp_path, rounds=1, **local)
    assert "\n" not in str(error.value)


def test_a_negative_weight_is_refused():
    with pytest.raises(ConfigError, match=r"algorithm.lam = -1.0: must be at least 0"):
        FedPAC(lam=-1.0)
