"""Layers for K clients at once: what is supported, and that it is the same as K modules."""

import copy
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.func import functional_call

from personafl.kernels import stacking

CLIENTS, SAMPLES = 3, 5


@pytest.fixture(autouse=True)
def same_numbers_every_time() -> None:
    torch.manual_seed(0)


class Doubled(nn.Linear):
    """Looks like a linear layer and is not."""

    def forward(self, x):
        return 2 * super().forward(x)


def own_weights(module: nn.Module) -> dict[str, torch.Tensor]:
    return {n: torch.randn(CLIENTS, *p.shape) for n, p in module.named_parameters()}


def assert_equals_one_by_one(module: nn.Module, x: torch.Tensor) -> None:
    """Outputs and gradients of all parameters and of x."""
    params = {n: p.requires_grad_() for n, p in own_weights(module).items()}
    x = x.clone().requires_grad_()
    together = stacking.forward(module, params, x.clone())
    apart = torch.stack(
        [functional_call(module, {n: p[k] for n, p in params.items()}, (x[k].clone(),)) for k in range(CLIENTS)]
    )
    torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-5)
    direction = torch.randn_like(apart)
    inputs = [x, *params.values()]
    found = torch.autograd.grad((together * direction).sum(), inputs)
    expected = torch.autograd.grad((apart * direction).sum(), inputs)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("between", [(), (4,), (4, 2)])
def test_linear_layers(bias, between):
    assert_equals_one_by_one(nn.Linear(6, 7, bias=bias), torch.randn(CLIENTS, SAMPLES, *between, 6))


@pytest.mark.parametrize(
    "activation",
    [
        nn.Identity(),
        nn.ReLU(),
        nn.ReLU(inplace=True),
        nn.LeakyReLU(0.3),
        nn.ELU(0.5),
        nn.GELU(approximate="tanh"),
        nn.SiLU(),
        nn.Sigmoid(),
        nn.Tanh(),
        nn.Softplus(beta=2),
    ],
    ids=repr,
)
def test_activations_with_their_settings(activation):
    module = nn.Sequential(nn.Linear(4, 6), activation, nn.Linear(6, 2))
    assert stacking.supports(module)
    assert_equals_one_by_one(module, torch.randn(CLIENTS, SAMPLES, 4))


def test_flatten_and_nesting():
    module = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(24, 6), nn.Sequential(nn.Tanh(), nn.Linear(6, 2))))
    assert stacking.supports(module)
    assert_equals_one_by_one(module, torch.randn(CLIENTS, SAMPLES, 2, 3, 4))


def test_named_layers_of_a_sequence():
    module = nn.Sequential(OrderedDict(encode=nn.Linear(4, 3), squash=nn.Tanh(), decode=nn.Linear(3, 2)))
    assert_equals_one_by_one(module, torch.randn(CLIENTS, SAMPLES, 4))


def test_second_derivatives_are_right():
    """Per-FedAvg differentiates a gradient."""
    module = nn.Sequential(nn.Linear(3, 4).double(), nn.Tanh(), nn.Linear(4, 2).double())
    names = [n for n, _ in module.named_parameters()]
    values = [torch.randn(2, *p.shape, dtype=torch.float64, requires_grad=True) for p in module.parameters()]
    x = torch.randn(2, 3, 3, dtype=torch.float64)
    assert torch.autograd.gradgradcheck(
        lambda *params: stacking.forward(module, dict(zip(names, params, strict=True)), x), values
    )


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv1d(1, 1, 3),
        nn.Dropout(0.5),
        nn.LayerNorm(4),
        nn.BatchNorm1d(4),
        nn.Embedding(4, 4),
        nn.Softmax(1),
        nn.Flatten(2),
        nn.Flatten(1, 2),
        Doubled(4, 4),
        nn.Linear(4, 4).requires_grad_(False),
        nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Dropout(0.5))),
        nn.ModuleList([nn.Linear(4, 4)]),
    ],
    ids=repr,
)
def test_everything_else_is_left_to_vmap(module):
    assert not stacking.supports(module)


def test_a_linear_layer_with_a_frozen_bias_is_left_to_vmap():
    layer = nn.Linear(4, 4)
    layer.bias.requires_grad_(False)
    assert not stacking.supports(layer)


def test_an_activation_that_occurs_twice():
    act = nn.Tanh()
    assert_equals_one_by_one(
        nn.Sequential(nn.Linear(4, 4), act, nn.Linear(4, 4), act), torch.randn(CLIENTS, SAMPLES, 4)
    )


@pytest.mark.parametrize("place", ["layer", "sequence"])
def test_hooks_are_left_to_vmap(place):
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    hooked = copy.deepcopy(module)
    (hooked if place == "sequence" else hooked[0]).register_forward_hook(lambda layer, inputs, output: 2 * output)
    assert stacking.supports(module)
    assert not stacking.supports(hooked)
