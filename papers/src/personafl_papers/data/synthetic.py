"""synthetic(alpha, beta) of FedProx (Li et al. 2020): clients that differ by known amounts."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from personafl.data.base import Samples
from personafl.errors import ConfigError
from personafl.streams import generator

Draws = NDArray[np.float64]


@dataclass(frozen=True)
class Synthetic:
    """FedProx synthetic(alpha, beta): each client labels its own Gaussian features by its own linear model.

    For client k: u_k ~ N(0, alpha) and B_k ~ N(0, beta); every entry of W_k and b_k ~ N(u_k, 1) and of v_k ~
    N(B_k, 1); x ~ N(v_k, diag(j^-1.2)); y = argmax(W_k x + b_k). The second argument of N is a variance
    throughout. The number of samples is lognormal(4, 2), rounded down, plus 50. All of it is in `truth`: u,
    B, v, weight (W), bias (b).

    Parameters
    ----------
    alpha
        Variance between the clients' models.
    beta
        Variance between the clients' features.
    clients, features, classes
        The numbers of clients, features and classes.
    n_max
        Cap on a client's number of samples; a note says when it was needed. lognormal(4, 2) is above the
        default once in 12,000 clients, and without a cap one such client could fill the memory.

    Examples
    --------
    >>> samples = Synthetic(alpha=0.0, beta=0.0, clients=2).load(seed=0)
    >>> samples.truth["weight"].shape, samples.truth["u"].tolist()
    ((2, 10, 60), [0.0, 0.0])
    """

    name: ClassVar[str] = "synthetic"
    default_model: ClassVar[str] = "mclr"
    structure: ClassVar[Literal["pool", "natural", "own"]] = "own"
    splits: ClassVar[tuple[float, float, float] | None] = (0.9, 0.0, 0.1)

    alpha: float = 1.0
    beta: float = 1.0
    clients: int = 30
    features: int = 60
    classes: int = 10
    n_max: int = 100_000

    def __post_init__(self) -> None:
        for setting in ("alpha", "beta"):
            if not 0 <= (value := getattr(self, setting)) < np.inf:
                raise ConfigError(f"data synthetic: {setting} = {value} must be 0 or more and finite: it is a variance")
        least = {"clients": 1, "features": 1, "classes": 2, "n_max": 50}
        reasons = {"clients": "somebody has to train", "features": "a model needs an input"}
        reasons |= {
            "classes": "one class leaves nothing to learn",
            "n_max": "every client has 50 or more samples",
        }
        for setting, lowest in least.items():
            if (value := getattr(self, setting)) < lowest:
                raise ConfigError(f"data synthetic: {setting} = {value} must be at least {lowest}: {reasons[setting]}")

    def load(self, seed: int) -> Samples:
        """Draw the models and samples; a client's draws do not depend on how many others there are."""
        ids = [f"client-{k}" for k in range(self.clients)]
        features, labels, notes = [], [], []
        truth: dict[str, list[Draws]] = {"u": [], "B": [], "v": [], "weight": [], "bias": []}
        for client in ids:
            rng = generator(seed, f"synthetic/{client}")
            drawn = int(rng.lognormal(4.0, 2.0)) + 50
            size = min(drawn, self.n_max)
            if size < drawn:
                notes.append(f"{client}: {drawn} samples cut to n_max = {self.n_max}")
            model = self._model(rng)
            spread = np.arange(1, self.features + 1) ** -0.6  # the square root of the variance j^-1.2
            x = model["v"] + spread * rng.standard_normal((size, self.features))
            features.append(x.astype(np.float32))
            labels.append(np.argmax(x @ model["weight"].T + model["bias"], axis=1))
            for what, value in model.items():
                truth[what].append(value)
        return Samples(
            x=np.concatenate(features),
            y=np.concatenate(labels),
            classes=self.classes,
            clients=np.repeat(ids, [len(y) for y in labels]),
            truth={what: np.stack(values) for what, values in truth.items()},
            notes=tuple(notes),
        )

    def _model(self, rng: np.random.Generator) -> dict[str, Draws]:
        u = np.asarray(rng.normal(0.0, np.sqrt(self.alpha)))
        big_b = np.asarray(rng.normal(0.0, np.sqrt(self.beta)))
        return {
            "u": u,
            "B": big_b,
            "v": rng.normal(big_b, 1.0, self.features),
            "weight": rng.normal(u, 1.0, (self.classes, self.features)),
            "bias": rng.normal(u, 1.0, self.classes),
        }
