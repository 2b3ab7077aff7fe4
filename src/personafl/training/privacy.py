"""Clipping and noise: the `[privacy]` table of a config.

A client that was sent w and would answer y sends

    w + Δ min(1, C/‖Δ‖) + N(0, (zC)² I),    Δ = y − w,

C being `clip` and z `noise`. It does so itself, before anything leaves it: nobody else is trusted with the noise. What
the client keeps, its personalized model above all, is neither clipped nor noisy. With `noise_at = "server"` clients
only clip, and the server adds noise once, to the mean (`server_noise.py`). With `unit = "sample"` answers are left as
they are, and every gradient of local training is clipped by sample and noisy (`kernels/per_sample.py`).

A client on a machine of its own draws its noise from the system's secure generator, fresh for every answer
(`SecureNoise`): it follows from nothing that anybody knows or can ask for again. In a simulation it follows from the
run's seed (`NoiseSource`), so that a run can be repeated and does not depend on the engine. That is for research, and
protects nobody: who knows the seed can subtract the noise.

docs/security.md says what this guarantees and what it does not.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import shake_256
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from personafl.algorithms.base import Algorithm, Sent
from personafl.algorithms.uploads import Each, Uplink, check_declared
from personafl.errors import ConfigError
from personafl.kernels.per_sample import PerSample
from personafl.settings import check
from personafl.states import State
from personafl.training.accounting import SENSITIVITY, epsilon, require_accountant

Floats = NDArray[np.float64]

NUMBERS_SHARE = 0.1
"""Of what an answer may tell: the part of numbers that are relative to nothing (`within` in an uplink), if any."""


@dataclass(frozen=True)
class Privacy:
    """What a client does to its answer before it sends it.

    Parameters
    ----------
    clip
        The largest L2 norm C by which an answer may differ from what the client was sent; with `unit = "sample"`, the
        largest norm of the gradient of a sample.
    noise
        The noise multiplier z: every coordinate gets Gaussian noise of standard deviation z C, a mean of answers of
        which the heaviest has the share p, z C p. With 0, there is clipping only, which guarantees nothing.
    delta
        The δ at which ε is reported; well below 1 over the number of clients (of samples, with `unit = "sample"`).
    noise_at
        Who adds the noise to answers: the clients, each to its own; or the server, once to their mean, which is less
        noise, for clients that trust it.
    unit
        Whose privacy: a client's, as a whole; or a training sample's, by noise in every local step (DP-SGD).

    Examples
    --------
    >>> Privacy(clip=1.0, noise=8.0).epsilon(np.array([0, 1, 10])).round(2).tolist()
    [0.0, 0.93, 3.34]
    """

    clip: float
    noise: float = 0.0
    delta: float = 1e-5
    noise_at: Literal["clients", "server"] = "clients"
    unit: Literal["client", "sample"] = "client"

    def __post_init__(self) -> None:
        check("privacy.clip", self.clip, 0 < self.clip < 1e38, "above 0, and no more than float32 holds")
        check("privacy.noise", self.noise, 0 <= self.noise < 1e38, "at least 0, and no more than float32 holds")
        check("privacy.delta", self.delta, 0 < self.delta < 1, "in (0, 1), well below 1 over the number of clients")

    def check(self, algorithm: Algorithm) -> None:
        """Raise a ConfigError where an algorithm cannot be combined with this, with the reason."""
        check("privacy.noise_at", self.noise_at, self.noise_at in ("clients", "server"), '"clients" or "server"')
        check("privacy.unit", self.unit, self.unit in ("client", "sample"), '"client" or "sample"')
        if self.unit == "sample":
            own = 'clients for unit = "sample": every client adds noise to its own steps'
            check("privacy.noise_at", self.noise_at, self.noise_at == "clients", own)
        elif reasons := self._reasons(algorithm.uplink):
            raise ConfigError(
                f"[privacy] cannot be combined with {algorithm.name}: {', and '.join(dict.fromkeys(reasons))}; leave "
                "[privacy] out or choose another algorithm"
            )
        if self.noise:
            require_accountant()

    def _reasons(self, uplink: Uplink) -> list[str]:
        """Why what goes up cannot be protected."""
        found = [
            how.unprotected or f"it does not say what {name} is measured against (relative_to in its uplink)"
            for name, how in uplink.items()
            if how.unprotected or (how.relative_to is None and how.within is None)
        ]
        if self.noise_at == "server":
            found += [
                f'noise_at = "server" is noise on a mean, and {how.why} (noise_at = "clients" does)'
                for how in uplink.values()
                if isinstance(how, Each) and not how.unprotected
            ]
        return found

    @property
    def own_noise(self) -> float:
        """The noise multiplier of what clients add to their answers themselves."""
        return self.noise if self.noise_at == "clients" and self.unit == "client" else 0.0

    @property
    def per_sample(self) -> PerSample | None:
        """What local steps do to the gradients of samples, with `unit = "sample"`."""
        return PerSample(self.clip, self.noise) if self.unit == "sample" else None

    def table(self) -> dict[str, Any]:
        """As a table of run.toml: what was there first always, the rest where it is not the usual."""
        usual = {"noise_at": "clients", "unit": "client"}
        return {key: value for key, value in asdict(self).items() if usual.get(key) != value}

    def epsilon(self, releases: NDArray[np.int64]) -> Floats:
        """The ε of clients that sent so many answers, see `accounting`."""
        made = {int(k): epsilon(self.noise, self.delta, int(k)) for k in np.unique(releases)}
        return np.array([made[int(k)] for k in releases], np.float64)

    def deviation(self, uplink: Uplink) -> float:
        """The standard deviation of the noise that clients add to numbers that are relative to what they were sent."""
        numbers = any(how.within is not None for how in uplink.values())
        return self.own_noise * self.clip / math.sqrt(1 - NUMBERS_SHARE * numbers)

    def protect(
        self, algorithm: Algorithm, up: State, sent: Sent, names: Sequence[str], round: int, source: Noise
    ) -> State:
        """What clients send in place of `up`; a row for each of the clients that are named.

        Several uploads of a client count as one long vector. All of it is clipped, whatever it is called. Numbers that
        are relative to nothing (`within`) are clipped and noisy by themselves: models and numbers have shares s of
        what an answer may tell, and noise multipliers z/√s.

        Parameters
        ----------
        names
            Of the clients, which the noise of a simulation depends on.
        source
            Where the noise comes from.
        """
        check_declared(algorithm.name, up, algorithm.uplink)
        against = {name: how.relative_to for name, how in algorithm.uplink.items() if how.relative_to is not None}
        if not up or self.unit == "sample":
            return up
        answers = _rows([up[name] for name in against])
        shared = {w: value.flatten().expand(len(names), -1) for w, value in sent.shared.items()}
        before = _rows([(sent.each if w in sent.each else shared)[w] for w in against.values()])
        protected = np.empty_like(answers)
        for row, client in enumerate(names):
            # One client at a time, in double: the same bits in whatever company, and noise that is rounded only once.
            was, answer = before[row].astype(np.float64), answers[row].astype(np.float64)
            protected[row] = self._protect_one(was, answer, client, round, source, self.deviation(algorithm.uplink))
        pieces = torch.from_numpy(protected).split([up[name][0].numel() for name in against], 1)
        models = {name: piece.reshape(up[name].shape).to(up[name]) for name, piece in zip(against, pieces, strict=True)}
        return models | self._protected_numbers(algorithm.uplink, up, names, round, source)

    def _protect_one(
        self, before: Floats, answer: Floats, client: str, round: int, source: Noise, deviation: float
    ) -> Floats:
        update = answer - before
        norm = float(np.sqrt(np.square(update).sum()))
        clipped = before + update * (self.clip / norm) if norm > self.clip else answer
        if not deviation:
            return clipped
        return np.asarray(clipped + deviation * source.normal(client, round, len(answer)))

    def _protected_numbers(self, uplink: Uplink, up: State, names: Sequence[str], round: int, source: Noise) -> State:
        """Numbers that are relative to nothing, each in 0 … within · C² before it gets its noise, and again after."""
        bounded = {name: how.within * self.clip**2 for name, how in uplink.items() if how.within is not None}
        out: State = {}
        for name, most in bounded.items():
            value = up[name].detach().cpu().double().numpy()
            # Another data set may change it by `most`, as it may change a model by SENSITIVITY · C.
            deviation = self.own_noise * most / SENSITIVITY * (len(bounded) / NUMBERS_SHARE) ** 0.5
            noise = np.array([source.normal(json.dumps([client, name]), round, 1)[0] for client in names])
            made = np.clip(np.clip(value, 0, most) + deviation * noise.reshape(value.shape), 0, most)
            out[name] = torch.from_numpy(np.where(value < 0, value, made)).to(up[name])
        return out


class Noise(Protocol):
    """Where noise comes from."""

    def normal(self, client: str, round: int, size: int) -> Floats:
        """Standard normal numbers for a client's answer in a round."""
        ...


