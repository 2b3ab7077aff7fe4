"""Gradients of chains of layers, written out: the same as autograd's, client by client."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from personafl.kernels.mlp import MLPKernel

CLIENTS, SAMPLES = 3, 5

CHAINS = {
    "one layer": nn.Linear(4, 2),
    "without bias": nn.Sequential(nn.Linear(4, 3, bias=False), nn.ReLU(), nn.Linear(3, 2)),
    "relu in place": nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 2)),
    "tanh": nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)),
    "sigmoid": nn.Sequential(nn.Linear(4, 6), nn.Sigmoid(), nn.Linear(6, 2), nn.Sigmoid()),
    "an activation first": nn.Sequential(nn.Tanh(), nn.Linear(4, 3), nn.Identity(), nn.Linear(3, 2)),
    "nested": nn.Sequential(nn.Sequential(nn.Linear(4, 6), nn.Sequential(nn.Tanh(), nn.Linear(6, 3)))),
}


def check(module: nn.Module, x: torch.Tensor) -> None:
    names = [name for name, _ in module.named_parameters()]
    params = [torch.randn(CLIENTS, *p.shape, requires_grad=True) for p in module.parameters()]
    before = x.clone()

    def outputs_of(k: int) -> torch.Tensor:
        return functional_call(module, dict(zip(names, (p[k] for p in params), strict=True)), (x[k],))

    outputs = torch.stack([outputs_of(k) for k in range(CLIENTS)])
    direction = torch.randn_like(outputs)
    expected = torch.autograd.grad(outputs, params, direction)
    seen = []
    kernel = MLPKernel.of(module)
    assert kernel is not None
    with torch.no_grad():
        found = kernel.gradients(params, x, lambda out: seen.append(out) or direction)
    torch.testing.assert_close(seen[0], outputs, rtol=1e-5, atol=1e-6)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert torch.equal(x, before)  # a batch is used again


@pytest.mark.parametrize("name", CHAINS)
def test_gradients_are_those_of_autograd(name):
    torch.manual_seed(0)
    check(CHAINS[name], torch.randn(CLIENTS, SAMPLES, 4))


@pytest.mark.parametrize("name", CHAINS)
def test_a_step_in_place_is_along_the_gradient(name):
    torch.manual_seed(0)
    kernel, x = MLPKernel.of(CHAINS[name]), torch.randn(CLIENTS, SAMPLES, 4)
    params = [torch.randn(CLIENTS, *p.shape) for p in CHAINS[name].parameters()]
    with torch.no_grad():
        along = kernel.gradients(params, x, torch.sin)
        expected = [p - 0.1 * g for p, g in zip(params, along, strict=True)]
        kernel.descend(params, x, torch.sin, 0.1)
    for a, b in zip(params, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_layers_before_flatten_and_samples_of_several_axes():
    torch.manual_seed(0)
    check(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(18, 2)), torch.randn(CLIENTS, 5, 6, 4))
    check(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), torch.randn(CLIENTS, 5, 6, 4))


@pytest.mark.parametrize(
    "module",
    [
        nn.ReLU(),
        nn.Sequential(nn.Linear(2, 2), nn.GELU()),
        nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)),
        nn.GRU(2, 2),
    ],
    ids=repr,
)
def test_other_modules_are_no_chains(module):
    assert MLPKernel.of(module) is None
