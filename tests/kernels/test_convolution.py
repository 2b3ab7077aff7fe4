"""Convolutions and poolings for K clients at once are the same as K of torch's."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from personafl.kernels import convolution, stacking
from personafl.kernels.task import Batch, Task
from personafl.models import CNN, FemnistCNN
from personafl_papers.models.wakeword import WakewordCNN

CLIENTS, SAMPLES = 3, 2


@pytest.fixture(autouse=True)
def same_numbers_every_time() -> None:
    torch.manual_seed(0)


def assert_equals_one_by_one(module: nn.Module, x: torch.Tensor) -> None:
    """Outputs and gradients of all parameters and of x."""
    assert stacking.supports(module)
    params = {n: torch.randn(CLIENTS, *p.shape, requires_grad=True) for n, p in module.named_parameters()}
    x = x.clone().requires_grad_()
    together = stacking.forward(module, params, x)
    apart = torch.stack(
        [functional_call(module, {n: p[k] for n, p in params.items()}, (x[k],)) for k in range(CLIENTS)]
    )
    torch.testing.assert_close(together, apart, rtol=1e-5, atol=1e-5)
    direction = torch.randn_like(apart)
    found = torch.autograd.grad((together * direction).sum(), [x, *params.values()])
    expected = torch.autograd.grad((apart * direction).sum(), [x, *params.values()])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-4)


SETTINGS = [
    {},
    {"bias": False},
    {"padding": 1},
    {"padding": (0, 2)},
    {"padding": "valid"},
    {"stride": 2},
    {"stride": (2, 3), "padding": 1},
    {"stride": 3, "padding": (2, 1)},
    {"dilation": 2},
    {"dilation": (1, 2), "padding": 2},
    {"dilation": 2, "stride": 2},
    {"kernel_size": (2, 3)},
    {"kernel_size": 1},
    {"kernel_size": 1, "stride": 2},
    {"kernel_size": 4, "padding": 2},
    {"kernel_size": 2, "stride": 3},
]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("size", [(9, 9), (8, 11)], ids=str)
@pytest.mark.parametrize("channels", [2, 8])
def test_convolutions(setting, size, channels):
    layer = nn.Conv2d(channels, 4, **{"kernel_size": 3, **setting})
    assert_equals_one_by_one(layer, torch.randn(CLIENTS, SAMPLES, channels, *size))


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("between", [(), (nn.ReLU(),), (nn.Tanh(),)], ids=str)
@pytest.mark.parametrize("size", [(9, 9), (12, 11)], ids=str)
def test_convolutions_with_max_pooling(setting, between, size):
    module = nn.Sequential(nn.Conv2d(2, 4, **{"kernel_size": 3, **setting}), *between, nn.MaxPool2d(2))
    assert_equals_one_by_one(module, torch.randn(CLIENTS, SAMPLES, 2, *size))


@pytest.mark.parametrize(
    "pooling",
    [
        nn.MaxPool2d(2),
        nn.MaxPool2d(3),
        nn.MaxPool2d((2, 1)),
        nn.MaxPool2d(2, stride=1),
        nn.MaxPool2d(2, padding=1),
        nn.MaxPool2d(2, dilation=2),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.AvgPool2d(2),
        nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False),
        nn.AdaptiveAvgPool2d(1),
        nn.AdaptiveAvgPool2d((3, 2)),
    ],
    ids=repr,
)
def test_poolings(pooling):
    x = torch.randn(CLIENTS, SAMPLES, 2, 9, 7)
    assert_equals_one_by_one(pooling, x)
    assert_equals_one_by_one(nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), pooling, nn.Flatten()), x)


def test_layers_after_one_another():
    module = nn.Sequential(
        nn.Unflatten(1, (1, 16)), nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Sequential(nn.Conv2d(3, 8, 2), nn.MaxPool2d(2), nn.ReLU()),
        nn.Conv2d(8, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Conv2d(4, 5, 2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 2),
    )  # fmt: skip
    assert_equals_one_by_one(module, torch.randn(CLIENTS, SAMPLES, 16, 16))


def test_at_a_tie_the_first_of_a_window_gets_the_gradient():
    """As in torch's pooling. Whole numbers, so that ties are exact; images with flat areas are full of them."""
    module = nn.Sequential(nn.Conv2d(1, 2, 2), nn.MaxPool2d(2))
    params = {
        "0.weight": torch.randint(-1, 2, (CLIENTS, 2, 1, 2, 2)).float(),
        "0.bias": torch.zeros(CLIENTS, 2),
    }
    x = torch.randint(0, 2, (CLIENTS, 8, 1, 9, 9)).float().requires_grad_()
    together = stacking.forward(module, params, x)
    apart = [functional_call(module, {n: p[k] for n, p in params.items()}, (x[k],)) for k in range(CLIENTS)]
    direction = torch.randint(1, 9, together.shape).float()
    (found,) = torch.autograd.grad((together * direction).sum(), x)
    (expected,) = torch.autograd.grad((torch.stack(apart) * direction).sum(), x)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("cache", [1, 5000, 2**23])
def test_clients_in_blocks(cache, monkeypatch):
    monkeypatch.setattr(convolution, "_CACHE", cache)
    module = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 2, 3))
    assert_equals_one_by_one(module, torch.randn(CLIENTS, SAMPLES, 2, 8, 8))


def test_derivatives_are_right_in_float64():
    module = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.MaxPool2d(2), nn.Conv2d(2, 1, 2, stride=2)).double()
    names = [n for n, _ in module.named_parameters()]
    x = torch.randn(2, 2, 2, 6, 6, dtype=torch.float64, requires_grad=True)
    params = [torch.randn(2, *p.shape, dtype=torch.float64, requires_grad=True) for p in module.parameters()]
    assert torch.autograd.gradcheck(
        lambda x, *params: stacking.forward(module, dict(zip(names, params, strict=True)), x), (x, *params)
    )


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(2, 2, 3, padding="same"),
        nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(2, 2, 3).requires_grad_(False),
        nn.Conv1d(2, 2, 3),
        nn.ConvTranspose2d(2, 2, 3),
        nn.MaxPool2d(2, return_indices=True),
        nn.MaxPool1d(2),
        nn.Unflatten(-1, (2, 2)),
    ],
    ids=repr,
)
def test_everything_else_is_left_to_vmap(module):
    assert not stacking.supports(module)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (CNN(), (3, 32, 32)),
        (CNN(), (28, 28)),
        (FemnistCNN(hidden=8), (10, 9)),
        (WakewordCNN(), (1, 16, 21)),
    ],
    ids=str,
)
def test_the_papers_models(model, shape):
    task = Task(model.build(shape, 4))
    assert task.stacks_natively
    theta = task.theta0 + 0.05 * torch.randn(CLIENTS, task.size)
    x, y = torch.randn(CLIENTS, 3, *shape), torch.randint(0, 4, (CLIENTS, 3))
    weight, key = torch.tensor([[1.0, 1, 1], [1, 1, 0], [1, 0, 0]]), torch.zeros(CLIENTS, dtype=torch.int64)
    together = task.gradient_stacked(theta, Batch(x, y, weight, key))
    for k, count in enumerate((3, 2, 1)):
        alone = task.gradient(theta[k], Batch(x[k, :count], y[k, :count], torch.ones(count), key[k]))
        torch.testing.assert_close(together[k], alone, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            task.predict_stacked(theta, x, weight)[k], task.predict(theta[k], x[k]), rtol=1e-4, atol=1e-5
        )
