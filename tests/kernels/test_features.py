"""Features beside outputs: against forward hooks and autograd in plain torch."""

import copy
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from personafl.errors import ConfigError, ModelError
from personafl.kernels.task import Batch, Task
from tests.modules.networks import BasicBlock, GRUClassifier, UNet
from tests.task_models import CLASSES, keys, labels, random, seeded

K, B = 3, 5


class LastStep(nn.Module):
    """torch's own LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, batch_first=True)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Residual(nn.Module):
    """Two blocks with batch normalization and changes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(BasicBlock(1, 2), BasicBlock(2, 3, 2))
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(3, CLASSES)

    def forward(self, x):
        return self.fc(self.pool(self.blocks(x)).flatten(1))


MODELS = {
    "linear": (lambda: nn.Linear(4, CLASSES), (4,), ""),
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, CLASSES)), (4,), "2"),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(12, CLASSES)
        ),
        (1, 6, 6),
        "4",
    ),
    "lstm": (LastStep, (7, 4), "head"),
    "gru": (lambda: GRUClassifier(4), (7, 4), "head"),
    "residual": (Residual, (1, 6, 6), "fc"),
    "parametrized head": (
        lambda: nn.Sequential(
            nn.Linear(4, 6), nn.Tanh(), nn.utils.parametrizations.weight_norm(nn.Linear(6, CLASSES))
        ),
        (4,),
        "2",
    ),
}  # fmt: skip


def clients(task: Task, shape: tuple[int, ...], padded: bool = True) -> tuple[torch.Tensor, Batch]:
    """K vectors of parameters and batches; the second client has a sample less."""
    theta = task.theta0 + 0.1 * random(K, task.size, seed=1)
    weight = torch.ones(K, B)
    weight[1, -1] = 0.0 if padded else 1.0
    return theta, Batch(random(K, B, *shape, seed=2), labels(K, B), weight, keys(K))


def in_torch(module: nn.Module, task: Task, theta: torch.Tensor, x, layer: str, side: str = "input"):
    """Parameters that require a gradient, outputs, and features by a forward hook."""
    net = copy.deepcopy(module)
    net.load_state_dict(task.state_dict(theta), strict=False)
    seen = []
    if side == "input":
        net.get_submodule(layer).register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    else:
        net.get_submodule(layer).register_forward_hook(lambda module, args, output: seen.append(output.clone()))
    outputs = net(x)
    return list(net.parameters()), outputs, seen[0].flatten(1)


def term(outputs, y, features, centre):
    """Something of both, curved in each."""
    return (features - centre).square().sum(1) * (1 + outputs.square().mean(1))


term.uses_features = True


def added(outputs, y, features, centre):
    return term(outputs, y, features, centre)


added.uses_features = added.added_to_loss = True


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("objective", [term, added])
def test_gradients_of_an_objective_of_both_are_those_of_autograd(name, objective):
    made, shape, layer = MODELS[name]
    module = seeded(made)
    task = Task(module)
    theta, batch = clients(task, shape)
    centre, expected = 0.5 * torch.ones(K, 1), []
    for k in range(K):
        count = int(batch.weight[k].sum())
        y = batch.y[k, :count]
        parameters, outputs, features = in_torch(module, task, theta[k], batch.x[k, :count], layer)
        loss = term(outputs, y, features, centre[k]).mean()
        loss = loss + (F.cross_entropy(outputs, y) if objective is added else 0)
        found = torch.autograd.grad(loss, parameters)
        expected.append(torch.cat([g.flatten() for g in found]))
    alone = []
    for k in range(K):
        own = Batch(batch.x[k], batch.y[k], batch.weight[k], batch.key[k])
        alone.append(task.gradient(theta[k], own, objective, centre=centre[k]))
    together = task.gradient_stacked(theta, batch, objective, centre=centre)
    for found in (torch.stack(alone), together):
        for k in range(K):
            assert float((found[k] - expected[k]).norm() / expected[k].norm()) < 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_features_are_those_of_a_forward_hook(name):
    made, shape, layer = MODELS[name]
    module = seeded(made)
    task = Task(module)
    theta, batch = clients(task, shape, padded=False)
    both = task.with_features.predict_stacked(theta, batch.x, batch.weight)
    for k in range(K):
        _, outputs, features = in_torch(module, task, theta[k], batch.x[k], layer)
        torch.testing.assert_close(both[k], torch.cat([outputs, features], 1), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(task.features_of(both)[k], features, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(task.with_features.predict(theta[k], batch.x[k]), both[k], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "named, layer, side",
    [
        ("blocks.1.bn2", "blocks.1.bn2", "output"),
        ("pool.output", "pool", "output"),
        ("blocks.0.conv2.input", "blocks.0.conv2", "input"),
    ],
)
def test_a_layer_can_be_named_by_its_output_or_input(named, layer, side):
    """What comes after it may change it in place: features are what the layer gave."""
    module = seeded(Residual)
    task = Task(module)
    task.feature_layer = named
    theta, batch = clients(task, (1, 6, 6), padded=False)
    both = task.with_features.predict_stacked(theta, batch.x, batch.weight)
    _, outputs, features = in_torch(module, task, theta[2], batch.x[2], layer, side)
    torch.testing.assert_close(both[2], torch.cat([outputs, features], 1), rtol=1e-4, atol=1e-5)


class Returns(nn.Module):
    """A module that says what its features are."""

    def __init__(self, made) -> None:
        super().__init__()
        self.body, self.head, self.made = nn.Linear(4, 6), nn.Linear(6, CLASSES), made

    def forward(self, x):
        hidden = self.body(x)
        return self.made(self.head(hidden.tanh()), 2 * hidden)


@pytest.mark.parametrize(
    "made",
    [
        lambda t, f: (t, f),
        lambda t, f: {"logits": t, "features": f[:, None]},
        lambda t, f: SimpleNamespace(logits=t, features=f),
    ],
)
def test_what_a_module_returns_beside_its_outputs_are_the_features(made):
    module = seeded(Returns, made)
    task = Task(module)
    theta, batch = clients(task, (4,))
    both = task.with_features.predict_stacked(theta, batch.x, batch.weight)
    assert torch.equal(both[..., :CLASSES], task.predict_stacked(theta, batch.x, batch.weight))
    body = Task(seeded(nn.Linear, 4, 6))
    expected = 2 * body.predict_stacked(theta[:, : body.size], batch.x, batch.weight)
    torch.testing.assert_close(task.features_of(both), expected)


def test_a_hidden_state_that_comes_second_is_not_taken_for_features():
    task = Task(seeded(Returns, lambda t, f: (t, f[None])))
    theta, batch = clients(task, (4,))
    assert task.features_of(task.with_features.predict(theta[0], batch.x[0][:1])).shape == (1, 6)
    both = task.with_features.predict(theta[0], batch.x[0])
    torch.testing.assert_close(task.features_of(both), task.module(theta[0]).body(batch.x[0]).tanh())


def test_dropout_and_batch_normalization_are_as_without_features():
    """The same random numbers, and the same statistics in the same places of the vector."""
    module = seeded(
        lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, CLASSES))
    )
    task = Task(module)
    theta, batch = clients(task, (4,))

    def loss(outputs, y, features):
        return F.cross_entropy(outputs, y, reduction="none") + 0 * features.sum(1)

    loss.uses_features = True
    torch.testing.assert_close(task.gradient_stacked(theta, batch, loss), task.gradient_stacked(theta, batch))
    for k in range(K):
        own = Batch(batch.x[k], batch.y[k], batch.weight[k], batch.key[k])
        torch.testing.assert_close(task.gradient(theta[k], own, loss), task.gradient(theta[k], own))
    whole = torch.cat([theta, torch.full((K, 8), 0.3), torch.full((K, 8), 2.0)], 1)
    both = task.with_features.predict_stacked(whole, batch.x, batch.weight)
    torch.testing.assert_close(both[..., :CLASSES], task.predict_stacked(whole, batch.x, batch.weight))


