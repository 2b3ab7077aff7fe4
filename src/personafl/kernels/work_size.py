"""How much a model computes for one sample, from the shapes that its layers see in one pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd


@dataclass
class WorkSize:
    """What one pass through a model takes.

    Attributes
    ----------
    outputs
        Numbers that its layers put out.
    products
        Multiplications of matrix products and convolutions with weights.
    calls
        Calls of layers.
    """

    outputs: int = 0
    products: int = 0
    calls: int = 0

    def see(self, layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """Add the call of a layer; a hook of torch's."""
        if any(isinstance(value, Tensor) and value.is_nested for value in (*inputs, output)):
            return  # inside torch's own transformer, which has no sizes there
        self.outputs += getattr(layer, "inner_outputs", 1) * output.numel() if isinstance(output, Tensor) else 0
        leaf = isinstance(layer, nn.MultiheadAttention) or not any(True for _ in layer.children())
        self.calls += leaf
        weights = [p for p in layer.parameters(recurse=leaf) if p.dim() > 1]
        if weights and not isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            self.products += sum(w.numel() for w in weights) * _places(layer, inputs, output)


def pass_size(module: nn.Module, run: Callable[[], Any]) -> WorkSize:
    """What `run`, which calls a module once, takes."""
    found = WorkSize()
    hooks = [layer.register_forward_hook(found.see) for layer in module.modules()]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _places(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> int:
    """To how many places of its input a layer applies its weights."""
    if isinstance(layer, _ConvNd) and not isinstance(layer, _ConvTransposeNd) and isinstance(output, Tensor):
        return output.numel() // layer.out_channels
    first = next((value for value in inputs if isinstance(value, Tensor)), None)
    if first is None:
        return 1
    features = layer.in_channels if isinstance(layer, _ConvNd) else first.shape[-1] if first.dim() else 1
    return max(1, first.numel() // max(int(features), 1))
