"""The two-level Gaussian model: the clients' true parameters are known, and so is the best answer."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from personafl.data.base import Samples
from personafl.errors import ConfigError
from personafl.streams import generator


@dataclass(frozen=True)
class Gaussian:
    """Two-level Gaussian model: client m has theta_m ~ N(theta0, sigma0_2), samples y ~ N(theta_m, sigma2).

    The federation is a regression on x = 1, so `torch.nn.Linear(1, 1, bias=False)` holds theta.
    `truth["theta"]` has the drawn theta_m. The defaults are case 1 of the Self-FL paper.

    Parameters
    ----------
    clients
        Number of clients M.
    theta0
        Mean of the clients' parameters.
    sigma0_2
        Variance between clients.
    sigma2
        Variance of one sample around its client's parameter.
    n_min, n_max
        The number of training samples of a client is uniform in [n_min, n_max].
    n_test
        Test samples of each client, drawn apart from the training samples.

    Examples
    --------
    >>> samples = Gaussian(clients=3, n_test=2).load(seed=0)
    >>> samples.truth["theta"].shape, samples.x.shape == samples.y.shape
    ((3,), True)
    >>> Gaussian.case(2).n_max
    200
    """

    name: ClassVar[str] = "gaussian"
    default_model: ClassVar[str] = "linear"
    structure: ClassVar[Literal["pool", "natural", "own"]] = "own"
    splits: ClassVar[tuple[float, float, float] | None] = None

    clients: int = 20
    theta0: float = 1.6
    sigma0_2: float = 0.001
    sigma2: float = 0.1
    n_min: int = 10
    n_max: int = 20
    n_test: int = 10

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise ConfigError(f"data gaussian: clients = {self.clients} must be at least 1: somebody has to train")
        for setting in ("sigma0_2", "sigma2"):
            if not 0 <= (value := getattr(self, setting)) < np.inf:
                raise ConfigError(f"data gaussian: {setting} = {value} must be 0 or more and finite: it is a variance")
        if not np.isfinite(self.theta0):
            raise ConfigError(f"data gaussian: theta0 = {self.theta0} must be finite: it is a mean")
        if not 1 <= self.n_min <= self.n_max:
            raise ConfigError(
                f"data gaussian: n_min = {self.n_min} and n_max = {self.n_max} must satisfy 1 <= n_min <= "
                f"n_max: they bound a client's number of training samples"
            )
        if self.n_test < 0:
            raise ConfigError(f"data gaussian: n_test = {self.n_test} must be 0 or more: it counts test samples")

    @classmethod
    def case(cls, number: int, **settings: Any) -> "Gaussian":
        """The paper's case 1 (clients alike, little data) or 2 (clients differ), other settings as given."""
        presets: dict[int, dict[str, Any]] = {1: {}, 2: {"sigma0_2": 1.0, "n_max": 200}}
        if number not in presets:
            raise ConfigError(f"data gaussian: there is no case {number}, only 1 and 2")
        return cls(**(presets[number] | settings))

    def load(self, seed: int) -> Samples:
        """Draw the clients and their samples."""

        # A stream for each kind of draw: asking for more test samples leaves the training data as it was.
        def draw(what: str) -> np.random.Generator:
            return generator(seed, f"gaussian/{what}")

        theta = self.theta0 + np.sqrt(self.sigma0_2) * draw("theta").standard_normal(self.clients)
        n_train = draw("sizes").integers(self.n_min, self.n_max, size=self.clients, endpoint=True)
        sizes = n_train + self.n_test
        ends = np.cumsum(sizes)
        starts = ends - sizes
        is_test = np.arange(ends[-1]) >= np.repeat(starts + n_train, sizes)
        noise = np.empty(len(is_test))
        noise[~is_test] = draw("train").standard_normal(int(n_train.sum()))
        noise[is_test] = draw("test").standard_normal(self.clients * self.n_test)
        y = np.repeat(theta, sizes) + np.sqrt(self.sigma2) * noise
        return Samples(
            x=np.ones((len(y), 1), np.float32),
            y=y.astype(np.float32)[:, None],
            classes=None,
            clients=np.array([f"client-{m}" for m in range(self.clients)]),
            bounds=np.stack([starts, starts + n_train, starts + n_train, ends], axis=1),
            truth={"theta": theta},
        )
