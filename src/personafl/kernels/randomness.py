"""Random numbers of a forward pass, drawn from the client's key of this step.

`F.dropout`, dropout inside attention or `nn.LSTM`, stochastic depth, `torch.rand`: whatever draws ends in one of a few
operations of torch, and `KeyedDraws` computes these itself. A number follows from the client's key, from which draw of
the pass it is, and from its coordinates within what is drawn. So it is the same for the same seed, for a client alone
and among others, and with padding behind its samples.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor

from personafl.errors import ModelError
from personafl.kernels.frame import Frame, NoRows
from personafl.kernels.watch_reads import DispatchMode, caller

GAMMA = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit number
M1 = -4658895280553007687
M2 = -7723592293110705685
# One odd number for each axis, so that places of an array do not meet in a sum.
_AXES = (GAMMA, -4417276706812531889, 8779838389180254811, -2643881736870682267, 5871781006564002453,
         -7379039010452969641, 3202034522624059733, 1181783497276652981)  # fmt: skip


def scrambled(z: Tensor) -> Tensor:
    """The bits of 64-bit numbers, mixed through."""
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * M1
    return (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * M2


def uniform(bits: Tensor) -> Tensor:
    """Numbers in [0, 1) from random bits."""
    return ((bits >> 40) & 0xFFFFFF).float() / float(1 << 24)


def at_least(z: Tensor, p: float) -> Tensor:
    """Where `uniform(scrambled(z))` is at least p: the mask of a dropout. `z` is overwritten.

    A network of transformers draws as many numbers as it has activations. On the CPU a piece at a time stays in the
    cache, and unsigned numbers need neither masks nor divisions: a quarter of the time.

    >>> z, p = torch.arange(100_000) * GAMMA, 0.1
    >>> torch.equal(at_least(z.clone(), p), uniform(scrambled(z)) >= p)
    True
    """
    if type(z) is not Tensor or z.device.type != "cpu" or is_functorch_wrapped_tensor(z) or not 0 <= p < 1:
        return uniform(scrambled(z)) >= p
    bits = z.contiguous().numpy().view(np.uint64).reshape(-1)
    found, spare = np.empty(bits.shape, bool), np.empty(min(_PIECE, bits.size), np.uint64)
    # 24 bits are compared, as `uniform` has them, with p as float32 has it.
    least = np.uint64(math.ceil(float(np.float32(p)) * (1 << 24)) << 40)
    for start in range(0, bits.size, _PIECE):
        piece = bits[start : start + _PIECE]
        shifted = spare[: piece.size]
        for places, factor in _ROUNDS:
            np.right_shift(piece, places, out=shifted)
            np.bitwise_xor(piece, shifted, out=piece)
            np.multiply(piece, factor, out=piece)
        np.greater_equal(piece, least, out=found[start : start + _PIECE])
    return torch.from_numpy(found).view(z.shape)


_PIECE = 16384
_ROUNDS = ((np.uint64(30), np.uint64(M1 & (2**64 - 1))), (np.uint64(27), np.uint64(M2 & (2**64 - 1))))  # `scrambled`


def draw(shape: tuple[int, ...], key: Tensor, call: int, rows: int | None = None) -> Tensor:
    """Random bits (int64) for an array.

    Parameters
    ----------
    shape
        Of the array.
    key
        Of one client; or of K clients (K,), and then the array's first axis is that of the clients, or axis `rows` has
        their rows, those of the first client first.
    call
        Which draw of the forward pass this is.

    Examples
    --------
    >>> key = torch.tensor([3, 4])
    >>> alone, padded, apart = draw((2, 5), key[1], 1), draw((2, 3, 5), key, 1), draw((6, 5), key, 1, rows=0)
    >>> bool((padded[1, :2] == alone).all()), bool((apart[3:5] == alone).all())
    (True, True)
    """
    return scrambled(_before(shape, key, call, rows)).expand(shape)


def _before(shape: tuple[int, ...], key: Tensor, call: int, rows: int | None) -> Tensor:
    """What is scrambled, for `draw`."""
    lead = key.dim() if rows is None else 0
    place = torch.zeros((), dtype=torch.int64, device=key.device)
    for axis, extent in enumerate(shape[lead:]):
        along = torch.arange(extent, device=key.device)
        if axis == rows:
            along = along % (extent // len(key))
        place = place + (along * _AXES[axis % len(_AXES)]).view(-1, *(1,) * (len(shape) - lead - axis - 1))
    if rows is not None:
        key = key.repeat_interleave(shape[rows] // len(key)).view(-1, *(1,) * (len(shape) - rows - 1))
    elif lead:
        key = key.view(-1, *(1,) * (len(shape) - 1))
    return (key ^ call) * M1 + place


@contextmanager
def keyed_draws(frame: Frame, training: bool) -> Iterator[None]:
    """Draw from the frame's keys. A model that drew nothing the first time is left alone from then on."""
    if frame.draws.get(training) is False:
        yield
        return
    mode = KeyedDraws(frame, training)
    with mode:
        yield
    frame.draws[training] = frame.draws.get(training, False) or mode.drew


