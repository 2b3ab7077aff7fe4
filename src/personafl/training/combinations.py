"""Which settings of a run can be combined: the one place that says so, for configs, Python and federations."""

from __future__ import annotations

from personafl.algorithms.base import Algorithm
from personafl.algorithms.extras import TwoSums
from personafl.errors import ConfigError
from personafl.training.privacy import Privacy
from personafl.training.robust import Robust


def check_combination(algorithm: Algorithm, privacy: Privacy | None = None, robust: Robust | None = None) -> None:
    """Raise a ConfigError, with the reason, where what clients or the server do to answers does not fit the algorithm.

    Noise of clients and robust rules go together: the server sees noisy answers one by one. What hides single answers
    from the server does not, nor does noise that is scaled for a mean.
    """
    if isinstance(algorithm, TwoSums) and not algorithm.why_no_sums and (privacy is not None or robust is not None):
        table = "[privacy]" if privacy is not None else "[robust]"
        raise ConfigError(
            f"{table} cannot be combined with algorithm.sums = true: it is about single answers, and the server has "
            "sums; leave one of them out"
        )
    if privacy is not None:
        privacy.check(algorithm)
    if robust is not None:
        robust.check(algorithm)
    if privacy is not None and robust is not None and privacy.noise_at == "server":
        raise ConfigError(
            'privacy.noise_at = "server" is noise for a mean, and [robust] puts something else in its place: take '
            'noise_at = "clients", or leave out [robust]'
        )
