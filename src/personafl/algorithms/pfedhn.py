"""pFedHN: a network on the server makes the clients' models, each from an embedding of its client.

Shamsian, Navon, Fetaya, Chechik: Personalized federated learning using hypernetworks. ICML 2021.

    θ_i = h(v_i; φ)        v_i the embedding of client i, h an MLP with a linear head for all of θ
    client   Δ_i = y_i − θ_i,  y_i by local SGD from θ_i
    server   φ ← φ + α (∂θ_i/∂φ)ᵀ Δ_i,   v_i ← v_i + α_v (∂θ_i/∂v_i)ᵀ Δ_i

Sent: θ_i down, y_i up (1/1); φ never leaves the server. A client keeps nothing. Personalized model: h(v_i; φ) now,
also for clients that were never active. The paper prints the steps with a minus; Δ_i points to where θ_i should go,
and the authors' code takes θ_i − y_i as the gradient.

Ours: the paper has one client in a round, we take the mean of φ's steps over those that answered. These are gradient
steps on ½ Σ ‖h(v_i; φ) − y_i‖² at the φ and v_i that made θ_i; where one would make this larger it is halved until it
does not (the authors' code cuts gradients to the length 50, and has momentum and weight decay). Heads start with the
weights 0 and the bias θ0, so everybody starts from θ0; embeddings and hidden layers are drawn by the initial weights,
and so by the run's seed: normal, and uniform as torch does it. The embedding has 1 + M/4 numbers for M clients, as in
the authors' code. `hidden = []` is a linear hypernetwork. A newcomer's embedding alone is learned: it starts from the
mean embedding, the newcomer trains h(v), and v is fitted to what comes back by such steps, three times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from personafl.algorithms.base import About, Algorithm, Context, Each, Sent, Uplink, Uploads
from personafl.algorithms.extras import Welcomes
from personafl.algorithms.search_spaces import searched
from personafl.settings import check
from personafl.states import State, moved
from personafl.streams import array_key

MOST_HALVINGS = 30
FITTING_STEPS = 50


@dataclass(frozen=True)
class PFedHN(Welcomes, Algorithm):
    """A hypernetwork that makes a model for each client."""

    lr: float = searched(1.0, 0.03, 3.0)
    """α: the learning rate of the hypernetwork."""
    embedding_lr: float = 0.5
    """α_v: that of the clients' embeddings."""
    embedding: int | None = None
    """How many numbers an embedding has. Left out: 1 + M/4 for M clients."""
    hidden: tuple[int, ...] = (100, 100, 100)
    """The widths of the hypernetwork's hidden layers; none: it is linear."""

    newcomer_rounds: ClassVar[int] = 4
    about = About(
        name="pfedhn",
        paper="Shamsian et al. 2021",
        personalized="h(v_i), what the hypernetwork makes for it",
        newcomer="has an embedding learned, from three rounds of its own training; the hypernetwork stays",
    )
    uplink: ClassVar[Uplink] = {
        "theta": Each(why="the server's gradient takes each update with its client's embedding", relative_to="theta")
    }

    def __post_init__(self) -> None:
        for key in ("lr", "embedding_lr"):
            check(f"algorithm.{key}", getattr(self, key), getattr(self, key) >= 0, "at least 0")
        size = self.embedding
        check("algorithm.embedding", size, size is None or size >= 1, "at least 1 number, or left out")
        check("algorithm.hidden", self.hidden, all(width >= 1 for width in self.hidden), "widths of at least 1")

    def new_server(self, theta0: Tensor, clients: int) -> State:
        draw = torch.Generator().manual_seed(array_key(theta0.cpu().numpy()))
        size = self.embedding or 1 + clients // 4
        made = {"embeddings": torch.randn(clients, size, generator=draw)}
        for number, width in enumerate(self.hidden):
            bound = 1 / math.sqrt(size)
            for name, shape in (("weight", (width, size)), ("bias", (width,))):
                made[f"{name}{number}"] = (2 * torch.rand(shape, generator=draw) - 1) * bound
            size = width
        return {**moved(made, theta0.device), "head": theta0.new_zeros(len(theta0), size), "theta": theta0.clone()}

    def models(self, server: State, embeddings: Tensor) -> Tensor:
        """h(v; φ) for each of these embeddings, (K, P)."""
        x = embeddings
        for number in range(len(self.hidden)):
            x = torch.relu(x) if number else x
            x = x @ server[f"weight{number}"].T + server[f"bias{number}"]
        made: Tensor = x @ server["head"].T + server["theta"]
        return made

    def send(self, server: State, ids: Tensor) -> Sent:
        return Sent({}, {"theta": self.models(server, server["embeddings"][ids.to(server["theta"].device)])})

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        return {"theta": sent["theta"]}, ctx.steps

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        return {}, {"theta": carry["theta"]}

    def aggregate(self, server: State, uploads: Uploads) -> State:
        phi, ids = dict(server), uploads.ids.to(server["theta"].device)
        embeddings = phi.pop("embeddings")
        new, moved = self._towards(phi, embeddings[ids], uploads["theta"], self.lr / len(ids))
        return {**new, "embeddings": embeddings.index_copy(0, ids, moved)}

    def _towards(self, phi: State, v: Tensor, y: Tensor, lr: float) -> tuple[State, Tensor]:
        """φ and embeddings after a gradient step on ½ Σ ‖h(v_i; φ) − y_i‖²: as long as asked for, or halved."""
        with torch.enable_grad():
            leaves = {name: value.detach().requires_grad_() for name, value in {**phi, "v": v}.items()}
            made = self.models(leaves, leaves["v"])
            # The gradient of a number: for that of a vector, as for torch.func.vjp, torch imports its compiler.
            product = (made * (y - made.detach())).sum()
        theta = made.detach()
        steps = dict(zip(leaves, torch.autograd.grad(product, list(leaves.values())), strict=True))
        for halvings in range(MOST_HALVINGS + 1):
            scale = 0.5**halvings
            new = {name: value + scale * lr * steps[name] for name, value in phi.items()}
            moved = v + scale * self.embedding_lr * steps["v"]
            if (y - self.models(new, moved)).norm() <= (y - theta).norm():
                return new, moved
        return phi, v

    def personal(self, own: State, sent: State) -> Tensor:
        return sent["theta"]

    def global_model(self, server: State) -> Tensor | None:
        return None

    def welcome(self, server: State, upload: State) -> Sent:
        phi = dict(server)
        v = phi.pop("embeddings").mean(0, keepdim=True)
        for _ in range(FITTING_STEPS if upload else 0):
            v = self._towards(phi, v, upload["theta"][None], 0.0)[1]
        return Sent({}, {"theta": self.models(phi, v)})