class KeyedDraws(DispatchMode):
    """Computes torch's random operations from the keys of a frame; evaluation has none, and draws as with key 0."""

    def __init__(self, frame: Frame, training: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._frame, self._training, self.drew = frame, training, False
        self._permuted = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _may_draw(func):
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name not in _KNOWN or (name in ("native_dropout", "rrelu_with_noise") and not args[-1]):
            return _not_random(name, func, args, kwargs)
        self.drew = True
        kwargs.pop("generator", None)
        return _KNOWN[name](self, *args, **kwargs)

    # --- numbers ---------------------------------------------------------------------------------------------

    def keys(self, device: torch.device) -> Tensor:
        """The key of one client, (), or of each of K, (K,)."""
        frame = self._frame
        if frame.key is not None:
            return _physical(frame.key).to(device)
        weight = None if frame.weight is None else _physical(frame.weight)
        several = frame.clients is not None or (weight is not None and weight.dim() == 2)
        return torch.zeros(len(weight) if several and weight is not None else (), dtype=torch.int64, device=device)

    def bits(self, shape: Any, device: Any) -> Tensor:
        """Random bits (int64) from the keys."""
        return draw(*self._next(shape, device))

    def at_least(self, p: float, shape: Any, device: Any) -> Tensor:
        """Where a uniform number is at least p."""
        return at_least(_before(*self._next(shape, device)), p).expand(tuple(shape))

    def _next(self, shape: Any, device: Any) -> tuple[tuple[int, ...], Tensor, int, int | None]:
        """The arguments of the next draw."""
        shape, call = tuple(shape), self._frame.next_call()
        rows = None if self._frame.clients is None else self._rows(shape, call)
        return shape, self.keys(torch.device(device or "cpu")), call, rows

    def _rows(self, shape: tuple[int, ...], call: int) -> int:
        """The axis that has the rows of K clients, as it was found when the model was verified."""
        place = f"draw {call} {'in training' if self._training else 'in use'}"
        if place not in self._frame.axes:
            self._frame.axes[place] = next((i for i, n in enumerate(shape) if n and n % self._frame.rows == 0), None)
        axis: int | None = self._frame.axes[place]
        if axis is None:
            raise NoRows("random numbers are drawn for a batch and not for its samples")
        return axis

    def uniform(self, shape: Any, device: Any) -> Tensor:
        """Numbers in [0, 1)."""
        return uniform(self.bits(shape, device))

    def normal(self, shape: Any, device: Any) -> Tensor:
        """Numbers of the standard normal distribution, by Box and Muller."""
        first, second = self.uniform(shape, device), self.uniform(shape, device)
        return (-2.0 * torch.log1p(-first)).sqrt() * torch.cos(2 * math.pi * second)

    def order(self, count: int, device: Any) -> Tensor:
        """A permutation; of all samples of a batch, padding stays at the end and clients stay apart.

        Under vmap torch asks for each client's in turn.
        """
        keys, frame = self.keys(torch.device(device or "cpu")), self._frame
        weight = None if frame.weight is None else _physical(frame.weight)
        turn = self._permuted % len(keys) if keys.dim() and frame.clients is None else 0
        call = frame.next_call() if turn == 0 else frame._calls
        if frame.clients is not None:
            if count % frame.rows:
                raise NoRows("a random order is drawn for a batch and not for its samples")
            each = count // frame.clients
            parts = [_order(key, each, call, weight[k]) + k * each for k, key in enumerate(keys)]  # type: ignore[index]
            return torch.cat(parts)
        if keys.dim() == 0:
            return _order(keys, count, call, weight)
        self._permuted += 1
        return _order(keys[turn], count, call, None if weight is None else weight[turn])


@cache
def _may_draw(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def _not_random(name: str, func: Any, args: Any, kwargs: Any) -> Any:
    """An operation that may draw and does not, such as attention with a dropout of 0."""
    before = torch.get_rng_state()
    result = func(*args, **kwargs)
    if torch.equal(before, torch.get_rng_state()):
        return result
    torch.set_rng_state(before)
    raise ModelError(
        f"torch's operation {name} ({caller()[1].rstrip(',')}) draws random numbers that no client's seed controls: "
        "use dropout, rand, randn, randint, bernoulli, normal, … there"
    )


def _order(key: Tensor, count: int, call: int, weight: Tensor | None) -> Tensor:
    value = uniform(draw((count,), key, call)).double()
    if weight is not None and len(weight) == count:
        value = torch.where(weight > 0, value, 2.0)
    return torch.argsort(value, stable=True)


def _physical(tensor: Tensor) -> Tensor:
    """All clients' rows of what vmap shows as one client's."""
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor


# --- torch's operations ----------------------------------------------------------------------------------------------


def _fill(target: Tensor, values: Tensor) -> Tensor:
    return target.copy_(values)


def _bernoulli(mode: KeyedDraws, self: Tensor, p: float | Tensor | None = None) -> Tensor:
    return (mode.uniform(self.shape, self.device) < (self if p is None else p)).to(self.dtype)


def _bernoulli_(mode: KeyedDraws, self: Tensor, p: float | Tensor = 0.5) -> Tensor:
    if isinstance(p, Tensor):
        return _fill(self, mode.uniform(self.shape, self.device) < p)
    return _fill(self, mode.at_least(p, self.shape, self.device).logical_not())


def _native_dropout(mode: KeyedDraws, x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    kept = mode.at_least(p, x.shape, x.device)
    return x * kept * (0.0 if p >= 1 else 1 / (1 - p)), kept


def _made(values: Callable[[KeyedDraws, Any, Any], Tensor]) -> Callable[..., Tensor]:
    def make(mode: KeyedDraws, size: Any, *, dtype: Any = None, device: Any = None, **rest: Any) -> Tensor:
        return values(mode, size, device).to(dtype or torch.get_default_dtype())

    return make


def _like(values: Callable[[KeyedDraws, Any, Any], Tensor]) -> Callable[..., Tensor]:
    def make(mode: KeyedDraws, x: Tensor, *, dtype: Any = None, **rest: Any) -> Tensor:
        return values(mode, x.shape, x.device).to(dtype or x.dtype)

    return make


def _integers(mode: KeyedDraws, low: int, high: int, shape: Any, device: Any) -> Tensor:
    return low + ((mode.bits(shape, device) >> 1) & 0x3FFFFFFFFFFFFFFF) % (high - low)


def _randint(mode: KeyedDraws, *args: Any, dtype: Any = None, device: Any = None, **rest: Any) -> Tensor:
    low, high, size = args if len(args) == 3 else (0, *args)
    return _integers(mode, low, high, size, device).to(dtype or torch.int64)


def _randint_like(mode: KeyedDraws, x: Tensor, *limits: int, dtype: Any = None, **rest: Any) -> Tensor:
    low, high = limits if len(limits) == 2 else (0, *limits)
    return _integers(mode, low, high, x.shape, x.device).to(dtype or x.dtype)


def _random_(mode: KeyedDraws, self: Tensor, *limits: int | None) -> Tensor:
    low, high = limits if len(limits) == 2 else (0, *limits) if limits else (0, None)
    most = 2**24 if self.is_floating_point() else min(torch.iinfo(self.dtype).max, 2**62)
    return _fill(self, _integers(mode, low or 0, most if high is None else high, self.shape, self.device))


def _randperm(mode: KeyedDraws, n: int, *, dtype: Any = None, device: Any = None, **rest: Any) -> Tensor:
    return mode.order(n, device).to(dtype or torch.int64)


def _uniform_(mode: KeyedDraws, self: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    return _fill(self, low + (high - low) * mode.uniform(self.shape, self.device))


def _normal_(mode: KeyedDraws, self: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return _fill(self, mean + std * mode.normal(self.shape, self.device))


def _normal(mode: KeyedDraws, mean: Any, std: Any = 1.0, size: Any = None, **rest: Any) -> Tensor:
    like = next((value for value in (mean, std) if isinstance(value, Tensor)), torch.empty(()))
    shape = size if size is not None else torch.broadcast_shapes(*(torch.as_tensor(v).shape for v in (mean, std)))
    values: Tensor = mean + std * mode.normal(shape, like.device)
    return values.to(like.dtype)


def _exponential_(mode: KeyedDraws, self: Tensor, lambd: float = 1.0) -> Tensor:
    return _fill(self, -torch.log1p(-mode.uniform(self.shape, self.device)).clamp(max=-1e-8) / lambd)


def _log_normal_(mode: KeyedDraws, self: Tensor, mean: float = 1.0, std: float = 2.0) -> Tensor:
    return _fill(self, (mean + std * mode.normal(self.shape, self.device)).exp())


def _cauchy_(mode: KeyedDraws, self: Tensor, median: float = 0.0, sigma: float = 1.0) -> Tensor:
    return _fill(self, median + sigma * torch.tan(math.pi * (mode.uniform(self.shape, self.device) - 0.5)))


def _geometric_(mode: KeyedDraws, self: Tensor, p: float) -> Tensor:
    return _fill(self, (torch.log1p(-mode.uniform(self.shape, self.device)) / math.log1p(-p)).ceil().clamp(min=1))


def _multinomial(mode: KeyedDraws, self: Tensor, num_samples: int, replacement: bool = False) -> Tensor:
    """By a race: who has the larger weight is expected to arrive earlier."""
    weights = self.view(-1, self.shape[-1])
    shape = (len(weights), num_samples if replacement else 1, weights.shape[1])
    keys = mode.keys(self.device)
    bits = draw(shape, keys, mode._frame.next_call(), rows=0 if keys.dim() else None)
    times = -torch.log1p(-uniform(bits)).clamp(max=-1e-8) / weights.unsqueeze(1)
    taken: Tensor = times.argmin(-1) if replacement else times.squeeze(1).topk(num_samples, largest=False).indices
    return taken.reshape(*self.shape[:-1], num_samples)


def _rrelu(mode: KeyedDraws, self: Tensor, noise: Tensor, lower: float, upper: float, training: bool) -> Tensor:
    slope = lower + (upper - lower) * mode.uniform(self.shape, self.device)
    noise.copy_(torch.where(self > 0, 1.0, slope))
    return self * noise


_KNOWN: dict[str, Callable[..., Any]] = {
    "bernoulli": _bernoulli, "bernoulli_": _bernoulli_, "native_dropout": _native_dropout,
    "rand": _made(KeyedDraws.uniform), "randn": _made(KeyedDraws.normal), "randperm": _randperm,
    "rand_like": _like(KeyedDraws.uniform), "randn_like": _like(KeyedDraws.normal),
    "randint": _randint, "randint_like": _randint_like, "random_": _random_, "uniform_": _uniform_,
    "normal_": _normal_, "normal": _normal, "exponential_": _exponential_, "log_normal_": _log_normal_,
    "cauchy_": _cauchy_, "geometric_": _geometric_, "multinomial": _multinomial, "rrelu_with_noise": _rrelu,
}  # fmt: skip


# --- what cannot be controlled ---------------------------------------------------------------------------------------


def other_generators() -> tuple[Any, ...]:
    """The states of Python's and NumPy's generators, which a forward pass must not use."""
    name, words, *rest = np.random.get_state()
    return random.getstate(), name, np.asarray(words).tobytes(), *rest


def line_that_draws(forward: Callable[[], Any]) -> str:
    """The file and line of somebody's code after which these states differ, found by running it again."""
    found: list[str] = []
    state, last = other_generators(), "?"

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal last
        if frame.f_globals.get("__name__", "").partition(".")[0] in ("torch", "personafl", "random", "contextlib"):
            return None
        if not found and other_generators() != state:
            found.append(last)
        last = f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
        return trace

    outer = sys.gettrace()
    sys.settrace(trace)
    try:
        forward()
    finally:
        sys.settrace(outer)
    return found[0] if found else last
