"""Random numbers in a forward pass: from the client's key, the same alone and among others, and random."""

from __future__ import annotations

import math
import random as python_random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn

from personafl.errors import ModelError
from personafl.kernels.frame import Frame
from personafl.kernels.randomness import KeyedDraws, draw, uniform
from personafl.kernels.task import Batch, Task
from tests.task_models import CLASSES, keys, labels, random

WIDTH = 6


class Noisy(nn.Module):
    """A linear layer, something random, a linear layer."""

    def __init__(self, middle) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, WIDTH), middle, nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x)))


class Of(nn.Module):
    """A function of the features and of whether clients train."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x) if self.training else x


class Attention(nn.Module):
    def __init__(self, weights: bool) -> None:
        super().__init__()
        self.attention, self.weights = nn.MultiheadAttention(2, 1, dropout=0.4, batch_first=True), weights

    def forward(self, x: Tensor) -> Tensor:
        steps = x.unflatten(-1, (3, 2))
        return self.attention(steps, steps, steps, need_weights=self.weights)[0].flatten(1)


class TimeFirst(nn.Module):
    """The default of torch's transformers and recurrent layers: (time, sample, features)."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x.unflatten(-1, (3, 2)).transpose(0, 1))
        return (out[0] if isinstance(out, tuple) else out).transpose(0, 1).flatten(1)


def depth(x: Tensor) -> Tensor:
    """Stochastic depth as timm writes it: whole samples are dropped."""
    return x * x.new_empty((len(x), *(1,) * (x.dim() - 1))).bernoulli_(0.7) / 0.7


MIDDLES = {
    "F.dropout": lambda: Of(lambda x: F.dropout(x, 0.4)),
    "F.dropout in place": lambda: Of(lambda x: F.dropout(x * 1, 0.4, inplace=True)),
    "F.dropout1d": lambda: Of(lambda x: F.dropout1d(x.unflatten(-1, (3, 2)), 0.4).flatten(1)),
    "alpha dropout": lambda: nn.AlphaDropout(0.3),
    "feature alpha dropout": lambda: nn.Sequential(nn.Unflatten(-1, (3, 2)), nn.FeatureAlphaDropout(0.3), nn.Flatten()),
    "rrelu": lambda: nn.RReLU(),
    "stochastic depth": lambda: Of(depth),
    "noise": lambda: Of(lambda x: x + torch.randn_like(x)),
    "rand": lambda: Of(lambda x: x * torch.rand(x.shape[0], 1)),
    "one number for the batch": lambda: Of(lambda x: x * (1 + torch.rand(()))),
    "bernoulli": lambda: Of(lambda x: x * torch.bernoulli(torch.full((len(x),), 0.5)).unsqueeze(1)),
    "randint": lambda: Of(lambda x: x * torch.randint(1, 4, (x.shape[0], 1))),
    "order": lambda: Of(lambda x: x + x[torch.randperm(len(x))]),
    "gumbel": lambda: Of(lambda x: F.gumbel_softmax(x)),
    "multinomial": lambda: Of(lambda x: x + torch.multinomial(x.detach().softmax(-1), 2).sum(1, keepdim=True)),
    "normal": lambda: Of(lambda x: torch.normal(x.detach(), 0.5) * x),
    "attention": lambda: Attention(False),
    "attention with weights": lambda: Attention(True),
    "scaled_dot_product_attention": lambda: Of(
        lambda x: F.scaled_dot_product_attention(*[x.unflatten(-1, (1, 3, 2))] * 3, dropout_p=0.3).flatten(1)
    ),
    "transformer layer": lambda: TimeFirst(nn.TransformerEncoderLayer(2, 1, 5, dropout=0.3)),
    "lstm": lambda: TimeFirst(nn.LSTM(2, 2, 2, dropout=0.5)),
    "gru": lambda: TimeFirst(nn.GRU(2, 2, 2, dropout=0.5)),
    "after a layer of dropout": lambda: nn.Sequential(
        nn.Dropout(0.3), Of(lambda x: F.dropout(x, 0.3)), nn.Dropout(0.3)
    ),
}


@pytest.fixture(params=MIDDLES)
def task(request) -> Task:
    torch.manual_seed(0)
    return Task(Noisy(MIDDLES[request.param]()))


def batches() -> Batch:
    """Three clients; the second has two samples less, the rest is padding."""
    weight = torch.ones(3, 5)
    weight[1, 3:] = 0
    return Batch(random(3, 5, 4), labels(3, 5), weight, keys(3))


def alone(batch: Batch, k: int) -> Batch:
    n = int(batch.weight[k].sum())
    return Batch(batch.x[k, :n], batch.y[k, :n], torch.ones(n), batch.key[k])


def test_a_client_draws_the_same_alone_and_among_others(task):
    batch = batches()
    theta = task.theta0.expand(3, -1).contiguous()
    if task.unstackable(batch.x[0], batch.y[0]) is not None:
        pytest.fail(f"does not stack: {task.unstackable(batch.x[0], batch.y[0])}")
    together = task.gradient_stacked(theta, batch)
    for k in range(3):
        torch.testing.assert_close(together[k], task.gradient(task.theta0, alone(batch, k)), rtol=1e-4, atol=1e-5)


