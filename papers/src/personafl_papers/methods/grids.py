"""What is tried for each method, written down before the runs: as many tries for every method.

Three local rates times two values of the method's own main setting; a method that has none, or whose own setting is
chosen by itself, spends all tries on the rate. Values are those of the papers and their authors' code where these fit
data of this size. The range of the rates was set after a look at the validation accuracy of `separate` and `fedavg-ft`
with five rates and one seed, and is the same for all.
"""

from __future__ import annotations

from typing import Any

TRIES = 6
RATES = [0.1, 0.3, 0.6]
MORE_RATES = [0.03, 0.1, 0.2, 0.3, 0.6, 1.0]

Grid = dict[str, list[Any]]


def with_own(name: str, *values: Any) -> Grid:
    """Three rates times two values of a setting of the algorithm.

    >>> with_own("mu", 0.01, 0.1)
    {'local.lr': [0.1, 0.3, 0.6], 'algorithm.mu': [0.01, 0.1]}
    """
    return {"local.lr": RATES, f"algorithm.{name}": list(values)}


RATE_ONLY: Grid = {"local.lr": MORE_RATES}

GRIDS: dict[str, Grid] = {
    # alone, and one model for all
    "separate": RATE_ONLY,
    "fedavg": RATE_ONLY,
    "fedavg-ft": with_own("fine_tune_steps", 10, 40),
    "fedprox": with_own("mu", 0.01, 0.1),
    "fedprox-ft": with_own("fine_tune_steps", 10, 40),
    "scaffold": RATE_ONLY,
    # a model of one's own beside the global one
    "apfl": with_own("alpha", 0.25, 0.75),
    "ditto": with_own("lam", 0.1, 1.0),
    "pfedme": {"local.lr": [0.1, 0.3], "algorithm.personal_lr": [0.1, 0.2, 0.3]},
    "perfedavg": with_own("alpha", 0.01, 0.1),
    # parts of the model
    "fedper": RATE_ONLY,
    "fedbn": RATE_ONLY,
    "fedrep": RATE_ONLY,
    "fedbabu": with_own("fine_tune_steps", 10, 40),
    "lg-fedavg": RATE_ONLY,
    "fedrod": RATE_ONLY,
    "fedala": with_own("layers", 1, 2),
    "lotteryfl": with_own("target", 0.3, 0.6),
    "heterofl": RATE_ONLY,
    # features
    "moon": with_own("mu", 0.1, 1.0),
    "fedproto": with_own("lam", 0.1, 1.0),
    "fedpac": with_own("lam", 0.1, 1.0),
    "knnper": with_own("neighbours", 5, 10),
    # mixtures and clusters
    "ifca": with_own("clusters", 2, 3),
    "fedem": with_own("components", 2, 3),
    "cfl": with_own("stationary", 0.1, 0.3),
    # who helps whom
    "fedamp": with_own("sigma_scale", 0.25, 0.5),
    "heurfedamp": with_own("contrast", 1.0, 2.0),
    "fedfomo": with_own("candidates", 5, 10),
    "pfedhn": with_own("lr", 0.1, 0.5),
    "mocha": with_own("lam1", 0.01, 0.1),
    "fml": with_own("alpha", 0.3, 0.7),
    # optimizers of the server, fairness, drift
    "fedadam": with_own("server_lr", 0.01, 0.1),
    "fedyogi": with_own("server_lr", 0.01, 0.1),
    "fedadagrad": with_own("server_lr", 0.01, 0.1),
    "fedavgm": with_own("momentum", 0.5, 0.9),
    "feddyn": with_own("alpha", 0.01, 0.1),
    "qffl": with_own("q", 0.1, 1.0),
    "afl": with_own("lambda_lr", 0.01, 0.1),
    "fedpa": with_own("rho", 0.01, 0.1),
    "fedbe": with_own("distill_steps", 2, 5),
    # PersFL tries temperatures and shares by itself, on each client's validation data
    "persfl": RATE_ONLY,
    "persfl-gd": RATE_ONLY,
    "selffl": with_own("smoothing", 0.5, 1.0),
    "selffl-aug": with_own("smoothing", 0.5, 1.0),
}
"""By the algorithm's name. A method without one gets `RATE_ONLY`, and the page says so."""

FIXED: dict[str, dict[str, Any]] = {
    "pfedme": {"algorithm.lam": 5.0},
    "fedrep": {"algorithm.head_steps": 5, "algorithm.body_steps": 5},
    "persfl": {"algorithm.distill_epochs": 3},
    "persfl-gd": {"algorithm.distill_epochs": 3},
    "selffl": {"algorithm.l_max": 10},
    "selffl-aug": {"algorithm.l_max": 10, "algorithm.extra_steps": 10},
}
"""Settings of all tries. pFedMe's λ times its rates must stay below 2. A client of FedRep takes ten steps for head and
body together, and one of Self-FL ten at most, as others take ten. Defaults of PersFL and of Self-FL with extra steps
take many times the work of a round: 15 students of 10 epochs each, and 100 more steps in every round."""


def grid_of(method: str) -> Grid:
    """What is tried for a method, with the settings that all its tries share."""
    fixed = {key: [value] for key, value in FIXED.get(method, {}).items()}
    return {**GRIDS.get(method, RATE_ONLY), **fixed}
