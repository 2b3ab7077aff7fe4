"""MOON against plain torch in float64, against FedAvg, and where its contrast is nothing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from personafl.algorithms import MOON, FedAvg
from personafl.errors import ConfigError
from tests.oracles.classifiers import (
    LR,
    SIZES,
    STEPS,
    assert_close,
    cohorts,
    model,
    net_at,
    personal,
    samples,
    trained,
    vector,
)  # fmt: skip


def oracle(mu: float, tau: float, cohorts: list[list[int]], cut: int):
    """The paper's algorithm with ordinary modules; features are what comes out of the first `cut` layers."""
    w, previous = vector(model()), {}
    for cohort in cohorts:
        found = {}
        for m in cohort:
            net, (x, y) = net_at(w), samples(m)
            optimizer = torch.optim.SGD(net.parameters(), LR)
            for _ in range(STEPS):
                z = net[:cut](x)
                loss = F.cross_entropy(net[cut:](z), y)
                if m in previous:
                    with torch.no_grad():
                        others = [net_at(theta)[:cut](x) for theta in (w, previous[m])]
                    logits = torch.stack([F.cosine_similarity(z, other, 1) for other in others], 1) / tau
                    loss = loss + mu * F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.int64))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            found[m] = vector(net)
        previous |= found
        total = sum(SIZES[m] for m in found)
        w = sum(SIZES[m] / total * theta for m, theta in found.items())
    return w, torch.stack([theta for _, theta in sorted(previous.items())])


@pytest.mark.parametrize("layer, cut", [("", 4), ("1", 2)])
def test_it_is_the_papers_algorithm_in_plain_torch(tmp_path, layer, cut):
    made = trained(MOON(mu=2.0, temperature=0.3), tmp_path, rounds=4, features=layer)
    w, own = oracle(2.0, 0.3, [[0, 1, 2]] * 4, cut)
    assert_close(made.server["theta"], w)
    assert_close(personal(made), own)


def test_with_partial_participation_the_previous_model_is_that_of_the_clients_own_last_round(tmp_path):
    made = trained(MOON(mu=2.0), tmp_path, rounds=0, activity=0.7)
    active = cohorts(made, 6)
    assert {0, 1, 2} == set().union(*active) and all(len(cohort) == 2 for cohort in active)
    for _ in active:
        made.step()
    w, own = oracle(2.0, 0.5, active, 4)
    assert_close(made.server["theta"], w)
    assert_close(personal(made), own)


@pytest.mark.parametrize("algorithm, rounds", [(MOON(mu=0.0), 4), (MOON(mu=5.0), 1)])
def test_without_a_weight_and_in_the_first_round_it_is_fedavg(tmp_path, algorithm, rounds):
    ours, theirs = trained(algorithm, tmp_path / "a", rounds), trained(FedAvg(), tmp_path / "b", rounds)
    assert_close(ours.server["theta"], theirs.server["theta"], scale=0.1)


def test_and_later_it_is_not(tmp_path):
    ours, theirs = trained(MOON(mu=5.0), tmp_path / "a", 2), trained(FedAvg(), tmp_path / "b", 2)
    assert (ours.server["theta"] - theirs.server["theta"]).abs().max() > 1e-3


@pytest.mark.parametrize("settings, key", [({"mu": -1.0}, "algorithm.mu"), ({"temperature": 0.0}, "temperature")])
def test_values_out_of_range_are_refused(settings, key):
    with pytest.raises(ConfigError, match=key):
        MOON(**settings)
