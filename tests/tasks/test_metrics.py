"""Metrics of tasks against scikit-learn and brute force, on both engines and from the user's own functions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import nn

from personafl import metrics, tasks
from personafl.engines.loop import LoopEngine
from personafl.engines.measuring import measure_held_back, measure_split
from personafl.engines.stacked import StackedEngine
from personafl.errors import ConfigError, DataError, ModelError
from personafl.federation import Federation
from personafl.kernels.task import Task
from personafl.settings import Local

SIZES = (7, 12, 30)


def federation(y: torch.Tensor, classes: int | None = None) -> Federation:
    """Three clients; the first has no test data."""
    n = len(y)
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(1))
    ends = np.cumsum(SIZES)
    starts = ends - SIZES
    bounds = np.array([[s, s + 2, s + 4 if m else e, e] for m, (s, e) in enumerate(zip(starts, ends, strict=True))])
    return Federation(x=x, y=y, bounds=bounds, ids=("a", "b", "c"), classes=classes)


def measured(task: tasks.LearningTask, module: nn.Module, y: torch.Tensor, classes: int | None = None):
    """What both engines say, and each client's outputs and labels."""
    fed, made = federation(y, classes), Task(module, task)
    made.check(fed.x[:2], y[:2])
    ids = np.arange(3)
    loop, stacked = (kind(made, fed, Local(), 0) for kind in (LoopEngine, StackedEngine))
    own = torch.stack([made.theta0 * factor for factor in (1.0, -0.7, 2.0)])
    for theta in (own, made.theta0):
        one, other = (measure_split(engine, theta, ids, "test") for engine in (loop, stacked))
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-5, atol=1e-7, err_msg=name)
    found = measure_split(stacked, own, ids, "test")
    starts, sizes = fed.starts("test"), fed.sizes("test")
    rows = [slice(starts[m], starts[m] + sizes[m]) for m in ids]
    with torch.no_grad():
        outputs = [made.predict(own[m], fed.x[rows[m]]).numpy() for m in ids]
    return found, outputs, [y[r].numpy() for r in rows]


def integers(below: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, below, (sum(SIZES), *shape), generator=torch.Generator().manual_seed(2))


def test_regression_is_what_scikit_learn_says():
    y = 1000 + torch.randn(sum(SIZES), generator=torch.Generator().manual_seed(2))
    y[SIZES[0] : SIZES[0] + SIZES[1]] = 7.0  # R² has no value where all targets are the same
    found, outputs, labels = measured(tasks.Regression(), nn.Linear(3, 1), y)
    assert np.isnan(found["rmse"][0]) and np.isnan(found["r2"][1])
    o, t = outputs[2].astype(np.float64).ravel(), labels[2].astype(np.float64)
    assert found["rmse"][2] == pytest.approx(sk.root_mean_squared_error(t, o))
    assert found["mae"][2] == pytest.approx(sk.mean_absolute_error(t, o), rel=1e-5)
    assert found["r2"][2] == pytest.approx(sk.r2_score(t, o), rel=1e-4)


def test_regression_of_several_targets():
    y = torch.randn(sum(SIZES), 2, generator=torch.Generator().manual_seed(2)) * torch.tensor([1.0, 10.0])
    found, outputs, labels = measured(tasks.Regression(), nn.Linear(3, 2), y)
    assert found["r2"][2] == pytest.approx(sk.r2_score(labels[2], outputs[2]), rel=1e-4)
    assert found["rmse"][2] == pytest.approx(np.sqrt(sk.mean_squared_error(labels[2], outputs[2])), rel=1e-5)


def test_classification_f1_and_auc():
    task = tasks.Classification(metrics=("accuracy", "f1", "auc"))
    found, outputs, labels = measured(task, nn.Linear(3, 2), integers(2), classes=2)
    for m in (1, 2):
        said, score = outputs[m].argmax(1), outputs[m][:, 1] - outputs[m][:, 0]
        assert found["correct"][m] == (said == labels[m]).sum()
        assert found["f1"][m] == pytest.approx(sk.f1_score(labels[m], said, average="macro"))
        assert found["auc"][m] == pytest.approx(sk.roc_auc_score(labels[m], score))


