"""FedBE against plain torch in float64, against fedavg, and what its server draws."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from personafl.algorithms import FedAvg, FedBE, Uploads
from personafl.errors import ConfigError
from personafl.streams import array_key, generator
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
)
from tests.oracles.quadratic import quadratics, train

MADE = FedBE(samples=3, distill_steps=2, distill_lr=0.5)


def local_training(m, mean, models, distill=2):
    """Distillation from the ensemble without labels, then cross-entropy."""
    net, (x, y) = net_at(mean), samples(m)
    with torch.no_grad():
        teacher = sum(F.softmax(net_at(theta)(x), 1) for theta in (mean, *models)) / (1 + len(models))
    for step in range(distill + STEPS):
        distils = step < distill
        optimizer = torch.optim.SGD(net.parameters(), 0.5 if distils else LR)
        optimizer.zero_grad()
        F.cross_entropy(net(x), teacher if distils else y).backward()
        optimizer.step()
    return vector(net)


def by_hand(active, weighted):
    """μ, σ² and everybody's last y after some rounds."""
    mean, last = vector(model()), [None] * 3
    variance, key = torch.zeros_like(mean), array_key(mean.float().numpy())
    for r, cohort in enumerate(active):
        noise = generator(key, "fedbe", r).standard_normal((3, len(mean)), dtype="float32")
        models = mean + variance.sqrt() * torch.tensor(noise).double()
        for m in cohort:
            last[m] = local_training(m, mean, models)
        p = torch.tensor([SIZES[m] if weighted else 1.0 for m in cohort], dtype=torch.float64)
        trained_now = torch.stack([last[m] for m in cohort])
        mean = (p / p.sum()) @ trained_now
        variance = (p / p.sum()) @ (trained_now - mean) ** 2
    return mean, variance, last


@pytest.mark.parametrize("activity", [1.0, 0.7])
@pytest.mark.parametrize("weights", ["samples", "equal"])
def test_it_is_its_equations_in_plain_torch(tmp_path, weights, activity):
    made = trained(FedBE(weights, 3, 2, 0.5), tmp_path, rounds=0, activity=activity)
    active = cohorts(made, 3)
    for _ in active:
        made.step()
    mean, variance, last = by_hand(active, weights == "samples")
    assert_close(made.server["theta"], mean)
    assert_close(made.server["variance"], variance)
    assert variance.max() > 1e-3
    for m, model_of in enumerate(personal(made)):
        assert_close(model_of, mean if last[m] is None else last[m])


@pytest.mark.parametrize("settings", [{"distill_steps": 0}, {"samples": 0, "distill_steps": 4}])
def test_without_steps_or_without_models_of_the_ensemble_it_is_fedavg(tmp_path, settings):
    """The mean alone teaches the student that starts from it nothing."""
    ours, average = trained(FedBE(**settings), tmp_path / "a"), trained(FedAvg(), tmp_path / "b")
    assert_close(ours.server["theta"], average.server["theta"])
    assert_close(personal(ours), personal(average))


def test_the_ensemble_changes_what_clients_learn(tmp_path):
    ours, average = trained(MADE, tmp_path / "a"), trained(FedAvg(), tmp_path / "b")
    assert (ours.server["theta"] - average.server["theta"]).abs().max() > 1e-3


def test_models_are_drawn_around_the_mean_with_the_clients_spread_anew_in_each_round():
    algorithm, theta = FedBE(samples=4000), torch.tensor([1.0, -2.0, 5.0])
    server = algorithm.new_server(theta, 2)
    answers = torch.tensor([[0.0, 1.0, 5.0], [4.0, 2.0, 5.0]])
    up = {"theta": answers, "square": (answers - theta).square()}
    server = algorithm.aggregate(server, Uploads(torch.arange(2), torch.tensor([3, 1]), up, algorithm.uplink))
    assert_close(server["theta"], [1.0, 1.25, 5.0])
    assert_close(server["variance"], [3.0, 0.1875, 0.0])
    drawn = algorithm.send(server, torch.arange(1)).shared["models"]
    np.testing.assert_allclose(drawn.mean(0), server["theta"], atol=0.1)
    np.testing.assert_allclose(drawn.var(0), server["variance"], rtol=0.1)
    assert algorithm.send(server, torch.arange(2)).shared["models"].equal(drawn)
    later = algorithm.send({**server, "round": server["round"] + 1}, torch.arange(1)).shared["models"]
    assert not later.equal(drawn)
    other = algorithm.new_server(theta + 1, 2) | {name: server[name] for name in ("theta", "variance", "round")}
    assert not algorithm.send(other, torch.arange(1)).shared["models"].equal(drawn), "another seed draws others"


def test_bad_settings_are_refused_in_words(tmp_path):
    for setting, words in (
        ({"samples": -1}, "samples = -1: must be at least 0"),
        ({"distill_steps": -1}, "distill_steps = -1: must be at least 0"),
        ({"distill_lr": 0.0}, "distill_lr = 0.0: must be above 0, or left out"),
    ):
        with pytest.raises(ConfigError, match=words):
            FedBE(**setting)
    with pytest.raises(ConfigError, match=r"algorithm fedbe: .* needs a classification task") as error:
        train(quadratics(), FedBE(), tmp_path, 1)
    assert "\n" not in str(error.value)
