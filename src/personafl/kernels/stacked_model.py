"""A module that runs once for the K·B rows of K clients.

Stacking is a property of layers: in a copy of the module every layer with parameters is exchanged for one that holds K
sets of weights (`by_client`), and the module's own `forward` runs unchanged. What has no parameters sees one long
batch. A layer of a kind that is not known is *mapped*: vmap for this layer alone; or, where vmap has no rule for what
it does, *looped*: client after client for this layer alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils.parametrize import is_parametrized
from torch.utils._pytree import tree_map

from personafl.inputs import Inputs, each_input
from personafl.kernels import by_client, by_client_sequences
from personafl.kernels.batch_norm import WeightedBatchNorm, keeps_statistics
from personafl.kernels.by_client import ByClient, NoRows
from personafl.kernels.client_tensor import ClientTensor
from personafl.kernels.frame import Frame
from personafl.kernels.outputs import logits
from personafl.kernels.pooling import halve_faster
from personafl.kernels.randomness import keyed_draws
from personafl.kernels.statistics import Recorder

Way = Literal["frozen", "stacked", "mapped", "looped"]
KINDS: dict[type[nn.Module], type[ByClient]] = {
    nn.Linear: by_client.Linear,
    nn.modules.linear.NonDynamicallyQuantizableLinear: by_client.Linear,
    nn.Bilinear: by_client.Bilinear,
    nn.Conv1d: by_client.Conv1d,
    nn.Conv2d: by_client.Conv2d,
    nn.Conv3d: by_client.Conv3d,
    nn.ConvTranspose1d: by_client.Transposed,
    nn.ConvTranspose2d: by_client.Transposed,
    nn.ConvTranspose3d: by_client.Transposed,
    nn.LayerNorm: by_client.LayerNorm,
    nn.RMSNorm: by_client.RMSNorm,
    nn.GroupNorm: by_client.GroupNorm,
    nn.InstanceNorm1d: by_client.InstanceNorm,
    nn.InstanceNorm2d: by_client.InstanceNorm,
    nn.InstanceNorm3d: by_client.InstanceNorm,
    WeightedBatchNorm: by_client.BatchNorm,
    nn.Embedding: by_client.Embedding,
    nn.EmbeddingBag: by_client.EmbeddingBag,
    nn.LSTM: by_client_sequences.Recurrent,
    nn.GRU: by_client_sequences.Recurrent,
    nn.RNN: by_client_sequences.Recurrent,
    nn.MultiheadAttention: by_client_sequences.MultiheadAttention,
}


LOW = (torch.bfloat16, torch.float16)
"""What a model may compute in; losses are float32."""

Plan = Literal["rows", "tensors", "loops"]
"""What becomes of parameters outside of layers of a known kind, the fastest first.