@dataclass(frozen=True)
class NoiseSource:
    """Noise of a simulation: it follows from the seed, the client's name and the round, and so protects nobody.

    Examples
    --------
    >>> NoiseSource(seed=0).normal("ann", 1, 2).round(3).tolist()
    [0.552, -0.343]
    """

    seed: int

    def normal(self, client: str, round: int, size: int) -> Floats:
        """The same on every machine."""
        # A list as JSON: no two different ones have the same bytes.
        named = json.dumps(["privacy", self.seed, client, round]).encode()
        return _normal(shake_256(named).digest(8 * size))


@dataclass(frozen=True)
class SecureNoise:
    """Noise of a client on a machine of its own: from the system's secure generator, never the same twice.

    Examples
    --------
    >>> one, other = (SecureNoise().normal("ann", 1, 2) for _ in range(2))
    >>> bool((one == other).any())
    False
    """

    def normal(self, client: str, round: int, size: int) -> Floats:
        """Fresh numbers, whoever asks and how often."""
        return _normal(os.urandom(8 * size))


def _normal(random: bytes) -> Floats:
    """Standard normal numbers, one from each eight random bytes."""
    # 52 bits, so that the half which keeps 0 out does not round the largest up to 1.
    bits = np.frombuffer(random, "<u8") >> np.uint64(12)
    uniform = torch.from_numpy((bits.astype(np.float64) + 0.5) * 2.0**-52)
    return np.asarray(torch.special.ndtri(uniform).numpy())


def _rows(values: Sequence[Tensor]) -> NDArray[np.float32]:
    """Tensors side by side, a row for each client."""
    flat = [value.detach().cpu().flatten(1) for value in values]
    rows = torch.cat(flat, 1) if len(flat) > 1 else flat[0]
    return np.asarray(rows.numpy())