def test_in_bfloat16_they_are_nearly_the_same():
    task = Task(seeded(MODELS["mlp"][0]))
    theta, batch = clients(task, (4,))
    exact = task.gradient_stacked(theta, batch, term, centre=torch.zeros(K, 1))
    task.precision = "bf16"
    rough = task.gradient_stacked(theta, batch, term, centre=torch.zeros(K, 1))
    assert rough.dtype == torch.float32 and not torch.equal(rough, exact)
    assert float((rough - exact).norm() / exact.norm()) < 0.05


def test_threads_and_several_inputs():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(4, 6), nn.Linear(6, CLASSES)

        def forward(self, a, b):
            return {"logits": self.head(self.body(a) * b)}

    task = Task(seeded(Two))
    x = {"a": random(K, B, 4), "b": random(K, B, 1, seed=3)}
    theta = task.theta0.expand(K, -1)
    task.feature_layer = "body"
    for one in (task, task.copy()):
        both = one.with_features.predict_stacked(theta, x, torch.ones(K, B))
        torch.testing.assert_close(one.features_of(both)[1], task.module(task.theta0).body(x["a"][1]))


class HeadFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(6, CLASSES), nn.Linear(4, 6)

    def forward(self, x):
        return self.head(self.body(x))


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize(
    "made, shape, layer, message",
    [
        (lambda: UNet(CLASSES), (1, 8, 8), "", r"outputs \(batch, n\): UNet gives outputs of shape \(\d+, 3, 8, 8\)"),
        (HeadFirst, (4,), "", "'body' has the last parameters, but 'head' is computed after it: name another layer as"),
        (LastStep, (7, 4), "lstm.input", None),
        (lambda: nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (-1, 4)), nn.Linear(4, CLASSES)), (4,), "0",
         "the output of layer '0' has shape .* for .* samples: its first axis must be that of the samples"),
    ],
)  # fmt: skip
def test_models_without_features_are_refused_in_one_line(made, shape, layer, message, stacked):
    task = Task(seeded(made))
    task.feature_layer = layer
    theta, batch = clients(task, shape)

    def ask():
        if stacked:
            return task.gradient_stacked(theta, batch, term, centre=torch.zeros(K, 1))
        own = Batch(batch.x[0], batch.y[0], batch.weight[0], batch.key[0])
        return task.gradient(theta[0], own, term, centre=torch.zeros(1))

    if message is None:
        assert torch.isfinite(ask()).all()
        return
    with pytest.raises(ModelError, match=message) as error:
        ask()
    assert "\n" not in str(error.value) and "not stacked" not in str(error.value)


def test_a_layer_that_is_not_there_is_refused_before_training():
    task = Task(seeded(LastStep))
    with pytest.raises(
        ConfigError, match=r"local.features = 'heads': LastStep has no such layer \(did you mean 'head'"
    ):
        task.feature_layer = "heads"