`rows`: one with a first axis of 1, such as a class token (1, 1, D), gets a row for each sample, which `expand` and `+`
take as they are; others are a `ClientTensor`, and layers of other kinds are mapped. `tensors`: all of them are.
`loops`: the same, and layers of other kinds are looped.
"""
PLANS: tuple[Plan, ...] = ("rows", "tensors", "loops")


class StackedModel:
    """A copy of a module for K clients.

    Parameters
    ----------
    module
        With the replacements of `layers.py` in place.
    frame
        The frame of these.
    plan
        What becomes of parameters that are not in a layer of a known kind: see `Plan`.
    training
        Whether clients train with it.

    Attributes
    ----------
    ways : dict
        Of every layer with parameters: how it is computed.
    records : bool
        Whether a pass can write down what batch normalization sees.
    """

    def __init__(self, module: nn.Module, frame: Frame, plan: Plan = "rows", training: bool = True) -> None:
        shared = [frame, *module.buffers(), *module.parameters()]
        self.module = copy.deepcopy(module, {id(thing): thing for thing in shared})
        self.frame, self.training = frame, training
        self.ways: dict[str, Way] = {}
        self._low = low_types(module)
        self._plan = plan
        self._whole: dict[str, nn.Module] = {}
        self._raw: dict[str, bool] = {}
        self._visit(self.module, "")
        self._statistics = {
            f"{path}.{name}".lstrip("."): (layer, name)
            for path, layer in self.module.named_modules()
            if keeps_statistics(layer)
            for name in ("running_mean", "running_var")
        }
        self.records = all(isinstance(layer, by_client.BatchNorm) for layer, _ in self._statistics.values())
        names = {id(p): n for n, p in self.module.named_parameters()}
        self._owners: dict[str, list[tuple[nn.Module, str]]] = {}
        self._constants: list[tuple[nn.Module, str, Tensor]] = []
        for path, owner in self.module.named_modules():
            for attribute, parameter in owner._parameters.items():
                if parameter is None:
                    continue
                name = f"{path}.{attribute}" if path else attribute
                if parameter.requires_grad:
                    self._owners.setdefault(names[id(parameter)], []).append((owner, attribute))
                elif self._by_client(name) and not (
                    isinstance(owner, by_client.SHARE_WEIGHT) and attribute == "weight"
                ):
                    self._constants.append((owner, attribute, parameter.detach()))

    def move(self, to: Move) -> None:
        """Have the constants on a device."""
        move_constants(self.module, to)
        self._constants = [(owner, name, to(constant)) for owner, name, constant in self._constants]

    def settle(self) -> None:
        """After a trial: parameters outside of layers of which there were only products, have these for all at once."""
        if not self.frame.maps:
            self.ways |= {where: "stacked" for where in self._raw}

    @property
    def outside_layers(self) -> bool:
        """Whether another plan would differ."""
        return bool(self._raw) or bool({"mapped", "looped"} & set(self.ways.values()))

    # --- which layers -----------------------------------------------------------------------------------------

    def _visit(self, layer: nn.Module, path: str) -> None:
        layer.path = path  # type: ignore[assignment]
        own = [n for n, p in layer.named_parameters(recurse=False) if p.requires_grad]
        if not any(p.requires_grad for p in layer.parameters()) and not _normalizes_batches(layer):
            if any(True for _ in layer.parameters()):
                self.ways[path] = "frozen"
            for name, below in layer.named_modules():
                below.path = f"{path}.{name}".strip(".")
            halve_faster(layer)
            return
        if self._exchanged(layer, path):
            return
        below = [
            child
            for child in layer.children()
            if any(p.requires_grad for p in child.parameters()) or _normalizes_batches(child)
        ]
        if is_parametrized(layer) or (own and not below and not _holds_frozen_layers(layer)):
            self._unit(layer, path)
            return
        for name in own:
            where = f"{path}.{name}".strip(".")
            shape = layer.get_parameter(name).shape
            in_rows = self._plan == "rows" and len(shape) > 0 and shape[0] == 1
            self._raw[where] = in_rows
            self.ways[where] = "stacked" if in_rows else "mapped"
        _without_fast_path(layer)
        for name, child in layer.named_children():
            if not hasattr(child, "path"):
                self._visit(child, f"{path}.{name}".strip("."))

    def _exchanged(self, layer: nn.Module, path: str) -> bool:
        kind = _kind(layer)
        if kind is None or is_parametrized(layer):
            return False
        layer.__class__ = kind
        layer.frame = self.frame  # type: ignore[assignment]
        self.ways[path] = "stacked"
        self._whole[path] = layer
        for name, child in layer.named_modules():
            child.path = f"{path}.{name}".strip(".")
        return True

    def _unit(self, layer: nn.Module, path: str) -> None:
        """A layer of another kind, computed by vmap or client after client on its own."""
        self.ways[path] = "looped" if self._plan == "loops" else "mapped"
        self._whole[path] = layer
        forward = layer.forward
        function = _looped if self._plan == "loops" else _mapped
        layer.forward = partial(function, self, layer, forward)

    def _by_client(self, name: str) -> bool:
        """Whether it belongs to a layer of a known kind; those of other kinds have constants as they are."""
        known = (path for path, layer in self._whole.items() if isinstance(layer, ByClient))
        return any(name.startswith(f"{path}.") or not path for path in known)

    # --- a pass -----------------------------------------------------------------------------------------------

    def __call__(
        self, params: Mapping[str, Tensor], x: Inputs, key: Tensor | None, weight: Tensor,
        recorder: Recorder | None = None,
    ) -> Tensor:  # fmt: skip
        """Outputs (K, B, …): `params` have a leading axis K, `x` and `weight` the axes K and B."""
        clients, samples = weight.shape
        rows = each_input(lambda part: part.flatten(0, 1), x)
        self.frame.enter(key, weight, clients, clients * samples, params.keys() >= self._statistics.keys(), recorder)
        cast = self.frame.autocast(weight.device)
        with self._holding(params, clients, samples), keyed_draws(self.frame, self.training), cast:
            outputs = logits(self.module(**rows) if isinstance(rows, dict) else self.module(rows))
        outputs = outputs.float() if outputs.dtype in LOW else outputs
        by_client: Tensor = outputs.unflatten(0, (clients, samples))
        return by_client

    @contextmanager
    def _holding(self, params: Mapping[str, Tensor], clients: int, samples: int) -> Iterator[None]:
        """With the clients' weights in their layers; afterwards nothing keeps them in memory."""
        before: list[tuple[dict[str, Any], str, Any]] = []

        def put(tensors: dict[str, Any], attribute: str, value: Tensor) -> None:
            before.append((tensors, attribute, tensors[attribute]))
            tensors[attribute] = value

        for name, value in params.items():
            if name in self._statistics:
                owner, attribute = self._statistics[name]
                put(owner._buffers, attribute, value)
                continue
            value = value.to(self._low[name]) if name in self._low else value
            if name in self._raw:
                value = self._outside_layers(name, value, samples)
            for owner, attribute in self._owners[name]:
                put(owner._parameters, attribute, value)
        for owner, attribute, constant in self._constants:
            put(owner._parameters, attribute, constant.expand(clients, *constant.shape))
        try:
            yield
        finally:
            for tensors, attribute, value in before:
                tensors[attribute] = value

    def _outside_layers(self, name: str, value: Tensor, samples: int) -> Tensor:
        """A parameter that the module's own code uses."""
        if self._raw[name]:
            return value.expand(-1, samples, *value.shape[2:]).flatten(0, 1)
        return ClientTensor.of(value, self.frame)


