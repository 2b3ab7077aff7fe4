"""FedPAC: features aligned to everybody's class centroids, and for each client its own combination of all heads.

Xu, Tong, Huang: Personalized federated learning with feature alignment and classifier collaboration. ICLR 2023.

    client   h_ik = p_i(k) μ_ik,  V_i = E‖f‖² − Σ_k ‖h_ik‖²,     of its data, with the received φ
             g_i ← g_i − η ∇_g ℓ(φ, g_i),                        `head_steps` times, with the received φ
             φ_i ← φ_i − η ∇_φ (ℓ(φ_i, g_i) + λ/d ‖f − c_y‖²),   `body_steps` times, with the new g_i
    server   φ ← Σ n_i/n φ_i;  c_k ← Σ_i n_ik μ_ik(φ_i) / Σ_i n_ik
             g_i ← Σ_j α_ij g_j,  α_i = argmin Σ_j α_ij² V_j/n_j + Σ_k ‖Σ_j α_ij (h_ik − h_jk)‖²  over the simplex

φ is the body of the model, g_i a client's head, f its features: what goes into the head, the last layer. p_i(k) is the
share of class k in a client's samples and μ_ik the mean of their features. The two terms are the variance and the bias
of the combined head.

Sent: φ, c and its g_i down; φ_i, g_i, h_i, V_i/n_i and the sums for c up (a model and about 2 C d numbers up, a model
and C d down). The server keeps everybody's combined head; a client keeps the head that it trained last. Personalized
model: the current φ with the client's combined head. λ = 0 and `combine = false` is `fedrep`, weighted by samples.

Ours: heads are combined among the clients that answered; a class has no pull until somebody has sent its centroid;
`head_steps` counts batches, 10 of them (the paper has one epoch, at a rate of .1 in the authors' code; ours is the
local one, or `local.groups.head`). The authors' code leaves out weights below .001. A client that was never active has
the current φ with θ0's head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from personafl.algorithms.base import About, Context, Each, Gradient, JobInfo, Mean, Sent, Uplink, Uploads
from personafl.algorithms.extras import Welcomes
from personafl.algorithms.fedproto import UNBOUNDED, UNPROTECTED, with_prototypes
from personafl.algorithms.fedrep import FedRep
from personafl.algorithms.prototypes import Alignment, ByClass, classes_and_width
from personafl.algorithms.search_spaces import searched
from personafl.settings import check
from personafl.states import State

_SHARED = ("body", "prototypes", "known")


@dataclass(frozen=True)
class FedPAC(Welcomes, FedRep):
    """FedRep with features drawn to class centroids and heads that the server combines for each client."""

    weights: Literal["samples", "equal"] = "samples"
    """How clients count in the mean: by their training samples, or all the same."""
    lam: float = searched(1.0, 0.03, 10.0)
    """λ: how strongly features are drawn to the centroid of their class."""
    combine: bool = True
    """Whether the server combines heads for each client, or each keeps its own."""

    # The numbers of classes and features: set by `prepare`.
    _by_class: ClassVar[ByClass] = ByClass(0, 0)
    uses_training: ClassVar[bool] = True
    about = About(
        name="fedpac",
        paper="Xu, Tong, Huang 2023",
        personalized="the current body with the client's combination of heads",
        keeps="its head",
        traffic=("1 + 2 C d", "1 + C d"),
        newcomer="trains head, then body, once from θ0's head and the final body, keeps the head",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check("algorithm.lam", self.lam, self.lam >= 0, "at least 0: a negative λ would push features from centroids")

    def prepare(self, job: JobInfo) -> Self:
        fitted, last = super().prepare(job), job.layers[-1][0].rpartition(".")[0]
        into_head = f"left out for {self.name}: features are what goes into the head, the last layer"
        check("algorithm.head", self.head, self.head == 1, into_head)
        check("algorithm.head_names", self.head_names, self.head_names in ((), (last,)), into_head)
        named = job.local.features
        check("local.features", named, named in ("", f"{last}.input"), into_head)
        object.__setattr__(fitted, "_by_class", ByClass(*classes_and_width(self.name, job)))
        return fitted

    @property
    def uplink(self) -> Uplink:
        why = "each client gets its own combination of all heads"
        return {
            "body": Mean(weights=self.weights, relative_to="body"),
            "by_class": Mean(weights="samples", unprotected=UNPROTECTED, unbounded=UNBOUNDED),
            "head": Each(why=why, relative_to="head"),
            "features": Each(why=f"{why}, by the clients' features", unprotected=UNPROTECTED),
            "variance": Each(why=f"{why}, by their variance", unprotected=UNPROTECTED),
        }

    def new_server(self, theta0: Tensor, clients: int) -> State:
        body, head = self._pieces.split(theta0)
        empty = theta0.new_zeros(self._by_class.classes, self._by_class.width)
        heads = head.expand(clients, -1).clone()
        return {"body": body.clone(), "heads": heads, "prototypes": empty, "known": empty.new_zeros(len(empty))}

    def send(self, server: State, ids: Tensor) -> Sent:
        heads = server["heads"].index_select(0, ids.to(server["heads"].device))
        return Sent({name: server[name] for name in _SHARED}, {"head": heads})

    def welcome(self, server: State, upload: State) -> Sent:
        return Sent({name: server[name] for name in _SHARED})

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        assert ctx.training is not None
        carry, steps = super().begin({"head": sent.get("head", own["head"])}, sent, ctx)
        theta = self._pieces.join(carry["body"], carry["head"])
        columns = ctx.training.mean(replace(self._by_class, squares=True), theta)
        features, squares = columns[:, :-2], columns[:, -1].sum()
        variance = (squares - features.square().sum()).clamp(min=0) / ctx.samples
        return carry | {"features": features, "variance": variance}, steps

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        if ctx.step >= self.head_steps:  # the head does not move features
            term = Alignment(self.lam, self._by_class.width)
            grad = partial(grad, objective=term, prototypes=sent["prototypes"], known=sent["known"])  # type: ignore[assignment]
        return super().step(carry, sent, grad, ctx)

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        assert ctx.training is not None
        theta = self._pieces.join(carry["body"], carry["head"])
        up = {name: carry[name] for name in ("body", "head", "features", "variance")}
        return {"head": carry["head"]}, up | {"by_class": ctx.training.mean(self._by_class, theta)}

    def aggregate(self, server: State, uploads: Uploads) -> State:
        new, heads, trained = with_prototypes(server, uploads), server["heads"], uploads["head"]
        if self.combine:
            alpha = combination_weights(uploads["features"], uploads["variance"])
            trained = alpha.to(trained) @ trained
        heads.index_copy_(0, uploads.ids.to(heads.device), trained)
        return {**new, "body": uploads.mean("body"), "heads": heads}

    def personal(self, own: State, sent: State) -> Tensor:
        return self._pieces.join(sent["body"], sent.get("head", own["head"]))


def combination_weights(features: Tensor, variance: Tensor) -> Tensor:
    """α (K, K) of K clients from their h (K, C, d) and V/n (K,).

    Two clients that have nothing in common keep their heads; two that are alike share them.

    >>> combination_weights(torch.tensor([[[0.0]], [[0.0]], [[1e3]]]), torch.ones(3)).round(decimals=2).tolist()
    [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
    """
    h = features.flatten(1).double().cpu().numpy()
    h, v = h - h.mean(0), variance.double().cpu().numpy()
    return torch.from_numpy(np.stack([_weights_of(h, v, i) for i in range(len(h))]))


def _weights_of(h: NDArray[np.float64], v: NDArray[np.float64], i: int) -> NDArray[np.float64]:
    """The α of one client: αᵀ (diag(v) + D Dᵀ) α is smallest on the simplex, with D_j = h_i − h_j.

    For any M > 0 the β ≥ 0 for which βᵀ Q β + M² (Σ β − 1)² is smallest is a multiple of α: of all multiples s α of a
    point the smallest has M² q / (q + M²), which grows with q = αᵀ Q α. So this is non-negative least squares.
    """
    from scipy.optimize import nnls  # a tenth of a second, which only this needs

    apart = h[i] - h
    values, vectors = np.linalg.eigh(np.diag(v) + apart @ apart.T)
    scale = values.max()
    if not scale > 0:
        return np.asarray(np.eye(len(h))[i])
    root = np.sqrt(np.clip(values / scale, 0, None))[:, None] * vectors.T
    beta = np.asarray(nnls(np.vstack([root, np.ones(len(h))]), np.append(np.zeros(len(h)), 1.0))[0], np.float64)
    return np.asarray(beta / beta.sum())
