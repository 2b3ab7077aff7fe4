"""kNN-Per against scikit-learn's neighbours, against FedAvg, and its choice of λ by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

from personafl.algorithms import FedAvg, KNNPer
from personafl.errors import ConfigError
from personafl.federation import Federation
from tests.oracles.classifiers import CLASSES, assert_close, model, personal, trained

SIZES, VALIDATION = (9, 24, 15), (12, 0, 20)


def samples(m: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Clients whose classes lie around other centres: the second has no validation data."""
    draw = np.random.default_rng(m)

    def some(n):
        y = draw.integers(0, CLASSES, n)
        return (draw.normal(0, 1, (n, 4)) + (y[:, None] + m) % CLASSES).astype(np.float32), y

    found = {"train": some(SIZES[m]), "val": some(VALIDATION[m]), "test": some(30)}
    return {split: part for split, part in found.items() if len(part[1])}


FEDERATION = Federation.from_clients({f"c{m}": samples(m) for m in range(3)}, classes=CLASSES)


def run(algorithm, folder, rounds=2, **options):
    return trained(algorithm, folder, rounds=rounds, fed=FEDERATION, **options)


def modules(made) -> list[nn.Module]:
    return [made.clients.task.module(torch.tensor(theta, dtype=torch.float32)) for theta in personal(made)]


def global_module(made) -> nn.Sequential:
    net = model()
    nn.utils.vector_to_parameters(made.server["theta"].clone(), net.parameters())
    return net


def by_sklearn(net: nn.Sequential, m: int, k: int, scale: float, x, memory: int = 200) -> np.ndarray:
    """Probabilities of classes, by the nearest of all training samples."""
    x0, y0 = samples(m)["train"]
    keep = np.arange(len(y0)) if len(y0) <= memory else np.arange(memory) * len(y0) // memory
    features = [net[:4](torch.tensor(part)).detach().double().numpy() for part in (x0[keep], x)]
    known = KNeighborsClassifier(k, weights=lambda distance: np.exp(-distance / scale)).fit(features[0], y0[keep])
    out = np.zeros((len(x), CLASSES))
    out[:, known.classes_] = known.predict_proba(features[1])
    return out


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_with_lambda_one_it_is_scikit_learns_neighbours(tmp_path, engine):
    made = run(KNNPer(neighbours=4, scale=0.3, lam=1.0), tmp_path, engine=engine)
    for m, net in enumerate(modules(made)):
        x = samples(m)["test"][0]
        expected = by_sklearn(global_module(made), m, 4, 0.3, x)
        np.testing.assert_allclose(net(torch.tensor(x)).exp().detach(), expected, atol=1e-5)


def test_with_lambda_zero_it_is_the_global_model_of_fedavg(tmp_path):
    made, average = run(KNNPer(lam=0.0), tmp_path / "a"), run(FedAvg(), tmp_path / "b")
    assert_close(made.server["theta"], average.server["theta"], scale=0.1)
    for m, net in enumerate(modules(made)):
        x = torch.tensor(samples(m)["test"][0])
        assert_close(net(x).exp().detach(), global_module(average)(x).softmax(1).detach())
    common = made.clients.task.module(made.algorithm.global_model(made.server))
    assert_close(common(x).exp().detach(), global_module(average)(x).softmax(1).detach())


def test_in_between_probabilities_are_mixed(tmp_path):
    made = run(KNNPer(neighbours=3, lam=0.3), tmp_path)
    for m, net in enumerate(modules(made)):
        x = samples(m)["test"][0]
        plain = global_module(made)(torch.tensor(x)).softmax(1).detach().numpy()
        expected = 0.3 * by_sklearn(global_module(made), m, 3, 1.0, x) + 0.7 * plain
        np.testing.assert_allclose(net(torch.tensor(x)).exp().detach(), expected, atol=1e-5)


def test_lambda_is_the_smallest_with_the_best_validation_accuracy(tmp_path):
    made = run(KNNPer(neighbours=3), tmp_path, rounds=1)
    found = personal(made)[:, 200 * 5 + 200]
    assert found[1] == 0.5  # without validation data
    for m in (0, 2):
        x, y = samples(m)["val"]
        votes = by_sklearn(global_module(made), m, 3, 1.0, x)
        plain = global_module(made)(torch.tensor(x)).softmax(1).detach().numpy()
        right = [np.mean((g * votes + (1 - g) * plain).argmax(1) == y) for g in np.arange(11) / 10]
        assert found[m] == pytest.approx(np.argmax(right) / 10) and max(right) > min(right)
    assert {found[0], found[2]} - {0.0, 0.5}, "otherwise nothing was chosen"


def test_of_more_samples_than_it_remembers_the_memory_has_evenly_spaced_ones(tmp_path):
    made = run(KNNPer(neighbours=2, memory=10, lam=1.0), tmp_path)
    for m, net in enumerate(modules(made)):
        x = samples(m)["test"][0]
        expected = by_sklearn(global_module(made), m, 2, 1.0, x, memory=10)
        np.testing.assert_allclose(net(torch.tensor(x)).exp().detach(), expected, atol=1e-5)


def test_only_the_model_is_sent(tmp_path):
    made, average = run(KNNPer(), tmp_path / "a"), run(FedAvg(), tmp_path / "b")
    assert made.traffic == average.traffic


@pytest.mark.parametrize(
    "settings, options, message",
    [
        ({}, {"loss": "mse"}, "knnper lets the classes of neighbours vote: it needs a classification task"),
        ({"layer": "1"}, {}, "knnper: layer '1' is a Tanh, and the number of features must be known"),
        ({"layer": "9"}, {}, "algorithm.layer = '9': Sequential has no such layer"),
    ],
)
def test_models_and_tasks_that_do_not_fit_are_refused(tmp_path, settings, options, message):
    with pytest.raises(ConfigError, match=message) as error:
        run(KNNPer(**settings), tmp_path, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "settings, key",
    [({"neighbours": 0}, "neighbours"), ({"neighbours": 5, "memory": 4}, "neighbours"), ({"memory": 0}, "memory"),
     ({"scale": 0.0}, "scale"), ({"lam": 1.5}, "lam")],
)  # fmt: skip
def test_values_out_of_range_are_refused(settings, key):
    with pytest.raises(ConfigError, match=f"algorithm.{key}"):
        KNNPer(**settings)