def low_types(module: nn.Module) -> dict[str, torch.dtype]:
    """Trained parameters that are bf16 or float16, as are frozen ones beside them; in the vector they are float32."""
    frozen = {p.dtype for p in module.parameters() if not p.requires_grad}
    low = {name: p.dtype for name, p in module.named_parameters() if p.requires_grad and p.dtype in LOW}
    return {name: kind for name, kind in low.items() if kind in frozen}


Move = Callable[[Tensor], Tensor]


def moves(device: torch.device) -> Move:
    """What brings tensors to a device, each once: those that share their memory here do so there."""
    there: dict[tuple[Any, ...], Tensor] = {}

    def to(value: Tensor) -> Tensor:
        value = value.detach()
        place = value.data_ptr(), value.dtype, value.shape, value.stride()
        return there.setdefault(place, value.to(device))

    return to


def move_constants(module: nn.Module, to: Move) -> None:
    """Have buffers and frozen parameters on a device; those of the module that they were copied from stay."""
    for layer in module.modules():
        for name, buffer in layer._buffers.items():
            layer._buffers[name] = None if buffer is None else to(buffer)
        for name, parameter in layer._parameters.items():
            if parameter is not None and not parameter.requires_grad:
                layer._parameters[name] = nn.Parameter(to(parameter), requires_grad=False)


def _holds_frozen_layers(layer: nn.Module) -> bool:
    """Whether it is an adapter around layers that are not trained, or a list that a module has parameters in."""
    return isinstance(layer, nn.ParameterDict | nn.ParameterList) or any(
        True for child in layer.children() for _ in child.parameters()
    )


def _kind(layer: nn.Module) -> type[ByClient] | None:
    """The class for a layer of torch's, or of a class that computes as torch's does."""
    for known, kind in KINDS.items():
        if isinstance(layer, known) and type(layer).forward is known.forward and type(layer).__call__ is known.__call__:
            return None if _unusual(layer) else kind
    return None