def test_the_key_decides_and_the_process_generator_has_no_say(task):
    batch = alone(batches(), 0)
    other = Batch(batch.x, batch.y, batch.weight, keys(2)[1])
    task.check(batch.x, batch.y)
    losses = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        losses.append((task.loss(task.theta0, batch).item(), task.loss(task.theta0, other).item()))
        assert torch.equal(state, torch.get_rng_state())
    assert losses[0] == losses[1]
    assert losses[0][0] != losses[0][1]


def test_evaluation_does_not_draw(task):
    batch = alone(batches(), 0)
    outputs = task.predict(task.theta0, batch.x)
    torch.testing.assert_close(outputs, task.module(task.theta0)(batch.x), rtol=1e-4, atol=1e-5)


# --- the numbers are random ------------------------------------------------------------------------------------------

DISTRIBUTIONS = {
    "rand": (lambda: torch.rand(200, 300), stats.uniform()),
    "randn": (lambda: torch.randn(200, 300), stats.norm()),
    "uniform": (lambda: torch.empty(200, 300).uniform_(-1, 3), stats.uniform(-1, 4)),
    "normal": (lambda: torch.empty(200, 300).normal_(2, 3), stats.norm(2, 3)),
    "normal of tensors": (lambda: torch.normal(torch.ones(200, 300), 2.0), stats.norm(1, 2)),
    "exponential": (lambda: torch.empty(200, 300).exponential_(2.0), stats.expon(scale=0.5)),
    "cauchy": (lambda: torch.empty(200, 300).cauchy_(1, 2), stats.cauchy(1, 2)),
    "log normal": (lambda: torch.empty(200, 300).log_normal_(0.5, 0.25), stats.lognorm(0.25, scale=math.exp(0.5))),
}
COUNTED = {
    "bernoulli": (lambda: torch.full((200, 300), 0.3).bernoulli(), stats.bernoulli(0.3)),
    "geometric": (lambda: torch.empty(200, 300).geometric_(0.4), stats.geom(0.4)),
    "randint": (lambda: torch.randint(-2, 5, (200, 300)), stats.randint(-2, 5)),
    "random": (lambda: torch.empty(200, 300).random_(3, 9), stats.randint(3, 9)),
    "multinomial": (lambda: torch.multinomial(torch.tensor([[1.0, 2.0, 1.0]] * 60000), 1), stats.binom(2, 0.5)),
    "multinomial with replacement": (
        lambda: torch.multinomial(torch.tensor([1.0, 2.0, 1.0]), 60000, replacement=True), stats.binom(2, 0.5),
    ),
    "rest of a dropout": (lambda: F.dropout(torch.ones(200, 300), 0.2) * 0.8, stats.bernoulli(0.8)),
}  # fmt: skip


def drawn(make) -> np.ndarray:
    frame = Frame()
    frame.enter(keys(1)[0], None)
    with KeyedDraws(frame):
        return make().flatten().double().numpy()


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_numbers_have_the_distribution_that_torch_says(name):
    make, expected = DISTRIBUTIONS[name]
    assert stats.kstest(drawn(make), expected.cdf).pvalue > 1e-4


@pytest.mark.parametrize("name", COUNTED)
def test_counts_have_the_distribution_that_torch_says(name):
    make, expected = COUNTED[name]
    values = drawn(make).round()
    for value in np.unique(values)[:6]:
        p = expected.pmf(value)
        assert abs((values == value).mean() - p) < 5 * math.sqrt(p * (1 - p) / len(values))


def test_neighbours_in_every_direction_are_independent():
    """Along rows, columns, clients and draws."""
    cube = torch.stack([uniform(draw((40, 40, 40), key, call)) for key in keys(3) for call in (1, 2)]).double()
    for axis in range(4):
        a, b = cube.narrow(axis, 0, cube.shape[axis] - 1), cube.narrow(axis, 1, cube.shape[axis] - 1)
        correlation = np.corrcoef(a.flatten(), b.flatten())[0, 1]
        assert abs(correlation) < 5 / math.sqrt(a.numel())


def test_an_order_is_an_order_and_leaves_padding_at_the_end():
    frame = Frame()
    frame.enter(keys(1)[0], torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0]))
    with KeyedDraws(frame):
        order = torch.randperm(5)
    assert sorted(order.tolist()) == [0, 1, 2, 3, 4] and order[3:].tolist() == [3, 4]


# --- what cannot be controlled ---------------------------------------------------------------------------------------


class Unknown(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.poisson(torch.ones(1))


class Numpy(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        scale = 1 + np.random.rand()
        return super().forward(x) * scale


class Python(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out if python_random.random() < 0.5 else -out


def test_an_operation_that_is_not_known_is_refused_with_its_name_and_line():
    line = Unknown.forward.__code__.co_firstlineno + 1
    with pytest.raises(ModelError, match=rf"poisson \(test_randomness\.py, line {line}\)"):
        Task(Unknown(4, CLASSES)).check(random(4, 4), labels(4))


@pytest.mark.parametrize("kind, more", [(Numpy, 1), (Python, 2)])
def test_other_generators_are_refused_with_the_line(kind, more):
    line = kind.forward.__code__.co_firstlineno + more
    with pytest.raises(ModelError, match=rf"{kind.__name__} draws from .* \(test_randomness\.py:{line}\)"):
        Task(kind(4, CLASSES)).check(random(4, 4), labels(4))