def test_multilabel_by_label_and_their_means():
    y = integers(2, 3).float()
    y[SIZES[0] : SIZES[0] + SIZES[1], 0] = 1.0  # one class: no AUC of that label for this client
    task = tasks.Multilabel(labels=("cough", "fever", "rash"))
    found, outputs, labels = measured(task, nn.Linear(3, 3), y)
    for m in (1, 2):
        aucs = [sk.roc_auc_score(labels[m][:, j], outputs[m][:, j]) for j in range(3) if (m, j) != (1, 0)]
        assert found["auc"][m] == pytest.approx(np.mean(aucs))
        assert found["auc_rash"][m] == pytest.approx(aucs[-1])
        precision = [sk.average_precision_score(labels[m][:, j], outputs[m][:, j]) for j in range(3)]
        assert found["average_precision"][m] == pytest.approx(np.mean(precision))
        assert found["average_precision_fever"][m] == pytest.approx(precision[1])
        scores = sk.f1_score(labels[m], outputs[m] > 0, average=None)
        assert found["f1"][m] == pytest.approx(scores.mean())
        assert found["f1_cough"][m] == pytest.approx(scores[0])
        assert found["subset_accuracy"][m] == pytest.approx(sk.accuracy_score(labels[m], outputs[m] > 0))
    assert np.isnan(found["auc_cough"][1]) and not np.isnan(found["auc_cough"][2])


