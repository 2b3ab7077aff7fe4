"""Self-FL on quadratic clients from the paper's equations, and the Gaussian model with known variances.

`ByHand` is float64 numpy and shares no code with the package. It keeps the whole history of every client and takes
variances of it, where the package has online formulas.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from personafl.algorithms import SelfFL, SelfFLAug
from personafl.algorithms.base import Context, Uploads
from personafl.federation import Federation
from personafl.settings import Local
from personafl.states import State
from personafl.training.evaluation import personal_models
from personafl.training.runner import Runner
from tests.oracles.quadratic import Array, Quadratics, personal, server, states, train

ALL = ("init", "steps", "weights")


class ByHand:
    """Algorithm 1, or Algorithm 2 with `extra` steps to the local optimum."""

    def __init__(
        self, problem: Quadratics, lr: float, steps: int, l_max: int = 40, posterior: str = "paper",
        variance: str = "sum", scope: str = "cohort", smoothing: float | str = 1.0,
        extra: int = 0, use: Iterable[str] = ALL, prior: float = 0.0, gradient: str = "mean",
    ) -> None:  # fmt: skip
        self.problem, self.lr, self.default, self.l_max = problem, lr, steps, l_max
        self.posterior, self.variance, self.scope, self.smoothing = posterior, variance, scope, smoothing
        self.extra, self.use = extra, set(use)
        clients, d = problem.z.shape
        self.theta, self.sigma0_2 = np.zeros(d), None
        self.history: list[list[Array]] = [[] for _ in range(clients)]  # θ_m^t, or θ_{m,t} in Algorithm 2
        self.personal: dict[int, Array] = {}
        self.steps = np.zeros(clients, int)
        self.prior = prior  # of θ_0, around the start, which is 0
        self.summed = problem.n if gradient == "sum" else np.ones(clients)
        self.asked = np.full(clients, np.nan)  # the ℓ of (8)

    def sigma2(self, m: int) -> float | None:
        """(13), (16) [21]: trace of the empirical covariance, from two models on."""
        if len(self.history[m]) < 2:
            return None
        x = np.array(self.history[m])
        return float(((x - x.mean(0)) ** 2).sum() / len(x))

    def round(self, cohort: Iterable[int]) -> None:
        begun = {m: self.begin(m, list(cohort)) for m in cohort}
        new = {}
        for m, (start, steps) in begun.items():
            self.steps[m], self.personal[m] = steps + self.extra, self.descend(m, start, steps)
            new[m] = self.descend(m, self.personal[m], self.extra)
        for m, x in new.items():
            self.history[m].append(x)
        x = np.array(list(new.values()))
        spread = ((x - x.mean(0)) ** 2).sum()
        self.sigma0_2 = spread if self.variance == "sum" else spread / len(x)  # (14)
        w = self.weights(list(new)) if "weights" in self.use else np.ones(len(x))
        share = len(x) / len(self.history) if self.smoothing == "activity" else self.smoothing
        some = any(self.sigma2(m) is not None for m in new)
        self.theta = (1 - share) * self.theta + share * (w @ x / (w.sum() + self.prior * some))  # (11)

    def weights(self, clients: list[int]) -> Array:
        """w of these clients; a variance that is not known is the median of those among them that are."""
        sigma2 = [self.sigma2(m) for m in clients]
        known = [s for s in sigma2 if s is not None]
        fill = np.median(known) if known else 1.0
        w = 1 / (self.sigma0_2 + np.array([fill if s is None else s for s in sigma2]))
        return w if known else np.ones_like(w)

    def begin(self, m: int, cohort: list[int]) -> tuple[Array, int]:
        sigma2 = self.sigma2(m)
        self.asked[m] = np.nan
        if sigma2 is None:
            return self.theta, self.default
        w = 1 / (self.sigma0_2 + sigma2)
        if self.scope == "cohort":
            S = self.prior + self.weights(cohort).sum() - w
        else:
            S = self.prior + sum(self.weights([k])[0] for k, x in enumerate(self.history) if len(x) >= 2 and k != m)
        start, steps = self.theta, self.default
        if "init" in self.use and S > 0:  # (10)
            start = self.theta - min(w / S, 1) * (self.history[m][-1] - self.theta)
        others = S if self.posterior == "paper" or S == 0 else 1 / (self.sigma0_2 + 1 / S)
        b = 1 - self.lr / (self.problem.n[m] * sigma2)
        if S > 0:
            self.asked[m] = 0 if b <= 0 else np.log(others / (1 / sigma2 + others)) / np.log(b)
        if "steps" in self.use:  # (8)
            if b <= 0 or S == 0:
                return start, 1 if S > 0 else self.l_max
            l = self.asked[m]
            assert l > self.l_max or abs(l - round(l)) > 1e-3, "too close to call in float32: choose another problem"
            steps = int(min(max(1, np.ceil(l)), self.l_max))
        return start, steps

    def descend(self, m: int, theta: Array, steps: int) -> Array:
        for _ in range(steps):
            theta = theta - self.lr * self.summed[m] * self.problem.A[m] @ (theta - self.problem.z[m])
        return theta


def check_against_hand(runner: Runner, hand: ByHand) -> None:
    clients, close = len(hand.history), {"rtol": 2e-4, "atol": 2e-5}
    sigma2 = [hand.sigma2(m) for m in range(clients)]
    own, active = states(runner), np.array([bool(x) for x in hand.history])
    np.testing.assert_array_equal(runner.steps, hand.steps)
    np.testing.assert_allclose(own["asked"], [-1 if np.isnan(l) else l for l in hand.asked], rtol=1e-3, atol=1e-5)
    np.testing.assert_array_equal(own["t"], [len(x) for x in hand.history])
    np.testing.assert_allclose(own["sigma2"], [s or 0 for s in sigma2], **close)
    for m in np.flatnonzero(active):
        np.testing.assert_allclose(own["mean"][m], np.mean(hand.history[m], 0), **close)
        np.testing.assert_allclose(own["theta"][m], hand.history[m][-1], **close)
    np.testing.assert_allclose(server(runner), hand.theta, **close)
    np.testing.assert_allclose(server(runner, "sigma0_2"), hand.sigma0_2, **close)
    np.testing.assert_allclose(server(runner, "sigma2"), [-1 if s is None else s for s in sigma2], **close)
    np.testing.assert_allclose(personal(runner), [hand.personal.get(m, hand.theta) for m in range(clients)], **close)


def follow(
    algorithm: SelfFL, hand: ByHand, setting: tuple[int, float, int], folder: Path, engine: str = "stacked"
) -> Runner:
    """Every round of a run (clients, activity, rounds) against the oracle."""
    clients, activity, rounds = setting
    runner = train(hand.problem, algorithm, folder, 0, hand.lr, hand.default, activity=activity, engine=engine)
    for r in range(1, rounds + 1):
        runner.step()
        hand.round(runner.schedule.cohort(0, r, clients))
        check_against_hand(runner, hand)
    return runner


def gaussian(theta_hat: Array, sigma2: Array) -> Quadratics:
    """Clients of one sample, whose loss has gradient (θ − θ̂_m)/σ_m²: the two-level Gaussian model, and B = 1."""
    x = 1 / np.sqrt(2 * np.asarray(sigma2))
    data = {
        f"client-{m}": {split: (np.float32([[x[m]]]), np.float32([x[m] * theta_hat[m]])) for split in ("train", "test")}
        for m in range(len(x))
    }
    A = 2 * x[:, None, None] ** 2
    return Quadratics(A, np.asarray(theta_hat)[:, None], np.ones(len(x)), Federation.from_clients(data))


@dataclass(frozen=True)
class Known(SelfFL):
    """Algorithm 1 with the variances that the states have at the start, for ever."""

    def finish(self, own: State, carry: State, sent: State, ctx: Context) -> tuple[State, State]:
        new, up = super().finish(own, carry, sent, ctx)
        return {**new, "sigma2": own["sigma2"], "t": own["t"]}, {**up, "sigma2": own["sigma2"]}

    def aggregate(self, server: State, uploads: Uploads) -> State:
        w = 1 / (server["sigma0_2"] + uploads["sigma2"])
        theta = (w @ uploads["theta"] + self.prior * server.get("prior", 0.0)) / (w.sum() + self.prior)
        return {**server, "theta": theta, "round": server["round"] + 1}


@dataclass(frozen=True)
class KnownAug(Known, SelfFLAug):
    """The same of Algorithm 2."""


def with_known(
    algorithm: SelfFL, theta_hat: Array, sigma2: Array, sigma0_2: float, folder: Path, lr: float, start: float = 0.0
) -> Runner:
    """A runner on the Gaussian model whose states hold the true variances, before its first round."""
    runner = train(gaussian(theta_hat, sigma2), algorithm, folder, 0, lr, start=np.array([start]))
    everybody = np.arange(len(sigma2))
    known = torch.tensor(np.asarray(sigma2), dtype=torch.float32)
    like = runner.clients.store.like.items()
    own = {name: value.new_zeros(len(everybody), *value.shape) for name, value in like}
    own["theta"] += start
    runner.clients.store.put(everybody, {**own, "sigma2": known, "t": torch.full_like(known, 2.0)})
    runner.server |= {"sigma0_2": torch.tensor(float(sigma0_2)), "sigma2": known}
    return runner


def reported(runner: Runner) -> dict[str, Array]:
    """The columns that an evaluation adds for each client."""
    parts = personal_models(runner.algorithm, runner.clients.engine, runner.clients.store, runner.snapshot(True))
    (part,) = list(parts)
    return {name: value.double().numpy() for name, value in part.report.items()}


def context(lr: float = 0.1, steps: int = 20, batch_size: int = 1) -> Context:
    return Context(
        1, lr, Local(lr=lr), torch.tensor(steps), torch.tensor(batch_size), torch.tensor(batch_size), torch.tensor(0)
    )


def handmade(sigma2: float, t: float = 5.0, theta: float = 0.0) -> State:
    """A client's state with one parameter."""
    return {
        "theta": torch.tensor([theta]),
        "mean": torch.zeros(1),
        "sigma2": torch.tensor(float(sigma2)),
        "t": torch.tensor(t),
        "personal": torch.zeros(1),
    }


def message(sigma0_2: float, S: float, theta: float = 0.0) -> State:
    """What a client of `selffl` gets."""
    sent = {"sigma0_2": torch.tensor(float(sigma0_2)), "S": torch.tensor(float(S)), "warm": torch.tensor(0.0)}
    return {"theta": torch.tensor([theta]), **sent}
