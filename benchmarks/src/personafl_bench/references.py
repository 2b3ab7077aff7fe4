"""What a round could take: the same arithmetic as the engines on the same samples, without an engine.

`by_hand` has batched matrix products and the gradient written out, which bounds what stacking can reach; there is none
for the LSTM and for networks that users bring. `plain_vmap` is `vmap(grad)` as torch's documentation has it,
`tight_loop` what a careful person writes without stacking. Each gives the vectors of all clients after their steps.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from personafl.federation import Federation
from personafl.inputs import one_tensor, some
from personafl.kernels.task import Task
from personafl.states import Ints
from personafl_bench.jobs import Job

Reference = Callable[[Job, Task, Federation, Tensor], Tensor]
"""A function of the job and of the samples (K, steps, batch) that every client takes at every step."""


def tight_loop(job: Job, task: Task, federation: Federation, index: Tensor) -> Tensor:
    """One client after another, plain autograd, no DataLoader, no optimizer."""
    model = task.module(task.theta0).train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    out = []
    for samples in index:
        nn.utils.vector_to_parameters(task.theta0.clone(), parameters)  # it makes them views of what it is given
        for rows in samples:
            loss = F.cross_entropy(model(federation.x[rows]), federation.y[rows])
            grads = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for parameter, g in zip(parameters, grads, strict=True):
                    parameter.sub_(g, alpha=job.lr)
        out.append(nn.utils.parameters_to_vector(parameters).detach())
    return torch.stack(out)


def plain_vmap(job: Job, task: Task, federation: Federation, index: Tensor) -> Tensor:
    """`vmap(grad)` of the model, a dictionary of parameters."""
    model = task.module(task.theta0).train()
    params = {n: v.expand(len(index), *v.shape).clone() for n, v in task.state_dict(task.theta0).items()}

    def loss(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, params, (x,)), y)

    gradient = vmap(grad(loss))
    for step in range(job.steps):
        rows = index[:, step]
        grads = gradient(params, one_tensor(federation.x)[rows], federation.y[rows])
        for name, value in params.items():
            value.sub_(grads[name], alpha=job.lr)
    return torch.cat([value.flatten(1) for value in params.values()], 1)


@torch.no_grad()
def by_hand(job: Job, task: Task, federation: Federation, index: Tensor) -> Tensor:
    """Batched matrix products with the gradient written out, weights in one contiguous tensor per layer."""
    clients = len(index)
    weights = [v.expand(clients, *v.shape).contiguous() for v in task.split(task.theta0).values()]
    kernels, layers = (weights[:4], weights[4:]) if job.kind == "cnn" else ([], weights)
    for step in range(job.steps):
        flat = index[:, step].flatten()
        x = one_tensor(federation.x).index_select(0, flat).unflatten(0, (clients, job.batch))
        y = federation.y.index_select(0, flat).view(clients, job.batch, 1)
        convolved = _Convolutions(x, kernels) if kernels else None
        to_inputs = _linear_step(layers, x if convolved is None else convolved.outputs, y, job.lr, bool(kernels))
        if convolved is not None:
            convolved.backward(to_inputs, job.lr)
    return torch.cat([weight.flatten(1) for weight in weights], 1)


def _linear_step(layers: list[Tensor], x: Tensor, y: Tensor, lr: float, wants_inputs: bool) -> Tensor:
    """Linear layers with ReLU between them and cross-entropy: a step of SGD; the gradient of the inputs (K, B, d)."""
    inputs = [x]
    for i in range(0, len(layers), 2):
        z = torch.baddbmm(layers[i + 1].unsqueeze(1), inputs[-1], layers[i].transpose(1, 2))
        inputs.append(z.relu_() if i + 2 < len(layers) else z)
    delta = inputs.pop().softmax(-1)
    delta.scatter_add_(2, y, torch.full_like(delta[..., :1], -1.0)).div_(delta.shape[1])
    for i in range(len(layers) - 2, -1, -2):
        before = inputs.pop()
        below = torch.bmm(delta, layers[i]) if i or wants_inputs else delta
        layers[i].baddbmm_(delta.transpose(1, 2), before, alpha=-lr)
        layers[i + 1].sub_(delta.sum(1), alpha=lr)
        delta = below.mul_(before > 0) if i else below
    return delta


class _Convolutions:
    """Two convolutions of 5x5 with ReLU and max-pooling, as matrix products of patches.

    Images are (K, channels, B, height, width): then a product's result is the next layer's image as it lies.
    """

    def __init__(self, x: Tensor, kernels: list[Tensor]) -> None:
        self.kernels, self.layers = kernels, []
        image = x.transpose(1, 2).contiguous()
        for i in (0, 2):
            kernel, bias = kernels[i].flatten(2), kernels[i + 1]
            patches = image.unfold(3, 5, 1).unfold(4, 5, 1).permute(0, 1, 5, 6, 2, 3, 4)
            columns = patches.reshape(len(x), kernel.shape[2], -1)
            z = torch.baddbmm(bias.unsqueeze(2), kernel, columns).relu_().view(*kernel.shape[:2], *patches.shape[4:])
            pooled, chosen = F.max_pool2d(z.flatten(0, 1), 2, return_indices=True)
            self.layers.append((image.shape, columns, z, chosen))
            image = pooled.unflatten(0, kernel.shape[:2])
        self._pooled = image.shape
        self.outputs = image.transpose(1, 2).flatten(2)

    def backward(self, to_outputs: Tensor, lr: float) -> None:
        clients, channels, batch, height, width = self._pooled
        delta = to_outputs.view(clients, batch, channels, height, width).transpose(1, 2)
        for i in (2, 0):
            shape, columns, z, chosen = self.layers[i // 2]
            below = (
                F.max_unpool2d(delta.flatten(0, 1), chosen, [2, 2], output_size=z.shape[3:]).view(z.shape).mul_(z > 0)
            )
            flat, kernel = below.flatten(2), self.kernels[i].flatten(2)
            if i:
                to_columns = torch.bmm(kernel.transpose(1, 2), flat).view(clients, shape[1], 5, 5, *z.shape[2:])
                delta = columns.new_zeros(shape)
                for row in range(5):
                    for column in range(5):
                        place = delta[..., row : row + z.shape[3], column : column + z.shape[4]]
                        place.add_(to_columns[:, :, row, column])
            kernel.baddbmm_(flat, columns.transpose(1, 2), alpha=-lr)
            self.kernels[i + 1].sub_(flat.sum(2), alpha=lr)


def evaluate_by_vmap(task: Task, federation: Federation, theta: Tensor) -> Tensor:
    """Correct answers of each client's own model on its test samples: vmap over clients of like size, padded."""
    sizes, starts = federation.sizes("test"), federation.starts("test")
    order: Ints = np.argsort(-sizes, kind="stable")
    order = order[sizes[order] > 0]
    out = torch.zeros(len(federation))
    while len(order):
        longest = int(sizes[order[0]])
        now = order[: int(np.searchsorted(-sizes[order], -(longest // 2), side="left")) or 1]
        order = order[len(now) :]
        slots = np.arange(longest)
        rows = torch.from_numpy(starts[now][:, None] + np.minimum(slots, sizes[now][:, None] - 1))
        real = torch.from_numpy(slots < sizes[now][:, None])
        with torch.no_grad():
            outputs = vmap(task.predict)(theta[torch.from_numpy(now)], some(federation.x, rows))
            F.cross_entropy(outputs.flatten(0, 1), federation.y[rows].flatten(), reduction="none")
            out[torch.from_numpy(now)] = ((outputs.argmax(-1) == federation.y[rows]) & real).sum(1).float()
    return out
