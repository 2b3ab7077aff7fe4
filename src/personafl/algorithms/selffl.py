"""Self-FL: start point, number of steps and weight of each client, from uncertainty.

Chen, Ding, Tramel, Wu, Sahu, Avestimehr, Zhang: Self-aware personalized federated learning. NeurIPS 2022 (equations by
that text; [in brackets] those of the preprint, which has Algorithm 2, the online variance and the cluster level).

With w_m = 1/(σ0² + σ_m²) and S_m = Σ_{k≠m} w_k:

    client   θ_init = θ − (w_m / S_m)(θ_m − θ)                                              (10) [18]
             ℓ_m from (1 − η/(Bσ_m²))^ℓ = S_m / (σ_m⁻² + S_m),  1 ≤ ℓ_m ≤ `l_max`              (8) [19]
             θ_m ← ℓ_m steps of SGD from θ_init;  σ_m² = empirical variance of its θ_m over rounds  (13) [22]
    server   σ0² = empirical variance of the θ_m;  θ̂ = Σ w_m θ_m / Σ w_m                 (14), (11) [20]
             θ ← (1 − C) θ + C θ̂,  C the activity rate

Sent: θ, σ0² and S_m down (the paper sends only σ0², which does not determine S_m), θ_m and σ_m² up: 1/1 and scalars. A
client keeps θ_m, the running mean of its θ_m, σ_m² and how often it was active. Personalized model: θ_m.

Where the paper is silent or misprinted, ours, all of them options:

- [22] lacks a square. σ_t² = ((t−1)/t) σ²_{t−1} + ((t−1)/t²) ‖x_t − x̄_{t−1}‖², t a client's own count of activations.
- `posterior="paper"` takes S_m as printed. (3) is derived for θ_1 = θ_0; under the model itself the exact posterior has
  1/(σ0² + 1/S_m) in the place of S_m in (8), and the same start point: `posterior="exact"`.
- `variance="sum"` takes σ0² as the sum over the cohort, as the text defines it, `"mean"` divides by its size; σ_m² is a
  mean over rounds always, as [21]. `scope="cohort"` takes S_m over the active clients, `"all"` over all that are known.
- A client that was active fewer than 2 times has no variance: it starts from θ, takes the settings' number of steps,
  and counts in the aggregation with the median σ² of those that have one (all equal if none has). Variances are
  floored at 1e-12; η/(Bσ²) ≥ 1 gives one step; S_m = 0 no shift and `l_max` steps; w_m/S_m is capped at 1.
- `smoothing` is C: 1 by default, as the best over four federations (docs/selffl.md); "activity", the paper's, is the
  share of clients that answered; or another number. "adaptive" shrinks the move towards θ̂ like a James-Stein
  estimate, by 1 − (variance of θ̂ over cohorts)/‖θ̂ − θ‖², but not below the activity rate: while training moves, θ
  follows; once it only trembles, θ is smoothed as in the paper.
- `window` limits the memory of [22]: the count in it stays at `window`, so that older models fade and the way from the
  initial weights to where training settles is not taken for uncertainty. 0 remembers everything, as the paper does.
- With `[privacy]` σ_m² goes up clipped to 0 … C² and with noise of its own (docs/security.md); the server takes from
  σ0² what the noise on models adds to it on average, and not below 0. A client keeps its own exact σ_m².
- `warm_rounds` rounds of fedavg come first; then everybody's count starts from 0.
- `use_init`, `use_steps`, `use_weights` switch the three components off: start from θ, the settings' number of steps,
  equal weights.
- `unknown`: "median", or "mean", is what counts in the place of a σ_m² that is not known yet.
- `sums` has the server compute a round by sums alone (`selffl_sums`), as it must with secure aggregation. S_m is then
  over those who answered last, without the client itself: the cohort, where everybody is active.
- `clusters` is a level between server and clients (`selffl_clusters`).
- `gradient`, `rate`, `sigma` and `prior` are what the papers describe beside the usual (`selffl_options`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor

from personafl.algorithms.base import About, Algorithm, Context, Each, Gradient, JobInfo, Sent, Uplink, Uploads
from personafl.algorithms.extras import SendsForEvaluation
from personafl.algorithms.search_spaces import searched_among
from personafl.algorithms.selffl_clusters import Clusters
from personafl.algorithms.selffl_options import NO_BOUND, Options, rate_asked, steps_asked
from personafl.algorithms.selffl_sums import FLOOR, BySums
from personafl.registry import later
from personafl.settings import check
from personafl.states import State

STEPS_OF_SGD = (
    "(8) has ℓ_m = log(S/(σ⁻² + S)) / log(1 − η/(Bσ²)) for steps of SGD at one rate η; with algorithm.use_steps = "
    "false clients take local.steps, by any optimizer"
)


@dataclass(frozen=True)
class SelfFL(SendsForEvaluation, BySums, Clusters, Options, Algorithm):
    """Personalization driven by inter- and intra-client uncertainty."""

    l_max: int = searched_among(40, (10, 20, 40, 80))
    """The most local steps that (8) may ask for."""
    posterior: Literal["paper", "exact"] = "paper"
    """S_m as the paper prints it, or as the model's exact posterior has it."""
    variance: Literal["sum", "mean"] = "sum"
    """σ0² as a sum over the cohort, or as a mean."""
    scope: Literal["cohort", "all"] = "cohort"
    """Over whom S_m is taken: the active clients, or all that are known."""
    smoothing: float | Literal["activity", "adaptive"] = searched_among(1.0, (0.25, 0.5, 1.0))
    """C: how far θ moves to the weighted mean: a number, the activity rate (the paper), or adaptive."""
    warm_rounds: int = 0
    """Rounds of `fedavg` that come first."""
    window: int = 0
    """How many rounds σ_m² remembers; 0 is all of them, as in the paper."""
    use_init: bool = True
    """Whether uncertainty decides where a client starts."""
    use_steps: bool = True
    """Whether it decides how many steps a client takes."""
    use_weights: bool = True
    """Whether it decides how much a client counts."""
    clusters: Literal["none", "group", "uncertainty"] = "none"
    """A level between client and server: none, the federation's groups, or by uncertainty."""
    cluster_count: int = 5
    """How many clusters there are by uncertainty."""
    unknown: Literal["median", "mean"] = later("median")
    """Of the known σ_m²: what a client counts with that does not know its own yet."""
    sums: bool = later(False)
    """Whether the server uses sums over clients only, as secure aggregation asks for."""
    gradient: Literal["mean", "sum"] = later("mean")
    """What a step descends: the mean of a batch's losses, or their sum, as Algorithm 1 prints it."""
    rate: Literal["local", "solved"] = later("local")
    """η_m: `local.lr`, or what (8) asks for with the number of steps that is taken."""
    rate_max: float = later(1.0)
    """The largest η_m that is solved for, as a multiple of `local.lr`."""
    sigma: Literal["rounds", "fisher"] = later("rounds")
    """σ_m²: the variance of a client's models over rounds, or v²/N_m by their Fisher information."""
    damping: float = later(1.0)
    """With `sigma = "fisher"`: the precision that a parameter has of which the data say nothing."""
    prior: float = later(0.0)
    """1/τ² of a normal prior of θ_0 around the initial model; 0 is a flat prior."""

    about = About(
        name="selffl",
        paper="Chen et al. 2022",
        personalized="θ_m",
        keeps="θ_m, its running mean, σ_m², a count, the ℓ that (8) asked for",
        newcomer="trains once from the final θ, as a client in its first round",
    )

    def __post_init__(self) -> None:
        check("algorithm.l_max", self.l_max, self.l_max >= 1, "at least 1")
        word = isinstance(self.smoothing, str)
        given = self.smoothing in ("activity", "adaptive") if word else 0 < float(self.smoothing) <= 1
        check("algorithm.smoothing", self.smoothing, given, '"activity", "adaptive", or a number in (0, 1]')
        check("algorithm.warm_rounds", self.warm_rounds, self.warm_rounds >= 0, "at least 0")
        memory = "0 for everything, or at least 2: a single model has no variance"
        check("algorithm.window", self.window, self.window == 0 or self.window >= 2, memory)
        check("algorithm.cluster_count", self.cluster_count, self.cluster_count >= 1, "at least 1")
        plain = (self.clusters, self.warm_rounds, self.scope) == ("none", 0, "cohort") and self.smoothing != "adaptive"
        only = 'false, or without clusters, warm_rounds, scope = "all" and smoothing = "adaptive", which are no sums'
        check("algorithm.sums", self.sums, not self.sums or plain, only)
        self._check_options()
        object.__setattr__(self, "uses_training", self.sigma == "fisher")

    @property
    def uplink(self) -> Uplink:
        by_rounds = self.sigma == "rounds"
        return {
            "theta": Each(
                why="the server weighs each model by its σ_m², and σ0² is the spread of the single models",
                weights="samples",  # of warm rounds
                relative_to="theta",
                averaged=True,
            ),
            "sigma2": Each(
                why="the server weighs each model by its σ_m²",
                # A model that stays within the clip C of what it was sent has a variance over rounds of at most C².
                within=1.0 if by_rounds else None,
                unprotected="" if by_rounds else NO_BOUND,
                averaged=True,  # a weight, which is at most 1/σ0² whatever σ_m² a client claims
            ),
        }

    def prepare(self, job: JobInfo) -> Self:
        self._check_fisher(job)
        if self.use_steps or self.rate == "solved":
            job.require_sgd(f"{self.name}: {STEPS_OF_SGD}", "momentum", "nesterov")
        return self._grouped(job)

    # --- server ----------------------------------------------------------------------------------------------

    def new_server(self, theta0: Tensor, clients: int) -> State:
        if self.sums:
            return self._new_total(theta0, clients)
        unknown = torch.full((), -1.0, device=theta0.device)
        return {
            "theta": theta0.clone(),
            "sigma0_2": unknown,
            "sigma2": unknown.repeat(clients),
            "round": torch.zeros((), dtype=torch.int64),
            **self._new_clusters(theta0),
            **self._prior_at(theta0),
        }

    def send(self, server: State, ids: Tensor) -> Sent:
        if self.scope == "all" or self.sums:
            return self.send_for_evaluation(server, ids)
        weights = self._precision(server, self._filled(server["sigma2"][ids.to(server["sigma2"].device)]))
        return self._sent(server, _sum_of_others(weights))

    def send_for_evaluation(self, server: State, ids: Tensor) -> Sent:
        """GAIN is about the whole federation: S_m over all clients that are known."""
        if self.sums:
            return self._send_total(server, ids)
        known = server["sigma2"]
        weights = torch.where(known >= 0, self._precision(server, known), 0.0)
        return self._sent(server, _sum_of_others(weights)[ids.to(known.device)])

    def _precision(self, server: State, sigma2: Tensor) -> Tensor:
        """1/(σ0² + σ_m²), in double: they may differ by many orders."""
        return 1 / (server["sigma0_2"].clamp(min=0) + sigma2.clamp(min=FLOOR)).double()

    def _sent(self, server: State, others: Tensor) -> Sent:
        warm = (server["round"] < self.warm_rounds).float().to(others.device)
        shared = {"theta": server["theta"], "sigma0_2": server["sigma0_2"], "warm": warm}
        return Sent(shared, {"S": (others.clamp(min=0) + self.prior).float()})

    def aggregate(self, server: State, uploads: Uploads) -> State:
        if self.sums:
            return self._aggregate_sums(server, uploads)
        theta, reported, clients = uploads["theta"], uploads["sigma2"], len(server["sigma2"])
        round = server["round"] + 1
        if round <= self.warm_rounds:
            warm = uploads.mean("theta")
            return {**server, **self._prior_at(warm), "theta": warm, "round": round}
        # With noise s² on every number, models are (1 − 1/K) P s² further from their mean than without, on average.
        of_noise = (1 - 1 / len(theta)) * theta[0].numel() * uploads.noise**2
        of_noise *= len(theta) if self.variance == "sum" else 1
        sigma0_2 = (self._between(uploads) - of_noise).clamp(min=0)
        sigma2 = self._filled(reported).clamp(min=FLOOR)
        weights = 1 / (sigma0_2 + sigma2) if self.use_weights else torch.ones_like(sigma2)
        claimed, weights = weights, uploads.limit(weights)
        # Who claims more precision than one may have is believed to have as much as that.
        reported = torch.where((weights < claimed) & (reported >= 0), 1 / weights - sigma0_2, reported)
        new = {**server, "sigma0_2": sigma0_2, "round": round}
        new["sigma2"] = server["sigma2"].index_copy(0, uploads.ids.to(theta.device), reported)
        if self.clusters == "none":
            estimate, mass = uploads.average(theta, weights), weights.sum()
        else:
            estimate, mass = self._aggregate_clusters(new, uploads, weights, sigma2)
        share = self._share(server["theta"], estimate, uploads, weights, clients)
        estimate = self._shrunk(estimate, mass, (reported >= 0).any(), server)
        new["theta"] = torch.lerp(server["theta"], estimate, share)
        return new

    def _filled(self, sigma2: Tensor) -> Tensor:
        """Unknown variances (−1) replaced by the median or mean of the known ones; all equal if none is known."""
        known = sigma2[sigma2 >= 0]
        if not len(known):
            return torch.where(sigma2 >= 0, sigma2, torch.ones_like(sigma2))
        return torch.where(
            sigma2 >= 0, sigma2, torch.quantile(known, 0.5) if self.unknown == "median" else known.mean()
        )

    def _between(self, uploads: Uploads) -> Tensor:
        """σ0²: how much the models differ from their mean; by the robust rule of the run, where it has one."""
        spread = (uploads["theta"] - uploads.average(uploads["theta"])).square().sum(1)
        if self.variance == "mean":
            return uploads.average(spread)
        return spread.sum() if uploads.rule is None else len(spread) * uploads.average(spread)

    def _share(self, theta: Tensor, estimate: Tensor, uploads: Uploads, weights: Tensor, clients: int) -> Tensor:
        """How far the global model moves towards the round's estimate: C, a number, or by signal and noise."""
        activity = len(uploads) / clients
        if self.smoothing != "adaptive":
            return torch.tensor(
                activity if self.smoothing == "activity" else float(self.smoothing), device=theta.device
            )
        # How much the estimate would differ with another cohort, against how much it differs from the global model.
        share = weights / weights.sum()
        noise = (1 - activity) * (share.square() * (uploads["theta"] - estimate).square().sum(1)).sum()
        signal = (estimate - theta).square().sum().clamp(min=1e-30)
        return (1 - noise / signal).clamp(activity, 1.0)

    # --- client ----------------------------------------------------------------------------------------------

    def new_client(self, theta0: Tensor, sent: State) -> State:
        zero = torch.zeros((), device=theta0.device)
        own = {"theta": sent["theta"], "mean": torch.zeros_like(theta0), "sigma2": zero, "t": zero}
        return {**own, "asked": torch.full_like(zero, -1.0)}

    def _aware(self, own: State, sent: State) -> Tensor:
        """Whether a client knows its own variance, and the server that between clients."""
        return (own["t"] >= self._first_known) & (sent["sigma0_2"] >= 0)

    def _evidence(self, sigma0_2: Tensor, S: Tensor) -> Tensor:
        """What the others know of this client's parameter, as a precision: S_m, or exactly 1/(σ0² + 1/S_m)."""
        return S if self.posterior == "paper" else S / (1 + sigma0_2 * S)

    def asked(self, own: State, sent: State, ctx: Context) -> Tensor:
        """The ℓ of (8), before it is made a whole number between 1 and `l_max`."""
        others = self._evidence(sent["sigma0_2"].clamp(min=0), self._others(own, sent))
        sigma2 = own["sigma2"].clamp(min=FLOOR)
        return steps_asked(sigma2, others, ctx.lr / (ctx.batch_size * sigma2))

    def start(self, own: State, sent: State, ctx: Context) -> tuple[Tensor, Tensor]:
        """Start point (10) and number of steps (8)."""
        theta, S = sent["theta"], self._others(own, sent)
        sigma0_2, sigma2 = sent["sigma0_2"].clamp(min=0), own["sigma2"].clamp(min=FLOOR)
        ratio = torch.where(S > 0, 1 / ((sigma0_2 + sigma2) * S.clamp(min=1e-30)), 0.0).clamp(max=1.0)
        aware = self._aware(own, sent)
        start = torch.lerp(theta, own["theta"], -torch.where(aware & self.use_init, ratio, 0.0))
        whole = torch.ceil(self.asked(own, sent, ctx) * (1 - 1e-5))  # 3 steps stay 3, whatever the rounding
        steps = whole.clamp(1, self.l_max).to(ctx.steps.dtype)
        return start, torch.where(aware & self.use_steps, steps, ctx.steps)

    def begin(self, own: State, sent: State, ctx: Context) -> tuple[State, Tensor]:
        start, steps = self.start(own, sent, ctx)
        asked = self.asked(own, sent, ctx)
        known = self._aware(own, sent) & asked.isfinite()
        return {"theta": start, "asked": torch.where(known, asked, -1.0)} | self._solved(own, sent, steps, ctx), steps

    def _solved(self, own: State, sent: State, steps: Tensor, ctx: Context) -> State:
        """η_m, where it is not that of the settings."""
        if self.rate == "local":
            return {}
        others = self._evidence(sent["sigma0_2"].clamp(min=0), self._others(own, sent))
        rate = rate_asked(own["sigma2"].clamp(min=FLOOR), others, ctx.batch_size, steps)
        usable = self._aware(own, sent) & (others > 0)
        return {"rate": torch.where(usable, rate.clamp(max=self.rate_max * ctx.lr), ctx.lr)}

    def step(self, carry: State, sent: State, grad: Gradient, ctx: Context) -> State:
        along = grad if self.gradient == "mean" else self._slope(grad, carry["theta"])
        ctx.descend(carry, "theta", along, lr=carry.get("rate"))
        return carry

    def _remembered(self, own: State, carry: State, sent: State, ctx: Context) -> State:
        """What a client knows of itself after training."""
        theta, counts = carry["theta"], sent["warm"] == 0
        new = online_variance(own, theta, counts, self.window) | {"asked": carry["asked"]}
        return self._by_fisher(new, theta, counts, ctx)

    def _told(self, new: State) -> Tensor:
        """σ_m² for the server; −1 while it is not known."""
        return torch.where(new["t"] >= self._first_known, new["sigma2"], -1.0)

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        theta = carry["theta"]
        new = {"theta": theta, **self._remembered(own, carry, sent, ctx)}
        return new, {"theta": theta, "sigma2": self._told(new)}

    def personal(self, own: State, sent: State) -> Tensor:
        return own["theta"]

    def report(self, own: State, sent: State) -> State:
        """σ_m², weight, posterior variance, GAIN (v^(L)/v^(FL) = 1 + σ_m² · evidence of the others), and the ℓ of (8).

        Nothing with `sums`: each of these would tell σ_m².
        """
        if self.sums:
            return {}
        sigma0_2, sigma2 = sent["sigma0_2"].clamp(min=0), own["sigma2"].clamp(min=FLOOR)
        evidence = self._evidence(sigma0_2, self._others(own, sent))
        known = self._aware(own, sent)
        values = {
            "sigma2": sigma2,
            "sigma0_2": sigma0_2 + 0 * sigma2,
            "weight": 1 / (sigma0_2 + sigma2),
            "posterior_variance": 1 / (1 / sigma2 + evidence),
            "gain": 1 + sigma2 * evidence,
        }
        asked = torch.where(own["asked"] >= 0, own["asked"], torch.nan)
        return {**{n: torch.where(known, value, torch.nan) for n, value in values.items()}, "asked_steps": asked}


def online_variance(own: State, x: Tensor, counts: Tensor, window: int = 0) -> State:
    """The running mean and variance of a client's parameters, one activation further (where it counts)."""
    before = own["t"].clamp(min=0)  # −1 in runs of earlier versions, of a client that failed in its first round
    t = before + 1
    after = t
    if window:
        t = t.clamp(max=window)
    apart = torch.linalg.vector_norm(x - own["mean"]).square()
    sigma2 = (t - 1) / t * own["sigma2"] + (t - 1) / t.square() * apart
    return {
        "mean": torch.lerp(own["mean"], x, torch.where(counts, 1 / t, 0.0)),
        "sigma2": torch.where(counts, sigma2, own["sigma2"]),
        "t": torch.where(counts, after, before),
    }


def _sum_of_others(values: Tensor) -> Tensor:
    """Σ_{k≠m} v_k for each m, by sums from both ends: subtracting v_m from the total would lose small others."""
    zero = values.new_zeros(1)
    before = torch.cat([zero, values[:-1]]).cumsum(0)
    after = torch.cat([zero, values.flip(0)[:-1]]).cumsum(0).flip(0)
    return before + after
