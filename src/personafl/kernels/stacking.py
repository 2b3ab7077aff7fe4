"""Common layers computed for K clients at once, each with its own weights.

`torch.func.vmap` can do this for nearly any module, at a cost of many small dispatches. For the layers below,
a batched matrix product and ordinary autograd are faster; a module made of anything else goes through vmap.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from personafl.kernels import convolution
from personafl.kernels.linear import linear
from personafl.kernels.recurrent import LastStep, Lstm, WordVectors, stacked_lstm

_ELEMENTWISE = (
    nn.Identity, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Softplus,
)  # fmt: skip


def supports(module: nn.Module) -> bool:
    """Whether `forward` can compute this module."""
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
        return False
    if type(module) is nn.Sequential:
        return all(supports(child) for child in module)
    if type(module) is nn.Flatten:
        return module.start_dim == 1 and module.end_dim == -1
    if type(module) in (nn.Linear, Lstm):
        return all(parameter.requires_grad for parameter in module.parameters())
    if type(module) is nn.Unflatten:
        return isinstance(module.dim, int) and module.dim > 0
    if type(module) in _ELEMENTWISE or type(module) in (LastStep, WordVectors):
        return True
    return convolution.supports(module)


def forward(module: nn.Module, params: Mapping[str, Tensor], x: Tensor, prefix: str = "") -> Tensor:
    """Outputs of K clients: `x` is (K, B, …), each parameter (K, *shape)."""
    if type(module) is nn.Sequential:
        for name, child, pooled in convolution.plan(module._modules):  # named_children() leaves out repeated layers
            if type(child) is nn.Conv2d:
                weight, bias = params[f"{prefix}{name}.weight"], params.get(f"{prefix}{name}.bias")
                x = convolution.convolution(child, x, weight, bias, pooled)
            else:
                x = forward(child, params, x, f"{prefix}{name}.")
        return x
    if type(module) is nn.Conv2d:
        return convolution.convolution(module, x, params[f"{prefix}weight"], params.get(f"{prefix}bias"))
    if type(module) in convolution.POOLINGS:
        return convolution.pooling(module, x)
    if type(module) is nn.Unflatten:
        return x.unflatten(int(module.dim) + 1, module.unflattened_size)  # type: ignore[no-any-return]
    if type(module) is nn.Linear:
        out = linear(x.flatten(1, -2), params[f"{prefix}weight"], params.get(f"{prefix}bias"))
        return out.view(x.shape[0], *x.shape[1:-1], out.shape[-1])
    if type(module) is Lstm:
        return stacked_lstm(linear, x, *(params[f"{prefix}{name}"] for name, _ in module.named_parameters()))
    if type(module) is nn.Flatten:
        return x.flatten(2)
    return module(x)  # type: ignore[no-any-return]