def _unusual(layer: nn.Module) -> bool:
    """Settings that the layers of `by_client` do not have."""
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        bag = isinstance(layer, nn.EmbeddingBag) and layer.padding_idx is not None
        return layer.max_norm is not None or layer.scale_grad_by_freq or bag
    return isinstance(layer, _InstanceNorm) and layer.track_running_stats


def _normalizes_batches(layer: nn.Module) -> bool:
    """Whether rows of several clients would mix in it, trainable or not."""
    return any(isinstance(below, WeightedBatchNorm) or keeps_statistics(below) for below in layer.modules())


def _weights(layer: nn.Module, frame: Frame) -> dict[str, Tensor]:
    """What a layer has for each client: its trained parameters, and statistics where they are given."""
    # What is still a Parameter is frozen, and the same for all.
    own: dict[str, Any] = {n: p for n, p in layer.named_parameters() if not isinstance(p, nn.Parameter)}
    for path, below in layer.named_modules():
        if frame.fixed and keeps_statistics(below):
            own |= {f"{path}.{name}".lstrip("."): below._buffers[name] for name in ("running_mean", "running_var")}
    return own


def _without_fast_path(layer: nn.Module) -> None:
    """torch computes some layers as one operation in inference, from all of their weights."""
    if isinstance(layer, nn.TransformerEncoderLayer):
        layer.activation_relu_or_gelu = 0
    elif isinstance(layer, nn.TransformerEncoder):
        layer.use_nested_tensor = False


# --- layers of other kinds -------------------------------------------------------------------------------------------


def _mapped(model: StackedModel, layer: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """One layer under vmap."""
    frame, clients = model.frame, model.frame.clients
    if clients is None:  # inside
        return forward(*args, **kwargs)
    axis = _rows_of(frame, layer, args, kwargs)
    has_rows = partial(_has_rows, axis=axis, rows=frame.rows)
    apart = tree_map(lambda v: v.unflatten(axis, (clients, -1)) if has_rows(v) else v, (args, kwargs))
    where = tree_map(lambda v: axis if has_rows(v) else None, (args, kwargs))
    weights = _weights(layer, frame)
    key, weight = frame.key, frame.weight

    def one(weights: dict[str, Tensor], key: Tensor | None, weight: Tensor | None, inputs: Any) -> Any:
        with frame.one_client(key, weight):
            return functional_call(layer, weights, *inputs)

    dims = (0, None if key is None else 0, 0, where)
    found = vmap(one, dims, axis, frame.randomness(model.training))(weights, key, weight, apart)
    return tree_map(lambda v: v.flatten(axis, axis + 1), found)


def _looped(model: StackedModel, layer: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """One layer, client after client."""
    frame, clients = model.frame, model.frame.clients
    if clients is None:  # inside
        return forward(*args, **kwargs)
    axis = _rows_of(frame, layer, args, kwargs)
    has_rows = partial(_has_rows, axis=axis, rows=frame.rows)
    apart = tree_map(
        lambda v: _Parts(v.unflatten(axis, (clients, -1)).unbind(axis)) if has_rows(v) else v, (args, kwargs)
    )
    weights = {name: value.unbind(0) for name, value in _weights(layer, frame).items()}
    found = []
    for k in frame.each_client():
        inputs = tree_map(lambda v, k=k: v.parts[k] if isinstance(v, _Parts) else v, apart)
        found.append(functional_call(layer, {name: parts[k] for name, parts in weights.items()}, *inputs))
    return tree_map(lambda *parts: torch.cat(parts, axis), *found)


class _Parts:
    """A tensor's parts, one for each client."""

    def __init__(self, parts: Sequence[Tensor]) -> None:
        self.parts = parts


def _has_rows(value: Any, axis: int, rows: int) -> bool:
    return isinstance(value, Tensor) and value.dim() > axis and value.shape[axis] % rows == 0


def _rows_of(frame: Frame, layer: nn.Module, args: Any, kwargs: Any) -> int:
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            axis = frame.axis(layer, value)
            if axis is not None:
                return axis
    raise NoRows(f"layer {layer.path!r} is used on something other than samples")
