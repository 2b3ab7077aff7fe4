"""Optimizers of the server: FedAvgM, FedAdagrad, FedAdam and FedYogi.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive federated optimization. ICLR 2021.
FedAvgM: Hsu, Qi, Brown: Measuring the effects of non-identical data distribution for federated visual classification.
arXiv 1909.06335, 2019.

    client   y ← w,  then  y ← y − η_l g(y),  as fedavg
    server   Δ = Σ p_i (y_i − w),  p_i as fedavg
    fedavgm      m ← β m + Δ                                                          w ← w + η m
    fedadagrad   m ← β1 m + (1 − β1) Δ,  v ← v + Δ²                                   w ← w + η m / (√v + τ)
    fedadam      m as fedadagrad,        v ← β2 v + (1 − β2) Δ²                       w as fedadagrad
    fedyogi      m as fedadagrad,        v ← v − (1 − β2) Δ² sign(v − Δ²)             w as fedadagrad

η is `server_lr`, all operations are by element. Sent: w down, y up (1/1). Personalized model: the locally trained y_i,
which the client keeps; the global w is reported beside it. m starts at 0; v at τ², the smallest value that the paper
allows. As in the paper there is no correction of Adam's bias. β, β1, β2 and τ are the papers'. Ours: the default η of
fedadagrad, fedadam and fedyogi, which the paper searches anew for each data set; a client that was never active has w.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from personafl.algorithms.base import Uploads
from personafl.algorithms.fedavg import FedAvg
from personafl.algorithms.search_spaces import searched, searched_among
from personafl.settings import check
from personafl.states import State


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """FedAvg with momentum on the server."""

    momentum: float = searched_among(0.9, (0.3, 0.5, 0.7, 0.9))
    """β: how much of the server's last move goes on."""
    server_lr: float = 1.0
    """η: the server's learning rate."""

    about = replace(FedAvg.about, name="fedavgm", paper="Hsu et al. 2019")

    def __post_init__(self) -> None:
        check("algorithm.momentum", self.momentum, 0 <= self.momentum < 1, "in [0, 1)")
        check("algorithm.server_lr", self.server_lr, self.server_lr > 0, "above 0")

    def new_server(self, theta0: Tensor, clients: int) -> State:
        return {"theta": theta0.clone(), "m": torch.zeros_like(theta0)}

    def aggregate(self, server: State, uploads: Uploads) -> State:
        w = server["theta"]
        m = self.momentum * server["m"] + (uploads.mean("theta") - w)
        return {"theta": w + self.server_lr * m, "m": m}


@dataclass(frozen=True)
class FedAdagrad(FedAvg):
    """FedAvg whose server divides by the root of the sum of squared updates."""

    server_lr: float = searched(0.1, 0.01, 1.0)
    """η: the server's learning rate; about the most that a parameter moves in a round."""
    beta1: float = 0.0
    """β1: how much of the mean of former updates is kept."""
    tau: float = 1e-3
    """τ: keeps steps of parameters that hardly moved from being large."""

    about = replace(FedAvg.about, name="fedadagrad", paper="Reddi et al. 2021")

    def __post_init__(self) -> None:
        check("algorithm.server_lr", self.server_lr, self.server_lr > 0, "above 0")
        check("algorithm.beta1", self.beta1, 0 <= self.beta1 < 1, "in [0, 1)")
        check("algorithm.tau", self.tau, self.tau > 0, "above 0: it is added to the root that the step is divided by")

    def new_server(self, theta0: Tensor, clients: int) -> State:
        return {"theta": theta0.clone(), "m": torch.zeros_like(theta0), "v": torch.full_like(theta0, self.tau**2)}

    def aggregate(self, server: State, uploads: Uploads) -> State:
        w = server["theta"]
        delta = uploads.mean("theta") - w
        m = self.beta1 * server["m"] + (1 - self.beta1) * delta
        v = self._second_moment(server["v"], delta.square())
        return {"theta": w + self.server_lr * m / (v.sqrt() + self.tau), "m": m, "v": v}

    def _second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


@dataclass(frozen=True)
class FedAdam(FedAdagrad):
    """FedAvg whose server is Adam."""

    server_lr: float = searched(0.01, 0.001, 0.3)
    """η: the server's learning rate; about the most that a parameter moves in a round."""
    beta1: float = 0.9
    """β1: how much of the mean of former updates is kept."""
    beta2: float = 0.99
    """β2: how much of the mean of their squares is kept."""

    about = replace(FedAdagrad.about, name="fedadam")

    def __post_init__(self) -> None:
        super().__post_init__()
        check("algorithm.beta2", self.beta2, 0 <= self.beta2 < 1, "in [0, 1)")

    def _second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """FedAvg whose server is Yogi: v moves by (1 − β2) Δ², however far it is from Δ²."""

    about = replace(FedAdam.about, name="fedyogi")

    def _second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * torch.sign(v - square)
