"""Linear layers and activations one after another, for K clients at once, with the gradient written out.

Most models of the field are of this kind, and so small that autograd's bookkeeping takes as long as the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

_FREE = (nn.Flatten, nn.Identity, nn.ReLU, nn.Tanh, nn.Sigmoid)  # slopes that follow from what the layer puts out


class MLPKernel:
    """The layers of a module, in order.

    `params` below are the parameters of all layers in order, each with a leading axis K.

    >>> kernel = MLPKernel([nn.Linear(3, 2)])
    >>> weight, bias = kernel.gradients([torch.zeros(5, 2, 3), torch.zeros(5, 2)], torch.ones(5, 4, 3), torch.ones_like)
    >>> bias[0]
    tensor([4., 4.])
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self.layers = layers
        counts = [len(list(layer.parameters())) for layer in layers]
        self._first_parameter = [sum(counts[:i]) for i in range(len(layers))]
        self._lowest = next(i for i, layer in enumerate(layers) if type(layer) is nn.Linear)

    @staticmethod
    def of(module: nn.Module) -> MLPKernel | None:
        """The kernel of a module, or None where it has layers of other kinds."""
        layers = _layers(module)
        known = all(type(layer) in (nn.Linear, *_FREE) for layer in layers)
        return MLPKernel(layers) if known and any(type(layer) is nn.Linear for layer in layers) else None

    def gradients(self, params: Sequence[Tensor], x: Tensor, slope: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """Those of all `params`, where `slope(outputs)` is the gradient with respect to the outputs (K, B, …)."""
        values = self._values(params, x)
        g = slope(values[-1])
        out: list[Tensor] = []
        for i in reversed(range(self._lowest, len(self.layers))):
            layer, before = self.layers[i], values[i]
            if type(layer) is not nn.Linear:
                g = _back(layer, g, before, values[i + 1])
                continue
            g = g.flatten(1, -2)
            if layer.bias is not None:
                out.append(g.sum(1))
            out.append(torch.bmm(g.transpose(1, 2), before.flatten(1, -2)))
            if i > self._lowest:
                g = torch.bmm(g, params[self._first_parameter[i]]).view(before.shape)
        return out[::-1]

    def descend(self, params: Sequence[Tensor], x: Tensor, slope: Callable[[Tensor], Tensor], lr: float) -> None:
        """A step of SGD in place: of layers whose weights are one block for all clients, the product is the update."""
        values = self._values(params, x)
        g = slope(values[-1])
        for i in reversed(range(self._lowest, len(self.layers))):
            layer, before, first = self.layers[i], values[i], self._first_parameter[i]
            if type(layer) is not nn.Linear:
                g = _back(layer, g, before, values[i + 1])
                continue
            g = g.flatten(1, -2)
            below = torch.bmm(g, params[first]).view(before.shape) if i > self._lowest else g
            params[first].baddbmm_(g.transpose(1, 2), before.flatten(1, -2), alpha=-lr)
            if layer.bias is not None:
                params[first + 1].sub_(g.sum(1), alpha=lr)
            g = below

    def _values(self, params: Sequence[Tensor], x: Tensor) -> list[Tensor]:
        """The input, and what each layer makes of the one before."""
        values = [x]
        for layer, first in zip(self.layers, self._first_parameter, strict=True):
            if type(layer) is nn.Linear:
                out = torch.bmm(x.flatten(1, -2), params[first].transpose(1, 2))
                if layer.bias is not None:
                    out.add_(params[first + 1].unsqueeze(1))
                x = out.view(*x.shape[:-1], layer.out_features)
            elif type(layer) is nn.Flatten:
                x = x.flatten(2)
            elif type(layer) is not nn.Identity:
                x = _ACTIVATIONS[type(layer)](x)
            values.append(x)
        return values


_ACTIVATIONS: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.ReLU: torch.relu, nn.Tanh: torch.tanh, nn.Sigmoid: torch.sigmoid,
}  # fmt: skip


def _layers(module: nn.Module) -> list[nn.Module]:
    if type(module) is not nn.Sequential:
        return [module]
    return [layer for child in module._modules.values() if child is not None for layer in _layers(child)]


def _back(layer: nn.Module, g: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """The gradient with respect to what went into a layer without parameters."""
    if type(layer) is nn.ReLU:
        g = torch.ops.aten.threshold_backward(g, after, 0)
    elif type(layer) is nn.Tanh:
        g = torch.ops.aten.tanh_backward(g, after)
    elif type(layer) is nn.Sigmoid:
        g = torch.ops.aten.sigmoid_backward(g, after)
    return g.view(before.shape)
