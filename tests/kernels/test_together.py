"""A model runs for many clients at once only in a way that gives what each client gives alone."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from personafl.errors import ModelError
from personafl.kernels.task import Batch, Task
from tests.task_models import CLASSES, keys, labels, random

FEATURES, STEPS = 6, 5


class Net(nn.Module):
    """A linear layer and a head; subclasses say what happens between them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)
        self.more()

    def more(self):
        pass

    def forward(self, x):
        return self.head(self.between(self.first(x)))


class Centred(Net):
    def between(self, h):
        return h - h.mean(0)


class BatchNormByHand(Net):
    def between(self, h):
        return (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-5).sqrt()


class ByLength(Net):
    def between(self, h):
        return h / len(h)


class AcrossTheBatch(Net):
    """Softmax over the wrong axis: a classic."""

    def between(self, h):
        return torch.softmax(h, 0)


class Neighbours(Net):
    def between(self, h):
        return h + h.roll(1, 0)


class OneNumberForAll(Net):
    def between(self, h):
        return h * torch.rand(1) if self.training else h


class Branch(Net):
    def between(self, h):
        return h.relu() if h.max() > 100 else h


class RowsByHand(Net):
    """Time and samples as one axis and back: rows stay together."""

    def forward(self, x):
        h = self.first(x.reshape(-1, FEATURES)).view(*x.shape[:-1], 8)
        return self.head(h.relu().mean(1))


class TimeFirst(Net):
    def more(self):
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
        self.encoder, self.drop = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Dropout(0.5)

    def forward(self, x):
        return self.head(self.drop(self.encoder(self.first(x).transpose(0, 1))).mean(0))


class Scale(Net):
    def more(self):
        self.gamma = nn.Parameter(torch.ones(8))

    def between(self, h):
        return self.gamma * h.tanh()


class Temperature(Net):
    def more(self):
        self.temperature = nn.Parameter(torch.tensor(0.7))

    def between(self, h):
        return h / self.temperature.exp()


class Tokens(Net):
    """A class token that is expanded, and positions."""

    def more(self):
        self.token, self.positions = nn.Parameter(torch.zeros(1, 1, 8)), nn.Parameter(torch.randn(1, STEPS + 1, 8))

    def forward(self, x):
        h = torch.cat([self.token.expand(len(x), -1, -1), self.first(x)], 1) + self.positions
        return self.head(h.tanh()[:, 0] + h.tanh().mean(1))


class RepeatedTokens(Tokens):
    def forward(self, x):
        h = torch.cat([self.token.repeat(x.shape[0], 1, 1), self.first(x)], 1) + self.positions
        return self.head(h.tanh().mean(1))


class Positions(Net):
    def more(self):
        self.positions = nn.Embedding(STEPS, 8)

    def forward(self, x):
        return self.head((self.first(x) + self.positions(torch.arange(x.shape[1]))).tanh().mean(1))


class Functional(Net):
    """Weights of the module's own, used by functions."""

    def more(self):
        self.weight, self.shift = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.zeros(8))

    def between(self, h):
        return F.layer_norm(F.linear(h, self.weight, self.shift), (8,), self.shift)


