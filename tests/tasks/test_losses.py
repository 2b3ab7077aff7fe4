"""Losses of tasks against torch's own, and padding that changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from personafl import tasks
from personafl.errors import ConfigError
from personafl.kernels.losses import mean_loss
from personafl.kernels.task import Batch, Task

CLASSES = 4
WEIGHTS = (0.5, 1.0, 2.0, 3.5)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def classes(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, CLASSES, shape, generator=torch.Generator().manual_seed(seed))


def loss(task: tasks.LearningTask, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return mean_loss(task.objective, outputs, y, torch.ones(len(y)))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weights", [(), WEIGHTS])
def test_classification_is_torchs_cross_entropy(weights, smoothing):
    outputs, y = random(20, CLASSES), classes(20)
    task = tasks.Classification(class_weights=weights, label_smoothing=smoothing)
    weight = torch.tensor(weights) if weights else None
    expected = F.cross_entropy(outputs, y, weight=weight, label_smoothing=smoothing)
    torch.testing.assert_close(loss(task, outputs, y), expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weights", [(), WEIGHTS])
def test_ignored_pixels_and_tokens_do_not_count_as_in_torch(weights, smoothing):
    y = classes(6, 5, 3)
    y[torch.rand(y.shape, generator=torch.Generator().manual_seed(2)) < 0.4] = -100
    y[0] = -100  # a whole image
    outputs = random(6, CLASSES, 5, 3)
    weight = torch.tensor(weights) if weights else None
    settings = {"class_weights": weights, "label_smoothing": smoothing}
    expected = F.cross_entropy(outputs, y, weight=weight, label_smoothing=smoothing, ignore_index=-100)
    torch.testing.assert_close(loss(tasks.Segmentation(**settings), outputs, y), expected)
    tokens, tagged = outputs.movedim(1, -1).flatten(1, 2), y.flatten(1)
    torch.testing.assert_close(loss(tasks.Tagging(**settings), tokens, tagged), expected)
    torch.testing.assert_close(loss(tasks.NextToken(**settings), tokens, tagged), expected)


@pytest.mark.parametrize("weights", [(), WEIGHTS])
def test_multilabel_is_torchs_binary_cross_entropy(weights):
    outputs, y = random(20, CLASSES), classes(20, CLASSES) % 2
    expected = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(weights) if weights else None)(outputs, y.float())
    torch.testing.assert_close(loss(tasks.Multilabel(pos_weight=weights), outputs, y), expected)


@pytest.mark.parametrize(("settings", "expected"), [
    ({"loss": "squared"}, F.mse_loss),
    ({"loss": "absolute"}, F.l1_loss),
    ({"loss": "huber", "delta": 0.7}, lambda o, y: F.huber_loss(o, y, delta=0.7)),
    ({"loss": "quantile", "q": 0.8}, lambda o, y: torch.where(y > o, 0.8 * (y - o), 0.2 * (o - y)).mean()),
])  # fmt: skip
@pytest.mark.parametrize("targets", [(20,), (20, 3)])
def test_regression_losses(settings, expected, targets):
    outputs, y = random(*targets), random(*targets, seed=3)
    task = tasks.Regression(**settings)
    torch.testing.assert_close(loss(task, outputs, y), expected(outputs, y))
    if len(targets) == 1:  # a model with one output
        torch.testing.assert_close(loss(task, outputs[:, None], y), expected(outputs, y))


def test_whole_numbers_can_be_targets():
    outputs, y = random(20), classes(20)
    for kind in ("squared", "absolute", "huber", "quantile"):
        task = tasks.Regression(loss=kind)
        torch.testing.assert_close(loss(task, outputs, y), loss(task, outputs, y.float()))


# --- survival: brute force over all pairs -----------------------------------------------------------------------


def survival(n: int, ties: bool) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    time = torch.rand(n, generator=generator) * 5
    time = time.round() if ties else time
    return torch.stack([time, (torch.rand(n, generator=generator) < 0.6).float()], 1)


def brute_force(risk: torch.Tensor, y: torch.Tensor, ties: str) -> torch.Tensor:
    """−log of the partial likelihood, event after event, divided by their number."""
    time, event = y[:, 0].tolist(), y[:, 1].tolist()
    total, weights = torch.zeros((), dtype=risk.dtype), risk.exp()
    for t in sorted({t for t, e in zip(time, event, strict=True) if e}):
        dead = [i for i in range(len(time)) if time[i] == t and event[i]]
        whole = sum(weights[j] for j in range(len(time)) if time[j] >= t)
        for place, i in enumerate(dead):
            share = place / len(dead) if ties == "efron" else 0.0
            total = total - risk[i] + torch.log(whole - share * sum(weights[j] for j in dead))
    return total / max(sum(event), 1)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
@pytest.mark.parametrize("tied", [False, True])
def test_cox_is_the_partial_likelihood_and_so_is_its_gradient(ties, tied):
    y, risk = survival(25, tied), random(25, 1).requires_grad_()
    value = loss(tasks.Cox(ties=ties), risk, y)
    exact = risk.detach().double().flatten().requires_grad_()
    expected = brute_force(exact, y, ties)
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-6)
    (slope,), (exact_slope,) = torch.autograd.grad(value, risk), torch.autograd.grad(expected, exact)
    torch.testing.assert_close(slope.flatten().double(), exact_slope, rtol=1e-4, atol=1e-6)


def test_cox_of_large_risks_and_of_a_batch_without_events():
    y = survival(10, False)
    far = loss(tasks.Cox(), random(10, 1) + 500, y)
    torch.testing.assert_close(far, loss(tasks.Cox(), random(10, 1), y), rtol=1e-3, atol=1e-3)
    y[:, 1] = 0
    risk = random(10, 1).requires_grad_()
    value = loss(tasks.Cox(), risk, y)
    assert value == 0 and torch.autograd.grad(value, risk)[0].abs().sum() == 0


def test_hazards_by_hand():
    task = tasks.Hazard(bins=(1.0, 2.0, 3.0))
    outputs = random(5, 3)
    y = torch.tensor([[0.5, 1.0], [2.0, 1.0], [2.0, 0.0], [2.5, 0.0], [9.0, 1.0]])
    h = outputs.sigmoid()
    likelihood = [
        h[0, 0],  # an event in the first interval
        (1 - h[1, 0]) * h[1, 1],  # at the end of the second
        (1 - h[2, 0]) * (1 - h[2, 1]),  # censored there: it has survived the second
        (1 - h[3, 0]) * (1 - h[3, 1]),  # within the third: nothing is known of that
        (1 - h[4, 0]) * (1 - h[4, 1]) * h[4, 2],  # later than all bins
    ]
    torch.testing.assert_close(task.objective(outputs, y), -torch.stack(likelihood).log())


def test_bins_of_hazards_are_quantiles_of_the_training_events():
    y = torch.stack([torch.arange(1.0, 101), torch.ones(100)], 1)
    y[::2, 1] = 0
    fitted = tasks.Hazard(count=4).fitted(lambda: y)
    np.testing.assert_allclose(fitted.bins, np.quantile(np.arange(2, 101, 2), [0.25, 0.5, 0.75, 1]))


# --- padding ----------------------------------------------------------------------------------------------------

KINDS = {
    "classification": (tasks.Classification(class_weights=WEIGHTS, label_smoothing=0.1), nn.Linear(3, 4), (), None),
    "multilabel": (tasks.Multilabel(), nn.Linear(3, 4), (4,), 2),
    "regression": (tasks.Regression(loss="huber"), nn.Linear(3, 1), (), 0),
    "tagging": (tasks.Tagging(), nn.Sequential(nn.Linear(3, 8), nn.Unflatten(1, (2, 4))), (2,), None),
    "cox": (tasks.Cox(), nn.Linear(3, 1), (), "survival"),
    "hazard": (tasks.Hazard(bins=(1.0, 2.0)), nn.Linear(3, 2), (), "survival"),
}


def labels(kind: object, n: int, shape: tuple[int, ...]) -> torch.Tensor:
    if kind == "survival":
        return survival(n, True)
    if kind == 0:
        return random(n, *shape, seed=8)
    return classes(n, *shape) % (kind or CLASSES)  # type: ignore[operator]


@pytest.mark.parametrize("name", KINDS)
def test_padding_changes_neither_gradients_nor_evaluations(name):
    task, module, shape, kind = KINDS[name]
    made = Task(module, task)
    n, width = 5, 9
    x, y = random(n, 3), labels(kind, n, shape)
    weight = torch.cat([torch.ones(n), torch.zeros(width - n)])
    long_x, long_y = (torch.cat([v, v[:1].expand(width - n, *v.shape[1:])]) for v in (x, y))
    key = torch.zeros((), dtype=torch.int64)
    plain = Batch(x, y, torch.ones(n), key)
    pairs = [torch.stack([v, v]) for v in (long_x, long_y, weight, key)]
    two = Batch(*pairs)
    theta = made.theta0.expand(2, -1)
    expected = made.gradient(made.theta0, plain)
    torch.testing.assert_close(made.gradient_stacked(theta, two)[0], expected, rtol=1e-4, atol=1e-6)
    single, stacked = made.evaluate(made.theta0, plain), made.evaluate_stacked(theta, two)
    for part, value in single.items():
        torch.testing.assert_close(stacked[part][0], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("make", "said"), [
    (lambda: tasks.Regression(loss="cubic"), "task.loss = 'cubic': must be squared"),
    (lambda: tasks.Regression(loss="quantile", q=1.0), r"task.q = 1.0: must be in \(0, 1\)"),
    (lambda: tasks.Regression(loss="huber", delta=0.0), "task.delta"),
    (lambda: tasks.Classification(label_smoothing=1.0), "task.label_smoothing"),
    (lambda: tasks.Classification(class_weights=(1.0, 0.0)), "task.class_weights"),
    (lambda: tasks.Cox(ties="exact"), "task.ties = 'exact': must be efron or breslow"),
    (lambda: tasks.Hazard(bins=(2.0, 1.0)), "task.bins"),
    (lambda: tasks.Regression(metrics=("rsme",)), r"task.metrics = 'rsme' is unknown \(did you mean 'rmse'\?\)"),
    (lambda: tasks.Regression(metrics=("mae", "mae")), "names a metric twice"),
])  # fmt: skip
def test_settings_that_cannot_be(make, said):
    with pytest.raises(ConfigError, match=said):
        make()