class Net(nn.Module):
    """Outputs of any shape."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.linear, self.shape = nn.Linear(3, int(np.prod(shape))), shape

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).reshape(len(x), *self.shape)


@pytest.fixture
def any_labels(monkeypatch):
    monkeypatch.setattr("personafl.federation.store.check_labels", lambda fed: None)


def test_segmentation_leaves_ignored_pixels_out(any_labels):
    y = integers(4, 5, 2)
    y[torch.rand(y.shape, generator=torch.Generator().manual_seed(5)) < 0.3] = -100
    found, outputs, labels = measured(tasks.Segmentation(), Net(5, 5, 2), y, classes=5)  # nobody has class 4
    for m in (1, 2):
        keep = labels[m] != -100
        said, true = outputs[m].argmax(1)[keep], labels[m][keep]
        assert found["iou"][m] == pytest.approx(sk.jaccard_score(true, said, average="macro"))
        assert found["dice"][m] == pytest.approx(sk.f1_score(true, said, average="macro"))
        assert found["pixel_accuracy"][m] == pytest.approx((said == true).mean())


def test_tagging_and_perplexity(any_labels):
    y = integers(4, 6)
    y[:, 4:] = -100
    found, outputs, labels = measured(tasks.Tagging(), Net(6, 4), y, classes=4)
    perplexed, _, _ = measured(tasks.NextToken(), Net(6, 4), y, classes=4)
    for m in (1, 2):
        said, true = outputs[m][:, :4].argmax(-1).ravel(), labels[m][:, :4].ravel()
        assert found["token_accuracy"][m] == pytest.approx((said == true).mean())
        assert found["f1"][m] == pytest.approx(sk.f1_score(true, said, average="macro"))
        p = torch.from_numpy(outputs[m][:, :4].reshape(-1, 4)).softmax(1)
        log_loss = sk.log_loss(true, p.double().numpy() / p.double().sum(1, keepdim=True).numpy(), labels=range(4))
        assert perplexed["perplexity"][m] == pytest.approx(np.exp(log_loss), rel=1e-5)


def harrell(risk, time, event):
    """Pair after pair."""
    better = pairs = 0.0
    for i, j in itertools.permutations(range(len(time)), 2):
        if event[i] and (time[i] < time[j] or (time[i] == time[j] and not event[j])):
            pairs += 1
            better += 1.0 if risk[i] > risk[j] else 0.5 if risk[i] == risk[j] else 0.0
    return better / pairs if pairs else np.nan


def test_concordance_of_cox_and_of_hazards():
    generator = torch.Generator().manual_seed(4)
    time = (torch.rand(sum(SIZES), generator=generator) * 4).round()
    y = torch.stack([time, (torch.rand(sum(SIZES), generator=generator) < 0.6).float()], 1)
    y[SIZES[0] : SIZES[0] + SIZES[1], 1] = 0  # nobody had an event: there are no pairs
    found, outputs, labels = measured(tasks.Cox(), nn.Linear(3, 1), y)
    assert np.isnan(found["concordance"][1])
    assert found["concordance"][2] == pytest.approx(harrell(outputs[2].ravel(), *labels[2].T))
    found, outputs, labels = measured(tasks.Hazard(bins=(1.0, 2.0, 3.0)), nn.Linear(3, 3), y)
    surviving = np.cumprod(1 / (1 + np.exp(outputs[2].astype(np.float64))), 1).sum(1)
    assert found["concordance"][2] == pytest.approx(harrell(-surviving, *labels[2].T))


def test_ties_in_scores():
    rng = np.random.default_rng(0)
    for _ in range(20):
        scores, y = rng.integers(0, 4, 30), rng.integers(0, 2, 30)
        assert metrics.area_under_curve(scores, y) == pytest.approx(sk.roc_auc_score(y, scores))
        assert metrics.average_precision(scores, y) == pytest.approx(sk.average_precision_score(y, scores))
        time = rng.integers(0, 5, 30).astype(float)
        assert metrics.concordance_index(scores, time, y) == pytest.approx(harrell(scores, time, y))


def test_held_back_samples_are_measured_as_others_are(any_labels):
    generator = torch.Generator().manual_seed(4)
    y = torch.stack([torch.rand(sum(SIZES), generator=generator), torch.ones(sum(SIZES))], 1)
    for task, module in ((tasks.Cox(), nn.Linear(3, 1)), (tasks.Regression(), nn.Linear(3, 2))):
        fed, made = federation(y), Task(module, task)
        ids = np.array([0, 1, 2])
        engines = [kind(made, fed, Local(held_back=0.5), 0) for kind in (LoopEngine, StackedEngine)]
        one, other = (measure_held_back(engine, made.theta0, ids) for engine in engines)
        for name in one:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-5, err_msg=name)
        held = engines[0].held_back_samples(ids)
        first = slice(fed.starts("val")[0], fed.starts("val")[0] + fed.sizes("val")[0])
        mine = torch.from_numpy(held[: fed.sizes("val")[0]])
        assert one["n"][0] == mine.sum()
        with torch.no_grad():
            outputs = made.predict(made.theta0, fed.x[first][mine]).numpy()
        name, expected = (
            ("rmse", np.sqrt(((outputs - y[first][mine].numpy()) ** 2).mean()))
            if task.name == "regression"
            else ("concordance", harrell(outputs.ravel(), *y[first][mine].numpy().T))
        )
        assert one[name][0] == pytest.approx(expected, rel=1e-5, nan_ok=True)


def test_a_model_that_gives_no_numbers_is_not_left_out():
    y = torch.randn(sum(SIZES))
    module = nn.Linear(3, 1)
    nn.init.constant_(module.bias, float("nan"))
    found, _, _ = measured(tasks.Regression(), module, y)
    assert np.isinf(found["rmse"][2]) and found["r2"][2] == -np.inf and np.isnan(found["rmse"][0])


# --- pooling ------------------------------------------------------------------------------------------------------


def test_clients_rmse_and_perplexity_pool_to_those_of_all_samples():
    rng = np.random.default_rng(1)
    n = np.array([3, 5, 0, 9])
    errors = [rng.normal(size=k) * (m + 1) for m, k in enumerate(n)]
    rmse, perplexity = (tasks.Regression().primary, tasks.NextToken().primary)
    with np.errstate(all="ignore"):
        own = [np.sqrt(np.mean(e**2)) if len(e) else np.nan for e in errors]
        surprise = [np.exp(np.mean(np.abs(e))) if len(e) else np.nan for e in errors]
    everything = np.concatenate(errors)
    assert rmse.pooled(own, n) == pytest.approx(np.sqrt(np.mean(everything**2)))
    assert perplexity.pooled(surprise, n) == pytest.approx(np.exp(np.mean(np.abs(everything))))
    # What is tested adds up to what ranks.
    total = np.nansum(rmse.points(own, n)) / n.sum()
    assert np.sqrt(-total) == pytest.approx(rmse.pooled(own, n))


# --- what is taken, and what is refused -------------------------------------------------------------------------


def test_what_labels_stand_for():
    assert tasks.task_of_labels(torch.tensor([0.5, 1.0])).name == "regression"
    assert tasks.task_of_labels(torch.tensor([0, 2])).name == "classification"
    assert tasks.task_of_labels(torch.tensor([[0, 1, 1], [1, 0, 0]])).name == "multilabel"
    assert tasks.task_of_labels(torch.tensor([[0, 3], [1, 0]])).name == "tagging"
    assert tasks.task_of_labels(torch.zeros(2, 4, 4, dtype=torch.int64)).name == "segmentation"
    with pytest.raises(DataError, match=r"of shape \(3, 1\) as labels: name a \[task\]"):
        tasks.task_of_labels(torch.zeros(3, 1, dtype=torch.int64))


@pytest.mark.parametrize(("task", "y", "said"), [
    (tasks.Classification(), torch.tensor([0.0, 1.0]), r"takes whole numbers of shape \(N,\).*float32"),
    (tasks.Classification(), torch.tensor([-1, 1]), "label -1 is below 0; classes count from 0"),
    (tasks.Tagging(), torch.tensor([[-1, 1]]), "label -1 is below 0.*or -100 for what does not count"),
    (tasks.Multilabel(), torch.tensor([[0, 2]]), "takes labels 0 and 1.*values up to 2"),
    (tasks.Multilabel(), torch.tensor([0, 1]), r"shape \(N, labels\), these have shape \(2,\)"),
    (tasks.Regression(), torch.zeros(2, 3, 3), r"these have \(2, 3, 3\)"),
    (tasks.Cox(), torch.zeros(2), r"labels of shape \(N, 2\), time and event"),
    (tasks.Cox(), torch.tensor([[1.0, 2.0]]), r"must be 1 \(event\) or 0 \(censored\)"),
    (tasks.Hazard(), torch.tensor([[-1.0, 1.0]]), "times below 0, such as -1"),
])  # fmt: skip
def test_labels_that_are_none_of_the_tasks(task, y, said):
    with pytest.raises(DataError, match=said):
        task.check_labels(y)


@pytest.mark.parametrize(("task", "outputs", "y", "said"), [
    (tasks.Classification(), (4, 3), torch.tensor([0, 1, 2, 3]), "has 3 outputs but the data has label 3"),
    (tasks.Classification(class_weights=(1.0, 2.0)), (2, 3), torch.tensor([0, 1]), "has 2 weights for 3 classes"),
    (tasks.Classification(metrics=("auc",)), (2, 3), torch.tensor([0, 1]), "auc is for two classes"),
    (tasks.Segmentation(), (2, 4, 4, 3), torch.zeros(2, 4, 4).long(), r"must be \(2, classes, 4, 4\)"),
    (tasks.Tagging(), (2, 3, 5), torch.zeros(2, 5).long(), r"must be \(2, 5, classes\)"),
    (tasks.Multilabel(), (2, 3), torch.zeros(2, 4), "one output for each label"),
    (tasks.Regression(), (2, 3), torch.zeros(2), "one output for each target"),
    (tasks.Cox(), (2, 2), torch.zeros(2, 2), "needs one output, the log-risk"),
    (tasks.Hazard(bins=(1.0, 2.0)), (2, 3), torch.zeros(2, 2), "has 2 intervals and needs as many outputs"),
])  # fmt: skip
def test_outputs_that_do_not_fit(task, outputs, y, said):
    with pytest.raises(ModelError, match=said):
        task.check_outputs(torch.zeros(outputs), y)


@pytest.mark.parametrize("name", ["loss", "correct", "val_x", "held_y", "a b", "", "1st"])
def test_names_that_metrics_cannot_have(name):
    with pytest.raises(ConfigError, match="cannot be called"):
        tasks.Metric(name=name, function=len)