class Looped(nn.Module):
    """A layer of somebody's that vmap has no rule for."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(8))

    def forward(self, h):
        if torch._C._functorch.is_batchedtensor(h):
            raise RuntimeError("no rule")
        return h @ self.weight


class WithLooped(Net):
    def more(self):
        self.layer = Looped()

    def between(self, h):
        return self.layer(h)


class OwnNorm(nn.LayerNorm):
    """Of channels, as several libraries have it."""

    def forward(self, x):
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class WithOwnNorm(Net):
    def more(self):
        self.norm = OwnNorm(8)

    def forward(self, x):
        return self.head(self.norm(self.first(x).transpose(1, 2)).mean(2))


def assert_as_alone(task, x, clients=3, samples=4):
    """Gradients and outputs of clients of unequal size, in training and evaluation."""
    theta = torch.stack([task.theta0 + 0.1 * random(task.size, seed=k) for k in range(clients)])
    y, weight = labels(clients, samples), torch.ones(clients, samples)
    weight[1, -1] = 0
    batch = Batch(x, y, weight, keys(clients))
    found, outputs = task.gradient_stacked(theta, batch), task.predict_stacked(theta, x, weight)
    for k in range(clients):
        n = int(weight[k].sum())
        own = Batch(x[k, :n], y[k, :n], weight[k, :n], batch.key[k])
        torch.testing.assert_close(found[k], task.gradient(theta[k], own), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(outputs[k, :n], task.predict(theta[k], x[k, :n]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", [Centred, BatchNormByHand, ByLength, AcrossTheBatch, Neighbours, OneNumberForAll])
def test_what_mixes_rows_is_not_stacked(kind):
    task = Task(kind())
    found = task.way(random(6, FEATURES))
    assert found.way != "stacked" and found.reasons["stacked"]
    if found.way == "looped":
        assert task.unstackable(random(6, FEATURES), labels(6)) == found.reason
        with pytest.raises(ModelError, match="cannot run for clients at once"):
            task.predict_stacked(task.theta0[None], random(1, 4, FEATURES), torch.ones(1, 4))
    else:
        assert_as_alone(task, random(3, 4, FEATURES))


@pytest.mark.parametrize("kind", [Centred, BatchNormByHand, ByLength, AcrossTheBatch])
def test_what_mixes_rows_with_padding_is_not_mapped_either(kind):
    assert Task(kind()).way(random(6, FEATURES)).way == "looped"


def test_a_branch_on_values_names_its_line():
    reason = Task(Branch()).way(random(6, FEATURES)).reasons["stacked"]
    assert "test_together.py, line" in reason and "control flow" in reason


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (RowsByHand, (STEPS, FEATURES)),
        (TimeFirst, (STEPS, FEATURES)),
        (Scale, (FEATURES,)),
        (Temperature, (FEATURES,)),
        (Tokens, (STEPS, FEATURES)),
        (RepeatedTokens, (STEPS, FEATURES)),
        (Positions, (STEPS, FEATURES)),
        (Functional, (FEATURES,)),
        (WithLooped, (FEATURES,)),
        (WithOwnNorm, (STEPS, FEATURES)),
    ],
)
def test_what_leaves_rows_apart_is_stacked(kind, shape):
    task = Task(kind())
    found = task.way(random(6, *shape))
    assert found.way == "stacked", found.reason
    assert ("looped" in found.models[True].ways.values()) == (kind is WithLooped)
    assert_as_alone(task, random(3, 4, *shape))


@pytest.mark.parametrize("steps", [3, 12, 24])
def test_time_that_is_as_long_as_there_are_rows_is_not_taken_for_them(steps):
    """3 clients with 4 samples are 12 rows; time comes first."""
    task = Task(TimeFirst())
    task.way(random(6, STEPS, FEATURES))
    assert_as_alone(task, random(3, 4, steps, FEATURES))


def test_the_first_samples_that_come_decide_where_nobody_asked():
    task = Task(Scale())
    assert_as_alone(task, random(3, 4, FEATURES))
    assert task.way(random(6, FEATURES)).way == "stacked"


def test_another_thread_need_not_find_out_again(monkeypatch):
    task = Task(TimeFirst())
    task.way(random(6, STEPS, FEATURES))
    copy = task.copy()
    monkeypatch.setattr("personafl.kernels.together.find", lambda *args: pytest.fail("tried again"))
    assert_as_alone(copy, random(3, 4, 12, FEATURES))


def test_inputs_by_name():
    class Named(Net):
        def forward(self, image, factor):
            return self.head(self.first(image).tanh() * factor[:, None])

    task, x = Task(Named()), {"image": random(3, 4, FEATURES), "factor": random(3, 4, seed=1)}
    theta = torch.stack([task.theta0 + 0.1 * random(task.size, seed=k) for k in range(3)])
    outputs = task.predict_stacked(theta, x, torch.ones(3, 4))
    assert task.way({name: value[0] for name, value in x.items()}).way == "stacked"
    for k in range(3):
        own = {name: value[k] for name, value in x.items()}
        torch.testing.assert_close(outputs[k], task.predict(theta[k], own))


def test_bf16_is_near_float32_and_parameters_stay_float32():
    task = Task(TimeFirst())
    x, y = random(3, 4, STEPS, FEATURES), labels(3, 4)
    theta, batch = task.theta0.expand(3, -1), Batch(x, y, torch.ones(3, 4), keys(3))
    exact = task.gradient_stacked(theta, batch)
    task.precision = "bf16"
    rough = task.gradient_stacked(theta, batch)
    alone = task.gradient(theta[0], Batch(x[0], y[0], batch.weight[0], batch.key[0]))
    assert rough.dtype == alone.dtype == torch.float32
    assert 0 < float((rough - exact).norm() / exact.norm()) < 0.05
    assert 0 < float((alone - exact[0]).norm() / exact[0].norm()) < 0.05


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_bf16_of_recurrent_layers(kind):
    class Recurrent(Net):
        def more(self):
            self.layer = kind(FEATURES, 8, batch_first=True)

        def forward(self, x):
            return self.head(self.layer(x)[0].mean(1))

    task = Task(Recurrent())
    batch = Batch(random(3, 4, STEPS, FEATURES), labels(3, 4), torch.ones(3, 4), keys(3))
    exact = task.gradient_stacked(task.theta0.expand(3, -1), batch)
    task.precision = "bf16"
    rough = task.gradient_stacked(task.theta0.expand(3, -1), batch)
    assert 0 < float((rough - exact).norm() / exact.norm()) < 0.05
