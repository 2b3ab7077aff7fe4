"""The trainable parameters of a torch module as one flat float32 vector."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from personafl.errors import ModelError
from personafl.kernels.batch_norm import tracked_layers


class ParameterVector:
    """A module's trainable parameters as a vector (P,), and what a vector is in the module.

    The statistics (S,) of batch normalization may follow the parameters: a model for use is (P + S,).

    Attributes
    ----------
    theta0
        The parameters that the module came with, (P,).
    names, shapes, sizes, kinds
        Of each trainable parameter, in the order of `named_parameters()`; its kind is the class of its layer.
    size, full_size
        P, and P + S.

    Examples
    --------
    >>> vector = ParameterVector(nn.Linear(3, 2))
    >>> vector.size, {name: tuple(part.shape) for name, part in vector.split(vector.theta0).items()}
    (8, {'weight': (2, 3), 'bias': (2,)})
    """

    def __init__(self, module: nn.Module) -> None:
        for name, parameter in module.named_parameters():
            if is_lazy(parameter):
                raise ModelError(f"parameter {name!r} is not initialized: pass one batch through the lazy module first")
        self.template = module
        trainable = {n: p.detach() for n, p in module.named_parameters() if p.requires_grad}
        if not trainable:
            raise ModelError(f"{type(module).__name__} has no trainable parameters: nothing to learn")
        self.names = list(trainable)
        self.kinds = tuple(_kind(module.get_submodule(name.rpartition(".")[0])) for name in self.names)
        self.shapes = [p.shape for p in trainable.values()]
        self.sizes = [p.numel() for p in trainable.values()]
        self.size = sum(self.sizes)
        self.theta0: Tensor = torch.cat([p.flatten().float() for p in trainable.values()])
        tracked = {
            f"{path}.{name}".lstrip("."): getattr(layer, name).detach().float()
            for path, layer in tracked_layers(module).items()
            for name in ("running_mean", "running_var")
        }
        self.statistic_names, self._running0 = list(tracked), list(tracked.values())
        self._statistic_sizes = [value.numel() for value in tracked.values()]
        self.full_size: int = self.size + sum(self._statistic_sizes)

    def lacks_statistics(self, theta: Tensor) -> bool:
        """Whether batch normalization finds no statistics in this vector, and goes by the batch."""
        return bool(theta.shape[-1] < self.full_size)

    def split(self, theta: Tensor) -> dict[str, Tensor]:
        """Named views into a vector (P,), or into K vectors (K, P); with statistics, where they follow (P + S)."""
        lead, pieces = theta.shape[:-1], self._pieces(theta)
        return {n: p.view(*lead, *(tuple(s) or (1,))) for n, (p, s) in pieces.items()}

    def _pieces(self, theta: Tensor) -> dict[str, tuple[Tensor, torch.Size]]:
        """The parts of a vector by their names, and the shapes that they have in the module."""
        names, sizes, shapes = self.names, self.sizes, self.shapes
        if theta.shape[-1] == self.full_size > self.size:
            names, sizes = names + self.statistic_names, sizes + self._statistic_sizes
            shapes = shapes + [value.shape for value in self._running0]
        return dict(zip(names, zip(torch.split(theta, sizes, -1), shapes, strict=True), strict=True))

    def state_dict(self, theta: Tensor) -> dict[str, Tensor]:
        """The vector as named parameters and statistics, copied, with the module's own shapes."""
        lead = theta.shape[:-1]
        return {n: p.reshape((*lead, *s)).clone() for n, (p, s) in self._pieces(theta.detach()).items()}

    def vector(self, state: Mapping[str, Tensor]) -> Tensor:
        """Named parameters, and statistics where there are any, as one vector (the inverse of `state_dict`)."""
        missing = [n for n in self.names if n not in state]
        if missing:
            raise ModelError(f"the weights have no {missing[0]!r}: they belong to another model")
        for n, s in zip(self.names, self.shapes, strict=True):
            if state[n].shape != s:
                raise ModelError(f"weights {n!r} have shape {tuple(state[n].shape)}, the model wants {tuple(s)}")
        names = self.names + [n for n in self.statistic_names if n in state]
        return torch.cat([state[n].detach().flatten().float() for n in names])

    def module(self, theta: Tensor) -> nn.Module:
        """An ordinary module of the user's class with these parameters and statistics, in evaluation mode.

        Frozen parameters are not copied: they lie in the memory of those of the user's module.
        """
        return self.module_of(self.state_dict(theta.cpu()))

    def module_of(self, state: Mapping[str, Tensor]) -> nn.Module:
        """As `module`, from named tensors."""
        self.vector(state)  # raises where they belong to another model
        if missing := [n for n in self.statistic_names if n not in state]:
            raise ModelError(
                f"the weights have no {missing[0]!r}: statistics of batch normalization belong to a client's data, and "
                "this model was kept without any"
            )
        shared = {id(p): _shared(p) for p in self.template.parameters() if not p.requires_grad}
        net = copy.deepcopy(self.template, shared).cpu()
        net.load_state_dict(state, strict=False)
        return net.eval()


def _kind(layer: nn.Module) -> str:
    """The name of a layer's class; where it is a kind of normalization (FrozenBN of BatchNorm2d), of that."""
    names = [kind.__name__ for kind in type(layer).__mro__]
    return next((name for name in names if re.search(r"Norm(?![a-z])", name)), names[0])


def _shared(parameter: nn.Parameter) -> nn.Parameter:
    """The same memory, but for that of an accelerator, under a `requires_grad` of its own."""
    return nn.Parameter(parameter.detach().cpu(), requires_grad=False)
